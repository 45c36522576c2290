# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet as a value."""

import collections
import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import errors
from nova_accel.inventory import wording
from nova_accel.model import names
from placement_sync.fleet.devices import (
    device_rows,
    drain_notes,
    fleet_query,
    fleet_state,
    holder_rows,
    host_reports,
)
from placement_sync.fleet.flavors import (
    flavor_specs,
    lookup,
    offered_devices,
    room,
)
from placement_sync.fleet.moves import defragmentation, movable_servers
from placement_sync.fleet.report import card_bars

# Limits of the search for moves: `openstack accel plan defragment` has none of
# states. A hint is for people, who would not read more moves.
_MOST_MOVES = 4
_MOST_STATES = 2000
# Kinds of problems beside the states of devices; STALE is of a host.
OVERALLOCATED = "overallocated"
STALE = fleet_query.STALE
DISABLED = "disabled"
# The remedy of each state, for the operator; ok has none.
_REMEDIES = {
    "drained": "`nova-accel undrain {address}` on the host offers it again",
    "faulted": "repair it, then run `nova-accel heal {address}` on the host",
    "missing": "the host does not have it any more, and servers hold it:"
    " check its slot, or delete these servers",
    "unreadable": "the host can't read its notes; read the log of its"
    " nova-compute",
}
# Of a missing device that no server holds.
_REMEDY_UNUSED = "the host does not have it any more; its next pass removes it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportHeader:
    """Origin of a report: time in ISO 8601, version, and the user."""

    created: str
    version: str
    user: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostSection:
    """A host and the bars of its devices."""

    row: holder_rows.HostRow
    bars: tuple[card_bars.CardBar, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorSpecs:
    """A flavor of Nova; ``needs`` are a server's amounts on its node."""

    name: str
    specs: Mapping[str, str]
    needs: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRow:
    """A flavor with accelerators, and how many more servers fit, at most.

    ``problem`` is why it can't be read, empty if it can.
    """

    name: str
    request: str
    room: int
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Free memory of the cards of a model, and its largest free profile.

    The fewest moves, of ``moved_servers`` to ``target_cards`` in the same
    order, make the profile ``gained`` possible on ``empty_card``, which is
    not always empty then. No card of the model has room for it before. All
    are empty without such moves.
    """

    model: str
    free_mb: int
    largest: str
    empty_card: str = ""
    moved_servers: tuple[str, ...] = ()
    target_cards: tuple[str, ...] = ()
    gained: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProblem:
    """A device or host that serves less than it could, and the remedy.

    ``kind`` is the state of the device, or ``OVERALLOCATED``, ``STALE`` or
    ``DISABLED``. ``device`` is the uuid of its provider, empty for a host.
    """

    kind: str
    device: str = ""
    where: str
    problem: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """All parts of a report, in the order of the page.

    ``gaps`` are the sources that could not be read, with the reason.
    """

    header: ReportHeader
    states: Mapping[str, int]
    usages: tuple[device_rows.UnitUsage, ...]
    server_count: int
    hosts: tuple[HostSection, ...]
    flavors: tuple[FlavorRow, ...]
    projects: tuple[holder_rows.ProjectUsage, ...]
    fragmentation: tuple[Fragmentation, ...]
    problems: tuple[DeviceProblem, ...]
    gaps: tuple[str, ...]


def build(
    header: ReportHeader,
    fleet: fleet_state.Fleet,
    flavors: Iterable[FlavorSpecs],
    types: offered_devices.VgpuTypes,
) -> FleetReport:
    """Return the report of a fleet.

    :param flavors: those without accelerators are left out.
    """
    rows = device_rows.list_devices(fleet, types)
    allocations = holder_rows.list_allocations(fleet, types)
    counts = collections.Counter(row.state for row in rows)
    now = datetime.datetime.fromisoformat(header.created)
    return FleetReport(
        header=header,
        states={s: counts[s] for s in fleet_query.STATES if counts[s]},
        usages=holder_rows.sum_usages(row.usage for row in rows),
        server_count=len({a.consumer for a in allocations}),
        hosts=tuple(_list_sections(fleet, rows, allocations, types)),
        flavors=tuple(_list_flavors(flavors, fleet.cloud, types)),
        projects=holder_rows.sum_by_project(fleet),
        fragmentation=tuple(_list_fragmentation(rows, fleet, types)),
        problems=tuple(_list_problems(fleet, rows, now)),
        gaps=fleet.gaps,
    )


def _list_sections(
    fleet: fleet_state.Fleet,
    rows: Sequence[device_rows.DeviceRow],
    allocations: Sequence[holder_rows.AllocationRow],
    types: offered_devices.VgpuTypes,
) -> Iterator[HostSection]:
    by_device = collections.defaultdict(list)
    for allocation in allocations:
        if allocation.device is not None:
            by_device[allocation.device.uuid].append(allocation)
    bars = collections.defaultdict(list)
    for row in rows:
        bar = card_bars.build_bar(row, by_device[row.device.uuid], types)
        bars[row.device.root].append(bar)
    for host in holder_rows.list_hosts(fleet, rows):
        yield HostSection(row=host, bars=tuple(bars[host.uuid]))


def _list_flavors(
    flavors: Iterable[FlavorSpecs],
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> Iterator[FlavorRow]:
    for flavor in sorted(flavors, key=lambda flavor: flavor.name):
        try:
            contents = flavor_specs.read(flavor.specs)
        except errors.MalformedError as error:
            yield FlavorRow(
                name=flavor.name, request="", room=0, problem=str(error)
            )
            continue
        if not contents.groups:
            continue
        counts = collections.Counter(
            lookup.describe_group(group, types) for group in contents.groups
        )
        yield FlavorRow(
            name=flavor.name,
            request=", ".join(f"{n} x {name}" for name, n in counts.items()),
            room=room.count_room(
                contents, cloud, flavor.needs, types.geometry
            ),
        )


def _list_fragmentation(
    rows: Sequence[device_rows.DeviceRow],
    fleet: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
) -> Iterator[Fragmentation]:
    by_model: dict[str, list[device_rows.DeviceRow]] = collections.defaultdict(
        list
    )
    for row in rows:
        is_measured = names.GPU_MEMORY_CLASS in row.device.capacities
        if row.state == "ok" and is_measured:
            by_model[row.model].append(row)
    # A count, not a time: the same fleet has the same report everywhere.
    states = itertools.count()
    defragmenter = defragmentation.Defragmentation(
        fleet,
        types,
        movable_servers.MoveRules(),
        lambda: next(states) > _MOST_STATES,
    )
    for model, cards in sorted(by_model.items()):
        largest = max(
            (row.largest for row in cards if row.largest is not None),
            key=lambda p: p.charges.get(names.GPU_MEMORY_CLASS, 0),
            default=None,
        )
        hint = _find_hint(defragmenter, cards, types)
        moves = hint.moves if hint else ()
        yield Fragmentation(
            model=model,
            free_mb=sum(_free_mb(row) for row in cards),
            largest=largest.name if largest else "",
            empty_card=_name_device(hint.cards[0]) if hint else "",
            moved_servers=tuple(move.server.name for move in moves),
            target_cards=tuple(_name_device(move.target) for move in moves),
            gained=hint.profile if hint else "",
        )


def _find_hint(
    defragmenter: defragmentation.Defragmentation,
    cards: Sequence[device_rows.DeviceRow],
    types: offered_devices.VgpuTypes,
) -> defragmentation.Rearrangement | None:
    """Return moves after which a larger profile of a model fits, or None."""
    gpu = types.gpu_of(cards[0].device)
    if gpu is None:
        return None
    try:
        return defragmenter.raise_largest(gpu.key, _MOST_MOVES)
    except defragmentation.NoPlanError:
        return None


def _name_device(device: offered_devices.OfferedDevice) -> str:
    return f"{device.host}/{device.address}"


def _free_mb(row: device_rows.DeviceRow) -> int:
    return row.device.capacities[names.GPU_MEMORY_CLASS].free


def _find_remedy(row: device_rows.DeviceRow) -> str:
    if row.state == "missing" and not (row.consumers or row.usage.used):
        return _REMEDY_UNUSED
    return _REMEDIES[row.state].format(address=row.device.address)


def _list_problems(
    fleet: fleet_state.Fleet,
    rows: Iterable[device_rows.DeviceRow],
    now: datetime.datetime,
) -> Iterator[DeviceProblem]:
    disabled = {}
    stale = {}
    for row in rows:
        device = row.device
        if device.root in fleet.cloud.disabled:
            service = device.service
            disabled[device.host] = service.host if service else device.host
        if device.is_stale and device.service is not None:
            stale[device.host] = device.service
        if row.state in _REMEDIES:
            drains = drain_notes.describe_all(row.drains, now)
            reason = "; ".join(filter(None, (drains, row.fault)))
            state = f"{row.state}: {reason}" if reason else row.state
            servers = wording.count_of(len(row.consumers), "server")
            yield DeviceProblem(
                kind=row.state,
                device=device.uuid,
                where=_name_device(device),
                problem=f"{state}, {servers}",
                remedy=_find_remedy(row),
            )
        if row.usage.used > row.usage.total:
            yield DeviceProblem(
                kind=OVERALLOCATED,
                device=device.uuid,
                where=_name_device(device),
                problem=f"more is allocated than it has: {row.usage}",
                remedy="run `nova-accel audit` on the host",
            )
    for host, service in sorted(stale.items()):
        reason = host_reports.explain_stale(service, now)
        yield DeviceProblem(
            kind=STALE,
            where=host,
            problem=f"{reason}: its devices are shown as they were then, and"
            " get no servers",
            remedy=f"see that the host runs, then `systemctl status` and the"
            " log of its nova-compute; `openstack compute service list"
            f" --service nova-compute --host {service.host}` shows when it is"
            " up",
        )
    for host, name in sorted(disabled.items()):
        yield DeviceProblem(
            kind=DISABLED,
            where=host,
            problem="its compute service is disabled",
            remedy=f"`openstack compute service set --enable {name}"
            " nova-compute` once the cause is repaired",
        )
