# SPDX-License-Identifier: Apache-2.0
"""Number of servers of a flavor that there is room for."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel.geometry import topology
from nova_accel.geometry.scheduling import provider_room, vgpu_geometry
from nova_accel.model import flavors
from placement_sync.fleet.flavors import flavor_specs, offered_devices

Devices = Sequence[offered_devices.OfferedDevice]


def count_room(
    contents: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    needs: Mapping[str, int],
    geometry: vgpu_geometry.VgpuGeometry,
) -> int:
    """Return how many servers there is room for now, at most.

    A host that is down has none. Each kind of group is counted alone. The
    group without a suffix, which several devices may serve together, counts
    only where it is alone.

    :param needs: amounts of a server on its compute node, by class.
    """
    count = 0
    suffixed = tuple(group for group in contents.groups if group.suffix)
    unsuffixed = [group for group in contents.groups if not group.suffix]
    contents = dataclasses.replace(contents, groups=suffixed)
    for host in _group_by_host(d for d in cloud.devices if not d.is_stale):
        host_count = sum(
            _count_set_room(contents, devices, geometry)
            for devices in _split_host(contents, host)
        )
        if not suffixed:
            host_count = _count_shared_room(unsuffixed, host)
        node = cloud.hosts.get(host[0].root, {})
        for name, amount in needs.items():
            if amount and name in node:
                host_count = min(host_count, node[name].free // amount)
        count += host_count
    return count


def _count_shared_room(
    groups: Iterable[flavors.RequestGroup], devices: Devices
) -> int:
    """Return the room for groups that all devices serve together, at most."""
    return min(
        (
            sum(
                device.capacities[name].free
                for device in devices
                if name in device.capacities and not device.is_unavailable
            )
            // amount
            for group in groups
            for name, amount in group.resources.items()
            if amount
        ),
        default=0,
    )


def _split_host(
    contents: flavor_specs.FlavorContents, host: Devices
) -> Iterator[Devices]:
    """Yield sets of devices so that no server uses devices of two sets."""
    locality = contents.policy.locality
    is_near = contents.policy.numa is flavors.NumaPolicy.REQUIRED
    if is_near and (contents.numa_cells or 1) == 1:
        locality = flavors.Locality.NUMA
    if locality in (flavors.Locality.ANY, flavors.Locality.DIFFERENT_CARD):
        yield host
        return
    remaining = list(host)
    while remaining:
        connected, todo = [], [remaining.pop(0)]
        while todo:
            device = todo.pop()
            connected.append(device)
            near = [
                other
                for other in remaining
                if not topology.explain_mismatch(locality, device, other)
            ]
            remaining = [other for other in remaining if other not in near]
            todo += near
        yield connected


def _count_set_room(
    contents: flavor_specs.FlavorContents,
    devices: Devices,
    geometry: vgpu_geometry.VgpuGeometry,
) -> int:
    """Return how many servers these devices have room for, at most."""
    is_separate = (
        contents.is_isolated
        or contents.policy.locality is flavors.Locality.DIFFERENT_CARD
    )
    counts = []
    groups = sorted(contents.groups, key=_sort_key)
    for _, equal_groups in itertools.groupby(groups, key=_sort_key):
        same = list(equal_groups)
        free = [
            provider_room.ProviderRoom(geometry, device).count(same[0])
            for device in devices
        ]
        counts.append(count_servers(free, len(same), is_separate))
    return min(counts, default=0)


def count_servers(free: Sequence[int], count: int, is_separate: bool) -> int:
    """Return how many servers with ``count`` parts each there is room for.

    :param free: the free parts of each card.
    :param is_separate: whether a server uses at most one part of a card.
    """
    most = sum(free) // count
    if is_separate:
        while most and sum(min(n, most) for n in free) < count * most:
            most -= 1
    return most


def _group_by_host(
    devices: Iterable[offered_devices.OfferedDevice],
) -> list[list[offered_devices.OfferedDevice]]:
    by_root: dict[str, list[offered_devices.OfferedDevice]] = {}
    for device in devices:
        by_root.setdefault(device.root, []).append(device)
    return list(by_root.values())


def _sort_key(group: flavors.RequestGroup) -> tuple[object, ...]:
    return (
        sorted(group.resources.items()),
        sorted(group.required),
        sorted(group.forbidden),
    )
