# SPDX-License-Identifier: Apache-2.0
"""Status of a host's passes, as a value and as JSON."""

import collections
import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.discovery import vgpu_guests
from nova_accel.model import json_codec, names, providers, usage
from placement_sync.daemon import usage_rows

# A failed pass is retried after one interval, and then after two
# (loop.MAX_BACKOFF): a writer without a success for longer than both needs
# an operator.
STALE_INTERVALS = 3
#: Device states; each device has one of them.
STATES = ("ok", "faulted", "drained", "missing", "unreadable")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassUsage:
    """Units of a resource class over all devices of a host.

    ``total`` and ``reserved`` are those of Placement's inventories,
    ``claimed`` are the units that the claims of servers charge.
    """

    total: int = 0
    reserved: int = 0
    claimed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of one writer's passes. Times are seconds since 1970, UTC.

    ``started`` is the start of the writer, ``attempted`` that of its last
    pass, ``succeeded`` the end of the last complete pass, None for never.
    ``seconds``, ``reads``, ``writes`` and ``calls`` (by kind) are of the
    last pass; ``error`` is why it failed, empty if it did not.
    ``devices`` (by state), ``use`` (by resource class) and ``problems``
    are of the last complete pass; ``undone`` of the problems are calls
    that Placement refused. ``interval_s`` is 0 if no further pass is
    planned. ``waiting`` is the condition that the next pass waits for,
    empty if it does not wait. ``failed_checks`` are the checks of the host
    that failed when the writer started. ``guests`` are the guests of vGPUs
    in the last complete pass. ``is_broken`` is true if the file
    could not be read.

    ``room`` and ``servers`` are of the last complete pass or sample.
    ``device_usage``, ``sampled`` (its time) and ``sample_problems`` are of
    the last sample (``[nova_accel] stats_interval``).
    """

    writer: str = ""
    version: str = ""
    pid: int = 0
    root: providers.ProviderRoot | None = None
    started: float = 0.0
    attempted: float | None = None
    succeeded: float | None = None
    seconds: float = 0.0
    interval_s: float = 0.0
    reads: int = 0
    writes: int = 0
    calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    use: Mapping[str, ClassUsage] = dataclasses.field(default_factory=dict)
    problems: tuple[model.Problem, ...] = ()
    undone: int = 0
    error: str = ""
    waiting: str = ""
    failed_checks: tuple[str, ...] = ()
    guests: tuple[vgpu_guests.VgpuGuest, ...] = ()
    room: tuple[usage_rows.DeviceRoom, ...] = ()
    servers: tuple[usage_rows.ServerUsage, ...] = ()
    sampled: float | None = None
    device_usage: tuple[usage.DeviceUsage, ...] = ()
    sample_problems: tuple[model.Problem, ...] = ()
    is_broken: bool = False

    @property
    def outcome(self) -> str:
        """Return ``ok``, ``incomplete`` or ``failed`` for the last pass."""
        if self.error:
            return "failed"
        return "incomplete" if self.undone else "ok"

    def age(self, now: float) -> float:
        """Return the seconds since the last success, or since the start."""
        last = self.started if self.succeeded is None else self.succeeded
        return max(0.0, now - last)

    def is_stale(self, now: float) -> bool:
        """Return whether the last success is too long ago.

        See STALE_INTERVALS; without a planned pass, whether the last one
        failed. A success as far in the future is stale, too: the clock was
        set back since.
        """
        if not self.interval_s:
            return bool(self.error)
        last = self.started if self.succeeded is None else self.succeeded
        return abs(now - last) > STALE_INTERVALS * self.interval_s

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file; times are ISO 8601 and epoch."""
        fields = dataclasses.asdict(self)
        for name in ("problems", "sample_problems"):
            fields[name] = [
                {"where": p.where, "reason": p.reason}
                for p in getattr(self, name)
            ]
        del fields["is_broken"]
        return (
            {FORMAT.key: FORMAT.version}
            | fields
            | {name: _format_time(getattr(self, name)) for name in _TIMES}
        )


FORMAT = json_codec.Format(kind=Status)
_TIMES = ("started", "attempted", "succeeded", "sampled")


def utc(time_s: float) -> str:
    """Return a time in ISO 8601, in UTC, to the second.

    :raises ValueError: the time is out of range.
    """
    try:
        moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    except (OSError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return moment.isoformat(timespec="seconds")


def _format_time(time_s: float | None) -> dict[str, Any] | None:
    if time_s is None:
        return None
    return {"time": utc(time_s), "epoch": round(time_s, 3)}


def count_calls(calls: Iterable[object]) -> dict[str, int]:
    """Return the number of calls by kind."""
    return dict(collections.Counter(type(call).__name__ for call in calls))


def count_devices(
    host: model.HostState,
    tree: providers.ProviderTree,
    claims: Iterable[model.Claim] = (),
) -> dict[str, int]:
    """Return the number of devices in each of STATES; each counts once.

    A device that is drained and faulted counts as drained. A device whose
    marks are unknown counts as unreadable. Missing are devices that a claim
    names and the host does not have, and providers with the trait of
    missing devices. While a whole technology can't be read, absent devices
    count as unreadable.
    """
    counts = collections.Counter(
        usage_rows.get_state(device) for device in host.devices
    )
    present = {device.address for device in host.devices}
    absent = {
        claim.provider: claim.device
        for claim in claims
        if claim.device not in present | host.unknown
    }
    marked = {n.uuid for n in tree.nodes if names.MISSING_TRAIT in n.traits}
    counts["unreadable"] += len(host.unknown)
    counts["missing"] += len(marked)
    counts["missing" if host.complete else "unreadable"] += len(
        absent.keys() - marked
    )
    return {state: counts[state] for state in STATES}


def count_use(
    host: model.HostState,
    tree: providers.ProviderTree,
    claims: Iterable[model.Claim] = (),
) -> dict[str, ClassUsage]:
    """Return the usage of each resource class, over all devices of a host.

    Claims on devices that are gone are not counted: their charges are not
    known any more.
    """
    total: collections.Counter[str] = collections.Counter()
    reserved: collections.Counter[str] = collections.Counter()
    claimed: collections.Counter[str] = collections.Counter()
    for node in tree.nodes:
        for name, inventory in node.inventories.items():
            total[name] += inventory.total
            reserved[name] += inventory.reserved
    for claim in claims:
        if (device := host.device(claim.device)) is not None:
            claimed.update(device.charges(claim.profile))
    return {
        name: ClassUsage(
            total=total[name], reserved=reserved[name], claimed=claimed[name]
        )
        for name in sorted(total.keys() | claimed.keys())
    }


def parse(text: bytes) -> Status:
    """Return the status in a file.

    :raises MalformedError: it is not a status, or has another format.
    """
    try:
        return _parse(text)
    except (LookupError, TypeError, ValueError) as error:
        raise errors.MalformedError(
            "status of passes",
            text[:80].decode(errors="replace"),
            f"format {FORMAT.version} of this library ({error})",
        ) from error


def _parse(text: bytes) -> Status:
    fields = FORMAT.load(text)
    times = {
        name: fields[name] and fields[name]["epoch"]
        for name in _TIMES
        if name in fields
    }
    status: Status = json_codec.decode(Status, fields | times)
    for name in _TIMES:
        _format_time(getattr(status, name))  # the time is in range
    return status
