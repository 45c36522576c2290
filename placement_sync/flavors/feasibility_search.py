# SPDX-License-Identifier: Apache-2.0
"""Search for devices of one host that can serve a flavor's groups."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel.geometry import topology
from nova_accel.model import flavors, names
from placement_sync.flavors import flavor_specs, offered_devices

# Tries after which a search gives up; the flavor then counts as feasible.
# A server has a handful of devices, a host some dozens.
_TRIES = 20_000

Devices = Sequence[offered_devices.OfferedDevice]


def group_by_host(
    devices: Iterable[offered_devices.OfferedDevice],
) -> list[list[offered_devices.OfferedDevice]]:
    by_root: dict[str, list[offered_devices.OfferedDevice]] = {}
    for device in devices:
        by_root.setdefault(device.root, []).append(device)
    return list(by_root.values())


# -- one device -------------------------------------------------------------


def can_serve(
    device: offered_devices.OfferedDevice,
    group: flavors.RequestGroup,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a device can serve a group if empty and healthy."""
    return (
        all(
            name in device.capacities
            and device.capacities[name].total >= amount
            for name, amount in group.resources.items()
        )
        and not group.forbidden
        & (device.traits - offered_devices.UNAVAILABLE_TRAITS)
        and all(
            can_have_trait(device, trait, types) for trait in group.required
        )
    )


def can_have_trait(
    device: offered_devices.OfferedDevice,
    trait: str,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a device has a trait, or can have it if empty."""
    if trait in device.traits:
        return True
    if trait.startswith(names.FUNCTION_PREFIX):
        return names.PROGRAMMABLE_TRAIT in device.traits
    if not trait.startswith(names.PROFILE_PREFIXES):
        return False
    vgpu_type = types.find(trait)
    if vgpu_type is not None:
        return types.makes(device, vgpu_type)
    # A card whose types are not in the catalog supports the profiles of its
    # traits only, if it has such traits.
    return not types.knows(device) and not any(
        t.startswith(names.PROFILE_PREFIXES) for t in device.traits
    )


def count_free(
    device: offered_devices.OfferedDevice, group: flavors.RequestGroup
) -> int:
    """Return how many groups a device has room for now, at most."""
    if (
        device.is_unavailable
        or not group.required <= device.traits
        or group.forbidden & device.traits
    ):
        return 0
    return min(
        (
            device.capacities[name].free // amount
            if name in device.capacities
            else 0
            for name, amount in group.resources.items()
            if amount
        ),
        default=0,
    )


def select_suffixed(
    contents: flavor_specs.FlavorContents,
) -> flavor_specs.FlavorContents:
    """Return the contents without the group that has no suffix.

    One device serves each group with a suffix.
    """
    return dataclasses.replace(
        contents, groups=tuple(g for g in contents.groups if g.suffix)
    )


# -- several ----------------------------------------------------------------


def fits(
    contents: flavor_specs.FlavorContents,
    host: Devices,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a host's devices, empty, may serve all groups."""
    return _FeasibilitySearch(contents, host, types).run()


class _FeasibilitySearch:
    """Backtracking search for a device of a host for each group."""

    def __init__(
        self,
        contents: flavor_specs.FlavorContents,
        host: Devices,
        types: offered_devices.VgpuTypes,
    ) -> None:
        self._contents = contents
        self._host = host
        self._types = types
        self._groups = sorted(contents.groups, key=_sort_key)
        self._can_serve = [
            [can_serve(device, group, types) for device in host]
            for group in self._groups
        ]
        self._nodes = {n for d in host for n in numa_nodes(d)}
        self._tries = 0

    def run(self) -> bool:
        return self._search([])

    def _search(self, chosen: list[int]) -> bool:
        position = len(chosen)
        if position == len(self._groups):
            return True
        is_same = position and _sort_key(self._groups[position]) == _sort_key(
            self._groups[position - 1]
        )
        for index in range(chosen[-1] if is_same else 0, len(self._host)):
            self._tries += 1
            if self._tries > _TRIES:
                return True
            if not self._can_serve[position][index]:
                continue
            extended = [*chosen, index]
            if self._is_allowed(extended) and self._search(extended):
                return True
        return False

    def _is_allowed(self, chosen: list[int]) -> bool:
        new = chosen[-1]
        return (
            all(self._may_join(old, new) for old in chosen[:-1])
            and self._is_near(chosen)
            and self._has_room(chosen, new)
        )

    def _may_join(self, old: int, new: int) -> bool:
        if self._contents.is_isolated and old == new:
            return False
        return not topology.explain_mismatch(
            self._contents.policy.locality, self._host[old], self._host[new]
        )

    def _is_near(self, chosen: list[int]) -> bool:
        """Return whether the guest's NUMA nodes suffice for the devices."""
        if self._contents.policy.numa is not flavors.NumaPolicy.REQUIRED:
            return True
        if len(self._nodes) < 2:  # noqa: PLR2004
            return True
        node_sets = [numa_nodes(self._host[index]) for index in chosen]
        return all(node_sets) and len(frozenset().union(*node_sets)) <= (
            self._contents.numa_cells or 1
        )

    def _has_room(self, chosen: list[int], index: int) -> bool:
        """Return whether a device has room for all groups it serves."""
        device = self._host[index]
        served = [
            group
            for group, choice in zip(self._groups, chosen, strict=False)
            if choice == index
        ]
        needed: dict[str, int] = {}
        for group in served:
            for name, amount in group.resources.items():
                needed[name] = needed.get(name, 0) + amount
        return all(
            device.capacities[name].total >= amount
            for name, amount in needed.items()
        ) and self._can_hold_types(device, served)

    def _can_hold_types(
        self,
        device: offered_devices.OfferedDevice,
        served: Sequence[flavors.RequestGroup],
    ) -> bool:
        """Return whether a card can have vGPUs of these types together."""
        counts: dict[tuple[int, str], int] = {}
        for group in served:
            for vgpu_type in filter(
                None, map(self._types.find, group.required)
            ):
                kind = vgpu_type.framebuffer_mb, vgpu_type.instance
                count = group.resources.get(names.GPU_CLASS, 1)
                counts[kind] = counts.get(kind, 0) + count
                most = offered_devices.max_partitions(device, vgpu_type)
                if most is not None and counts[kind] > most:
                    return False
        is_equal = names.layout_trait("equal") in device.traits
        return len(counts) < 2 or not is_equal  # noqa: PLR2004


def _sort_key(group: flavors.RequestGroup) -> tuple[object, ...]:
    """Return the sort key of a group; equal groups have equal keys."""
    return (
        sorted(group.resources.items()),
        sorted(group.required),
        sorted(group.forbidden),
    )


# -- locality ---------------------------------------------------------------


def numa_nodes(device: offered_devices.OfferedDevice) -> frozenset[str]:
    """Return the NUMA node of a device, empty if it is unknown."""
    return topology.trait_values(device.traits, names.NUMA_PREFIX)


# -- how many servers fit now -----------------------------------------------


def count_room(
    contents: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    needs: Mapping[str, int],
) -> int:
    """Return how many servers there is room for now, at most.

    By inventories only: geometry may allow fewer. The group without a
    suffix, which several devices may serve together, is ignored.

    :param needs: amounts of a server on its compute node, by class.
    """
    count = 0
    contents = select_suffixed(contents)
    for host in group_by_host(cloud.devices):
        host_count = sum(
            _count_set_room(contents, devices)
            for devices in _split_host(contents, host)
        )
        node = cloud.hosts.get(host[0].root, {})
        for name, amount in needs.items():
            if amount and name in node:
                host_count = min(host_count, node[name].free // amount)
        count += host_count
    return count


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
    contents: flavor_specs.FlavorContents, devices: Devices
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
        free = [count_free(device, same[0]) for device in devices]
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
