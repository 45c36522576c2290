# SPDX-License-Identifier: Apache-2.0
"""Feasibility of a flavor's groups on one host."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel.geometry import topology
from nova_accel.model import flavors, names
from placement_sync.flavors import flavor_specs, offered_devices

# Tries after which a search gives up; then nothing is known, and nothing
# is refused. A server has a handful of devices, a host some dozens.
_TRIES = 20_000

Devices = Sequence[offered_devices.OfferedDevice]


def hosts(
    devices: Iterable[offered_devices.OfferedDevice],
) -> list[list[offered_devices.OfferedDevice]]:
    """Return devices by host."""
    found: dict[str, list[offered_devices.OfferedDevice]] = {}
    for device in devices:
        found.setdefault(device.root, []).append(device)
    return list(found.values())


# -- one device -------------------------------------------------------------


def can(
    device: offered_devices.OfferedDevice,
    group: flavors.RequestGroup,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a device, empty and in order, may serve a group."""
    return (
        all(
            name in device.stock and device.stock[name].total >= amount
            for name, amount in group.resources.items()
        )
        and not group.forbidden & (device.traits - offered_devices.OUT)
        and all(may_have(device, trait, types) for trait in group.required)
    )


def may_have(
    device: offered_devices.OfferedDevice,
    trait: str,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a device has a trait, or may have it when empty."""
    if trait in device.traits:
        return True
    if trait.startswith(names.FUNCTION_PREFIX):
        return names.PROGRAMMABLE_TRAIT in device.traits
    if not trait.startswith(names.PROFILE_PREFIXES):
        return False
    facts = types.find(trait)
    if facts is not None:
        return types.makes(device, facts)
    # Of what nobody lists: a card that makes something now makes that.
    return not types.knows(device) and not any(
        held.startswith(names.PROFILE_PREFIXES) for held in device.traits
    )


def can_now(
    device: offered_devices.OfferedDevice, group: flavors.RequestGroup
) -> int:
    """Return for how many servers' groups a device has room, at most."""
    if (
        device.is_out
        or not group.required <= device.traits
        or group.forbidden & device.traits
    ):
        return 0
    return min(
        (
            device.stock[name].left // amount if name in device.stock else 0
            for name, amount in group.resources.items()
            if amount
        ),
        default=0,
    )


def suffixed(
    asked: flavor_specs.FlavorContents,
) -> flavor_specs.FlavorContents:
    """Return the groups that one device each has to serve."""
    return dataclasses.replace(
        asked, groups=tuple(g for g in asked.groups if g.suffix)
    )


# -- several ----------------------------------------------------------------


def fits(
    asked: flavor_specs.FlavorContents,
    host: Devices,
    types: offered_devices.VgpuTypes,
) -> bool:
    """Return whether a host's devices, empty, may serve all groups."""
    return _FeasibilitySearch(asked, host, types).run()


class _FeasibilitySearch:
    """Tries the devices of a host for each group, one after the other."""

    def __init__(
        self,
        asked: flavor_specs.FlavorContents,
        host: Devices,
        types: offered_devices.VgpuTypes,
    ) -> None:
        self._asked = asked
        self._host = host
        self._types = types
        self._groups = sorted(asked.groups, key=_alike)
        self._able = [
            [can(device, group, types) for device in host]
            for group in self._groups
        ]
        self._nodes = {n for d in host for n in nodes(d)}
        self._tries = 0

    def run(self) -> bool:
        return self._search([])

    def _search(self, chosen: list[int]) -> bool:
        at = len(chosen)
        if at == len(self._groups):
            return True
        is_same = at and _alike(self._groups[at]) == _alike(
            self._groups[at - 1]
        )
        for index in range(chosen[-1] if is_same else 0, len(self._host)):
            self._tries += 1
            if self._tries > _TRIES:
                return True
            if not self._able[at][index]:
                continue
            more = [*chosen, index]
            if self._is_allowed(more) and self._search(more):
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
        if self._asked.is_isolated and old == new:
            return False
        return not topology.between(
            self._asked.placing.locality, self._host[old], self._host[new]
        )

    def _is_near(self, chosen: list[int]) -> bool:
        """Return whether devices are on as many NUMA nodes as a guest."""
        if self._asked.placing.numa is not flavors.NumaPolicy.REQUIRED:
            return True
        if len(self._nodes) < 2:  # noqa: PLR2004
            return True
        each = [nodes(self._host[index]) for index in chosen]
        return all(each) and len(frozenset().union(*each)) <= (
            self._asked.cells or 1
        )

    def _has_room(self, chosen: list[int], index: int) -> bool:
        """Return whether a device has room for all groups it serves."""
        device = self._host[index]
        mine = [
            group
            for group, where in zip(self._groups, chosen, strict=False)
            if where == index
        ]
        needed: dict[str, int] = {}
        for group in mine:
            for name, amount in group.resources.items():
                needed[name] = needed.get(name, 0) + amount
        return all(
            device.stock[name].total >= amount
            for name, amount in needed.items()
        ) and self._is_holdable(device, mine)

    def _is_holdable(
        self,
        device: offered_devices.OfferedDevice,
        mine: Sequence[flavors.RequestGroup],
    ) -> bool:
        """Return whether a card may hold vGPUs of these types at once."""
        counts: dict[tuple[int, str], int] = {}
        for group in mine:
            for facts in filter(None, map(self._types.find, group.required)):
                kind = facts.framebuffer_mb, facts.instance
                more = group.resources.get(names.GPU_CLASS, 1)
                counts[kind] = counts.get(kind, 0) + more
                most = offered_devices.limit(device, facts)
                if most is not None and counts[kind] > most:
                    return False
        is_equal = names.layout_trait("equal") in device.traits
        return len(counts) < 2 or not is_equal  # noqa: PLR2004


def _alike(group: flavors.RequestGroup) -> tuple[object, ...]:
    """Return by what groups are sorted; equals ask for the same."""
    return (
        sorted(group.resources.items()),
        sorted(group.required),
        sorted(group.forbidden),
    )


# -- where devices stand ----------------------------------------------------


def nodes(device: offered_devices.OfferedDevice) -> frozenset[str]:
    """Return the NUMA node that a device is on, none if it is not told."""
    return topology.told(device.traits, names.NUMA_PREFIX)


# -- how many servers fit now -----------------------------------------------


def room(
    asked: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    needs: Mapping[str, int],
) -> int:
    """Return for how many servers there is room now, at most.

    Counters only: geometry may say less. A group without a suffix, which
    several devices may serve together, counts for nothing.

    :param needs: what a server takes of its compute node, by class.
    """
    count = 0
    asked = suffixed(asked)
    for host in hosts(cloud.devices):
        found = sum(_room(asked, each) for each in _sets(asked, host))
        beside = cloud.hosts.get(host[0].root, {})
        for name, amount in needs.items():
            if amount and name in beside:
                found = min(found, beside[name].left // amount)
        count += found
    return count


def _sets(
    asked: flavor_specs.FlavorContents, host: Devices
) -> Iterator[Devices]:
    """Yield sets of devices of which no server has some of two."""
    wanted = asked.placing.locality
    is_near = asked.placing.numa is flavors.NumaPolicy.REQUIRED
    if is_near and (asked.cells or 1) == 1:
        wanted = flavors.Locality.NUMA
    if wanted in (flavors.Locality.ANY, flavors.Locality.DIFFERENT_CARD):
        yield host
        return
    left = list(host)
    while left:
        found, todo = [], [left.pop(0)]
        while todo:
            one = todo.pop()
            found.append(one)
            near = [d for d in left if not topology.between(wanted, one, d)]
            left = [two for two in left if two not in near]
            todo += near
        yield found


def _room(asked: flavor_specs.FlavorContents, devices: Devices) -> int:
    """Return for how many servers these devices have room, at most."""
    is_apart = (
        asked.is_isolated
        or asked.placing.locality is flavors.Locality.DIFFERENT_CARD
    )
    found = []
    groups = sorted(asked.groups, key=_alike)
    for _, alike in itertools.groupby(groups, key=_alike):
        same = list(alike)
        free = [can_now(device, same[0]) for device in devices]
        found.append(servers(free, len(same), is_apart))
    return min(found, default=0)


def servers(free: Sequence[int], count: int, is_apart: bool) -> int:
    """Return how many servers with so many parts each there is room for.

    :param free: the parts that each card has.
    :param is_apart: whether a server takes one part of each card at most.
    """
    most = sum(free) // count
    if is_apart:
        while most and sum(min(n, most) for n in free) < count * most:
            most -= 1
    return most
