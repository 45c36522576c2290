# SPDX-License-Identifier: Apache-2.0
"""Rows of allocations, and their sums by project and by host."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.model import flavors, providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import device_rows, fleet_query, fleet_state
from placement_sync.fleet.flavors import flavor_specs, lookup, offered_devices


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """Part of a holding. ``name`` is its profile, empty if not known."""

    name: str
    amounts: fleet_state.Amounts

    def is_of(self, profile: str) -> bool:
        """Return whether it is of a profile, in any spelling of the name."""
        return bool(self.name) and mdev_names.is_profile_name(
            profile, self.name
        )

    def __str__(self) -> str:
        """Return the profile, or the amounts: ``4096 MB``."""
        return self.name or format_amounts(self.amounts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """Holding of a consumer, with its device.

    ``server`` is None for a consumer that Nova does not show, ``device`` is
    None for a user who may not read Placement. ``project_name`` is empty if
    it was not read.
    """

    consumer: str
    server: nova_api.Server | None
    device: offered_devices.OfferedDevice | None
    parts: tuple[HeldPart, ...]
    amounts: fleet_state.Amounts
    project_name: str = ""

    @property
    def project(self) -> str:
        """Return the id of the server's project, empty if unknown."""
        return self.server.project if self.server is not None else ""

    @property
    def model(self) -> str:
        """Return the model of the card, empty without a device."""
        if self.device is None:
            return ""
        return offered_devices.model_name(self.device.model)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProjectUsage:
    """Units of a resource class that a project holds, over all devices.

    ``project`` is its id, empty for holders whose project is not known;
    ``name`` is empty if it was not read.
    """

    project: str
    name: str
    resource_class: str
    units: int
    consumers: frozenset[str]
    devices: frozenset[str]

    @property
    def label(self) -> str:
        """Return the project in words."""
        return self.name or self.project or "(not known)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Devices of a host by state, and their use by unit.

    ``is_disabled`` is true if its compute service takes no servers.
    ``service`` is None if Nova was not asked, or shows none.
    """

    name: str
    uuid: str
    is_disabled: bool
    states: Mapping[str, int]
    usages: tuple[device_rows.UnitUsage, ...]
    consumers: frozenset[str]
    service: nova_api.ComputeService | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether it is down: its devices are those of then."""
        return self.service is not None and not self.service.is_up


def list_allocations(
    fleet: fleet_state.Fleet, types: offered_devices.VgpuTypes
) -> tuple[AllocationRow, ...]:
    """Return a row for each holding, by host, address and consumer."""
    devices = {device.uuid: device for device in fleet.devices}
    rows = []
    for holding in fleet.holdings:
        device = devices[holding.provider]
        server = fleet.servers.get(holding.consumer)
        groups = (
            group
            for group in _list_groups(server)
            if _is_of_model(group, device, types)
        )
        rows.append(
            AllocationRow(
                consumer=holding.consumer,
                server=server,
                device=device,
                parts=split_amounts(holding.amounts, groups, types),
                amounts=holding.amounts,
                project_name=_name_project(fleet, holding.consumer),
            )
        )
    return tuple(sorted(rows, key=_sort_key))


def _name_project(fleet: fleet_state.Fleet, consumer: str) -> str:
    return fleet.project_names.get(fleet.find_project(consumer), "")


def _sort_key(row: AllocationRow) -> tuple[str, str, str]:
    device = row.device
    host, address = (
        (device.host, device.address) if device is not None else ("", "")
    )
    return host, address, row.consumer


def list_requested(
    servers: Iterable[nova_api.Server],
    types: offered_devices.VgpuTypes,
    project_names: Mapping[str, str],
) -> tuple[AllocationRow, ...]:
    """Return a row for each part that a server's flavor requests.

    For users who may not read allocations from Placement.

    :param project_names: by id, as far as they were read.
    """
    return tuple(
        AllocationRow(
            consumer=server.uuid,
            server=server,
            device=None,
            parts=split_amounts(group.resources, (group,), types),
            amounts=group.resources,
            project_name=project_names.get(server.project, ""),
        )
        for server in servers
        for group in _list_groups(server)
    )


def _list_groups(
    server: nova_api.Server | None,
) -> tuple[flavors.RequestGroup, ...]:
    """Return the groups of a server's flavor; none if Nova hides them."""
    if server is None or server.flavor is None:
        return ()
    try:
        return flavor_specs.read(server.flavor.extra_specs).groups
    except errors.MalformedError:
        return ()


def _is_of_model(
    group: flavors.RequestGroup,
    device: offered_devices.OfferedDevice,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether the type of a group is not one of another model."""
    gpu = types.gpu_of(device)
    requested = {
        vgpu_type.gpu
        for trait in group.required
        if (vgpu_type := types.find(trait)) is not None
    }
    return gpu is None or not requested or gpu.key in requested


def split_amounts(
    amounts: fleet_state.Amounts,
    groups: Iterable[flavors.RequestGroup],
    types: offered_devices.VgpuTypes,
) -> tuple[HeldPart, ...]:
    """Return the parts of a holding: those of the flavor, and the rest.

    A group takes its part once. The rest, if there is one, was attached to
    the running server. The sum of all parts is the holding.
    """
    rest = collections.Counter(amounts)
    parts = []
    for group in groups:
        resources = {n: a for n, a in group.resources.items() if a}
        if resources and all(rest[n] >= a for n, a in resources.items()):
            rest.subtract(resources)
            name = lookup.describe_group(group, types)
            parts.append(HeldPart(name=name, amounts=resources))
    attached = {name: amount for name, amount in rest.items() if amount}
    if attached:
        parts.append(HeldPart(name="", amounts=attached))
    return tuple(parts)


def format_amounts(amounts: fleet_state.Amounts) -> str:
    """Return units in words: ``8192 MB``, or ``VGPU 2``."""
    measured = [n for n in sorted(amounts) if n in device_rows.UNITS]
    if measured:
        return ", ".join(
            f"{amounts[n]} {device_rows.UNITS[n]}" for n in measured
        )
    return ", ".join(f"{n} {amounts[n]}" for n in sorted(amounts))


def sum_by_project(
    fleet: fleet_state.Fleet,
) -> tuple[ProjectUsage, ...]:
    """Return the units of each project, by name, id and resource class."""
    by_key: dict[tuple[str, str, str], list[providers.Allocation]] = (
        collections.defaultdict(list)
    )
    for holding in fleet.holdings:
        consumer = holding.consumer
        project = fleet.find_project(consumer)
        for resource_class in holding.amounts:
            key = _name_project(fleet, consumer), project, resource_class
            by_key[key].append(holding)
    return tuple(
        ProjectUsage(
            project=project,
            name=name,
            resource_class=resource_class,
            units=sum(holding.amounts[resource_class] for holding in holdings),
            consumers=frozenset(h.consumer for h in holdings),
            devices=frozenset(h.provider for h in holdings),
        )
        for (name, project, resource_class), holdings in sorted(by_key.items())
    )


def list_hosts(
    fleet: fleet_state.Fleet, rows: Sequence[device_rows.DeviceRow]
) -> tuple[HostRow, ...]:
    """Return a row for each host, by name.

    :param rows: those of the fleet's devices.
    """
    by_host: dict[tuple[str, str], list[device_rows.DeviceRow]] = (
        collections.defaultdict(list)
    )
    for row in rows:
        by_host[row.device.host, row.device.root].append(row)
    return tuple(
        _build_host(name, uuid, fleet, host_rows)
        for (name, uuid), host_rows in sorted(by_host.items())
    )


def _build_host(
    name: str,
    uuid: str,
    fleet: fleet_state.Fleet,
    rows: Sequence[device_rows.DeviceRow],
) -> HostRow:
    counts = collections.Counter(row.state for row in rows)
    return HostRow(
        name=name,
        uuid=uuid,
        is_disabled=uuid in fleet.cloud.disabled,
        states={s: counts[s] for s in fleet_query.STATES if counts[s]},
        usages=sum_usages(row.usage for row in rows),
        consumers=frozenset(c for row in rows for c in row.consumers),
        service=rows[0].device.service,
    )


def sum_usages(
    usages: Iterable[device_rows.UnitUsage],
) -> tuple[device_rows.UnitUsage, ...]:
    """Return the sums of usages, one for each unit that there is."""
    used: collections.Counter[str] = collections.Counter()
    total: collections.Counter[str] = collections.Counter()
    for usage in usages:
        if usage.unit:
            used[usage.unit] += usage.used
            total[usage.unit] += usage.total
    return tuple(
        device_rows.UnitUsage(used=used[unit], total=total[unit], unit=unit)
        for unit in sorted(total)
    )
