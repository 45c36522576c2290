# SPDX-License-Identifier: Apache-2.0
"""Status of a host's passes, as a value."""

import collections
import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.model import names, providers

FORMAT = 1
# A pass that failed is tried again after one interval, and then after
# two (loop.MAX_BACKOFF): who had no success for longer than both needs
# somebody to look.
STALE_INTERVALS = 3
#: What a device can be, and why; each is one of these.
STATES = ("ok", "faulted", "drained", "missing", "unreadable")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassUsage:
    """How many units of a resource class a host has.

    ``total`` and ``reserved`` as Placement counts them, ``claimed`` those
    that the claims of its servers hold.
    """

    total: int = 0
    reserved: int = 0
    claimed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What one writer's passes came to. Times are seconds since 1970, UTC.

    ``started`` is when the writer was, ``attempted`` when its last pass
    was, ``succeeded`` when one last came to its end, None for never.
    ``seconds``, ``reads``, ``writes`` and ``calls`` (by kind) are of the
    last pass, ``error`` is why it could not be made, empty if it could.
    ``devices`` (by state), ``use`` (by resource class) and ``problems``
    are of the last one that came to its end; ``undone`` is how many of
    the problems are Placement's refusals. ``interval_s`` is 0 where no
    further pass was promised. ``is_broken`` tells that there is no status
    but the error.
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
    is_broken: bool = False

    @property
    def outcome(self) -> str:
        """Return ``ok``, ``incomplete`` or ``failed``, of the last pass."""
        if self.error:
            return "failed"
        return "incomplete" if self.undone else "ok"

    def age(self, now: float) -> float:
        """Return the seconds since the last success, or since the start."""
        last = self.started if self.succeeded is None else self.succeeded
        return max(0.0, now - last)

    def is_stale(self, now: float) -> bool:
        """Return whether there was no success for too long.

        See STALE_INTERVALS; where nobody promised another pass, whether
        the last one failed. A success that lies as far ahead tells as
        little: the clock was set back since.
        """
        if not self.interval_s:
            return bool(self.error)
        last = self.started if self.succeeded is None else self.succeeded
        return abs(now - last) > STALE_INTERVALS * self.interval_s

    def as_dict(self) -> dict[str, Any]:
        """Return it as the file has it: times for programs and people."""
        found = dataclasses.asdict(self)
        del found["is_broken"]
        return (
            {"format": FORMAT}
            | found
            | {name: _both(getattr(self, name)) for name in _TIMES}
        )


_TIMES = ("started", "attempted", "succeeded")
_TEXTS = ("writer", "version", "error")
_COUNTS = ("pid", "reads", "writes", "undone")


def utc(time_s: float) -> str:
    """Return a time in ISO 8601, in UTC, to the second.

    :raises ValueError: no calendar has that time.
    """
    try:
        when = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    except (OSError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return when.isoformat(timespec="seconds")


def _both(time_s: float | None) -> dict[str, Any] | None:
    if time_s is None:
        return None
    return {"time": utc(time_s), "epoch": round(time_s, 3)}


def count_calls(calls: Iterable[object]) -> dict[str, int]:
    """Return how many calls there are of each kind, by its name."""
    return dict(collections.Counter(type(call).__name__ for call in calls))


def count_devices(
    host: model.HostState,
    tree: providers.ProviderTree,
    claims: Iterable[model.Claim] = (),
) -> dict[str, int]:
    """Return how many devices are in each of STATES; each counts once.

    Drained goes before faulted: its operator knows. A device whose marks
    are unknown counts as unreadable. Missing are those
    that a server has and the host does not, and the providers that are
    labelled so. While a whole technology can't be read, what is absent
    counts as unreadable.
    """
    found = collections.Counter(_state(device) for device in host.devices)
    present = {device.address for device in host.devices}
    absent = {
        claim.provider: claim.device
        for claim in claims
        if claim.device not in present | host.unknown
    }
    labelled = {n.uuid for n in tree.nodes if names.MISSING_TRAIT in n.traits}
    found["unreadable"] += len(host.unknown)
    found["missing"] += len(labelled)
    found["missing" if host.complete else "unreadable"] += len(
        absent.keys() - labelled
    )
    return {state: found[state] for state in STATES}


def _state(device: model.Device) -> str:
    if device.drain:
        return "drained"
    if device.marks_unknown:
        return "unreadable"
    return "faulted" if device.fault else "ok"


def count_use(
    host: model.HostState,
    tree: providers.ProviderTree,
    claims: Iterable[model.Claim] = (),
) -> dict[str, ClassUsage]:
    """Return what a host has of each resource class, over all devices.

    What a claim holds of a device that is gone is not known any more.
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


def parse(found: object) -> Status:
    """Return the status that a file holds.

    :raises MalformedError: it is no status, or of another format.
    """
    try:
        return _parse(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise errors.MalformedError(
            "status of passes",
            str(found)[:80],
            f"format {FORMAT} of this library ({error})",
        ) from error


def _parse(found: Any) -> Status:
    if found["format"] != FORMAT:
        raise ValueError(f"its format is {found['format']!r}")
    plain: dict[str, Any] = {name: _text(found[name]) for name in _TEXTS}
    plain |= {name: _count(found[name]) for name in _COUNTS}
    started = _time(found["started"])
    return Status(
        **plain,
        root=_root(found["root"]),
        started=0.0 if started is None else started,
        attempted=_time(found["attempted"]),
        succeeded=_time(found["succeeded"]),
        seconds=_number(found["seconds"]),
        interval_s=_number(found["interval_s"]),
        calls=_by_name(found["calls"]),
        devices=_by_name(found["devices"]),
        use={
            _text(name): ClassUsage(**_by_name(use))
            for name, use in found["use"].items()
        },
        problems=tuple(
            model.Problem(where=_text(p["where"]), reason=_text(p["reason"]))
            for p in found["problems"]
        ),
    )


def _root(found: Any) -> providers.ProviderRoot | None:
    if found is None:
        return None
    return providers.ProviderRoot(
        name=_text(found["name"]), uuid=_text(found["uuid"])
    )


def _time(found: Any) -> float | None:
    if found is None:
        return None
    time_s = _number(found["epoch"])
    utc(time_s)
    return time_s


def _by_name(found: Any) -> dict[str, int]:
    return {_text(name): _count(value) for name, value in found.items()}


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    return found


def _count(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{found!r} is no count")
    return found


def _number(found: Any) -> float:
    if type(found) not in (int, float) or not 0 <= found < math.inf:
        raise TypeError(f"{found!r} is no number of seconds")
    return float(found)
