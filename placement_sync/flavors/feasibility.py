# SPDX-License-Identifier: Apache-2.0
"""Feasibility of a flavor: can any host ever serve it?

What is refused here no host can serve whoever else goes away; what is not
may still find none: geometry, and what runs now, count for nothing.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from nova_accel.catalog import vgpu_types
from nova_accel.model import flavors, names
from placement_sync.flavors import (
    feasibility_search,
    flavor_specs,
    lookup,
    offered_devices,
)

# NVIDIA, "Multiple vGPU": as many in one virtual machine.
MAX_VGPUS = 16


def objection(
    asked: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why no host can ever serve what a flavor asks, or nothing."""
    asked = feasibility_search.suffixed(asked)
    if not asked.groups:
        return ""
    return (
        _unshown(asked)
        or _mixture(asked.groups, types)
        or _alone(asked.groups, cloud, types)
        or _on_one_host(asked, cloud, types)
    )


def _unshown(asked: flavor_specs.FlavorContents) -> str:
    """Return that there is no vGPU to be the guest's console, or nothing."""
    makers = {names.GPU_CLASS, names.MDEV_CLASS}
    if not asked.options.has_display or any(
        makers & group.resources.keys() for group in asked.groups
    ):
        return ""
    return (
        "accelerator:display=on: only a vGPU can be a console of the guest,"
        " and the flavor asks for none; leave it away"
    )


def _mixture(
    groups: Sequence[flavors.RequestGroup], types: offered_devices.VgpuTypes
) -> str:
    """Return what NVIDIA's driver has against these vGPUs in one server.

    Their boards and their series must be the same, and there are so many
    at most (NVIDIA AI Enterprise, "Multiple vGPU"; sizes may differ).
    """
    found = [g for g in groups if any(map(_is_nvidia, g.required))]
    count = sum(g.resources.get(names.GPU_CLASS, 0) for g in found)
    if count > MAX_VGPUS:
        return (
            f"{count} vGPUs in one server: NVIDIA's driver takes"
            f" {MAX_VGPUS} at most; ask for fewer, larger ones"
        )
    known = [facts for g in found if (facts := _facts(g, types))]
    boards = {facts.gpu: facts.name for facts in known}
    if len(boards) > 1:
        return (
            f"{' and '.join(sorted(boards.values()))} in one server: all of"
            " its NVIDIA vGPUs must be of one model of card; choose one"
        )
    series = {
        mark: facts.name
        for facts in known
        if (mark := offered_devices.series(facts.name))
    }
    if len(series) > 1:
        return (
            f"{' and '.join(sorted(series.values()))} in one server: all of"
            " its NVIDIA vGPUs must be of one series"
            f" ({', '.join(sorted(series))}); choose one"
        )
    return ""


def _is_nvidia(trait: str) -> bool:
    return trait.startswith(offered_devices.NVIDIA_PREFIX)


def _facts(
    group: flavors.RequestGroup, types: offered_devices.VgpuTypes
) -> vgpu_types.CatalogVgpuType | None:
    return next((f for f in map(types.find, group.required) if f), None)


# -- each group for itself --------------------------------------------------


def _alone(
    groups: Iterable[flavors.RequestGroup],
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why a group finds no device anywhere, or nothing."""
    for group in groups:
        able = (feasibility_search.can(d, group, types) for d in cloud.devices)
        if not any(able):
            return _reason(group, cloud.devices, types)
    return ""


def _reason(
    group: flavors.RequestGroup,
    devices: Sequence[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> str:
    name = lookup.say(group, types)
    facts = _facts(group, types)
    pins = [t for t in group.required if t.startswith(names.PIN_PREFIX)]
    if pins:
        return _pinned(name, pins, devices)
    if facts is not None:
        wanted = types.models_of(facts)
        cards = [d for d in devices if d.model in wanted]
        if not cards:
            return _no_model(name, facts, devices)
        if not any(d.is_mig == bool(facts.instance) for d in cards):
            return _other_mode(name, facts)
    lacking = sorted(
        trait
        for trait in group.required
        if not any(
            feasibility_search.may_have(d, trait, types) for d in devices
        )
    )
    if lacking:
        return (
            f"{name}: no device of any host has {', '.join(lacking)}; see"
            " `nova-accel profile list`"
        )
    amounts = ", ".join(f"{n} {a}" for n, a in group.resources.items())
    return (
        f"{name}: no device of any host has {amounts} with all of"
        f" {', '.join(sorted(group.required)) or 'nothing'}; ask for less, or"
        " name another one of `nova-accel profile list`"
    )


def _no_model(
    name: str,
    facts: vgpu_types.CatalogVgpuType,
    devices: Sequence[offered_devices.OfferedDevice],
) -> str:
    there = map(offered_devices.spoken_model, sorted(lookup.models(devices)))
    return (
        f"{name}: no host has a card of model {facts.gpu}; there are:"
        f" {', '.join(there) or 'none'}"
    )


def _other_mode(name: str, facts: vgpu_types.CatalogVgpuType) -> str:
    if facts.instance:
        return (
            f"{name} stands in a GPU instance, and no {facts.gpu} is in MIG"
            " mode; choose a time-sliced profile, or turn MIG on"
        )
    return (
        f"{name} is time-sliced, and every {facts.gpu} is in MIG mode; choose"
        " a profile that stands in a GPU instance, or turn MIG off"
    )


def _pinned(
    name: str,
    pins: Sequence[str],
    devices: Sequence[offered_devices.OfferedDevice],
) -> str:
    found = [d.name for d in devices if d.traits & set(pins)]
    if not found:
        return (
            f"{name}: no device has {', '.join(sorted(pins))}; set the flavor"
            " anew with --device, or without"
        )
    return (
        f"{name}: {', '.join(found)} can't give it; choose what this device"
        " makes (`nova-accel profile list --host`), or another device"
    )


# -- all groups on one host -------------------------------------------------


def _on_one_host(
    asked: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why no host has devices for all groups, or nothing."""
    hosts = feasibility_search.hosts(cloud.devices)
    if any(feasibility_search.fits(asked, host, types) for host in hosts):
        return ""
    usual = dataclasses.replace(
        asked,
        placing=flavors.PlacementPolicy(numa=flavors.NumaPolicy.NONE),
        is_isolated=False,
    )
    count = len(asked.groups)
    names_ = ", ".join(
        dict.fromkeys(lookup.say(g, types) for g in asked.groups)
    )
    most = max(_most(usual, host, types) for host in hosts)
    if most < count:
        return (
            f"{count} devices ({names_}) in one server: the most that any"
            f" host can give of them is {most}; lower --count"
        )
    most = max(_most(asked, host, types) for host in hosts)
    rules = " and ".join(_rules(asked))
    return (
        f"{count} devices ({names_}) in one server with {rules}: the most"
        f" that any host can give so is {most}; lower --count, or relax that"
    )


def _most(
    asked: flavor_specs.FlavorContents,
    host: Sequence[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> int:
    """Return how many of the groups a host can serve, the first ones."""
    for count in range(len(asked.groups), 0, -1):
        fewer = dataclasses.replace(asked, groups=asked.groups[:count])
        if feasibility_search.fits(fewer, host, types):
            return count
    return 0


def _rules(asked: flavor_specs.FlavorContents) -> Iterator[str]:
    placing = asked.placing
    if placing.numa is flavors.NumaPolicy.REQUIRED:
        yield (
            f"numa_policy=required ({asked.cells or 1} NUMA"
            f" node{'s' * ((asked.cells or 1) > 1)})"
        )
    if placing.locality is not flavors.Locality.ANY:
        yield f"locality={placing.locality.value}"
    if asked.is_isolated:
        yield "group_policy=isolate"
