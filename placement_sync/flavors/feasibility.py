# SPDX-License-Identifier: Apache-2.0
"""Feasibility of a flavor: can any host ever serve it?

A refused flavor does not fit on any empty host. An accepted flavor may still
find no host: geometry and present usage are not considered.
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

# NVIDIA, "Multiple vGPU": the maximum in one virtual machine.
MAX_VGPUS = 16


def explain_infeasibility(
    contents: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why no host can ever serve a flavor, or ""."""
    contents = feasibility_search.select_suffixed(contents)
    if not contents.groups:
        return ""
    return (
        _explain_display(contents)
        or _explain_nvidia_mix(contents.groups, types)
        or _explain_groups(contents.groups, cloud, types)
        or _explain_host(contents, cloud, types)
    )


def _explain_display(contents: flavor_specs.FlavorContents) -> str:
    """Return the reason if a display is requested without a vGPU."""
    vgpu_classes = {names.GPU_CLASS, names.MDEV_CLASS}
    if not contents.options.has_display or any(
        vgpu_classes & group.resources.keys() for group in contents.groups
    ):
        return ""
    return (
        "accelerator:display=on: only a vGPU can be a console of the guest,"
        " and the flavor requests none; remove the extra spec"
    )


def _explain_nvidia_mix(
    groups: Sequence[flavors.RequestGroup], types: offered_devices.VgpuTypes
) -> str:
    """Return why NVIDIA's driver refuses these vGPUs in one server.

    All vGPUs must be of one board and one series, and at most MAX_VGPUS
    (NVIDIA AI Enterprise, "Multiple vGPU"; sizes may differ).
    """
    nvidia = [g for g in groups if any(map(_is_nvidia, g.required))]
    count = sum(g.resources.get(names.GPU_CLASS, 0) for g in nvidia)
    if count > MAX_VGPUS:
        return (
            f"{count} vGPUs in one server: NVIDIA's driver supports at most"
            f" {MAX_VGPUS}; request fewer, larger vGPUs"
        )
    requested_types = [t for g in nvidia if (t := _find_vgpu_type(g, types))]
    boards = {vgpu_type.gpu: vgpu_type.name for vgpu_type in requested_types}
    if len(boards) > 1:
        return (
            f"{' and '.join(sorted(boards.values()))} in one server: all of"
            " its NVIDIA vGPUs must be of one model of card; choose one"
        )
    series = {
        letter: vgpu_type.name
        for vgpu_type in requested_types
        if (letter := offered_devices.series(vgpu_type.name))
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


def _find_vgpu_type(
    group: flavors.RequestGroup, types: offered_devices.VgpuTypes
) -> vgpu_types.CatalogVgpuType | None:
    return next((f for f in map(types.find, group.required) if f), None)


# -- each group on its own --------------------------------------------------


def _explain_groups(
    groups: Iterable[flavors.RequestGroup],
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why no device of the cloud can serve a group, or ""."""
    for group in groups:
        if not any(
            feasibility_search.can_serve(device, group, types)
            for device in cloud.devices
        ):
            return _explain_group(group, cloud.devices, types)
    return ""


def _explain_group(
    group: flavors.RequestGroup,
    devices: Sequence[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> str:
    name = lookup.describe_group(group, types)
    vgpu_type = _find_vgpu_type(group, types)
    pins = [t for t in group.required if t.startswith(names.PIN_PREFIX)]
    if pins:
        return _explain_pins(name, pins, devices)
    if vgpu_type is not None:
        models = types.models_of(vgpu_type)
        cards = [d for d in devices if d.model in models]
        if not cards:
            return _explain_model(name, vgpu_type, devices)
        if not any(d.is_mig == bool(vgpu_type.instance) for d in cards):
            return _explain_mode(name, vgpu_type)
    missing = sorted(
        trait
        for trait in group.required
        if not any(
            feasibility_search.can_have_trait(d, trait, types) for d in devices
        )
    )
    if missing:
        return (
            f"{name}: no device of any host has {', '.join(missing)}; see"
            " `nova-accel profile list`"
        )
    amounts = ", ".join(f"{n} {a}" for n, a in group.resources.items())
    return (
        f"{name}: no device of any host has {amounts} with all of"
        f" {', '.join(sorted(group.required)) or 'nothing'}; request less, or"
        " another profile of `nova-accel profile list`"
    )


def _explain_model(
    name: str,
    vgpu_type: vgpu_types.CatalogVgpuType,
    devices: Sequence[offered_devices.OfferedDevice],
) -> str:
    models = map(
        offered_devices.model_name, sorted(lookup.list_models(devices))
    )
    return (
        f"{name}: no host has a card of model {vgpu_type.gpu}; there are:"
        f" {', '.join(models) or 'none'}"
    )


def _explain_mode(name: str, vgpu_type: vgpu_types.CatalogVgpuType) -> str:
    if vgpu_type.instance:
        return (
            f"{name} needs a GPU instance, and no {vgpu_type.gpu} is in MIG"
            " mode; choose a time-sliced profile, or enable MIG mode"
        )
    return (
        f"{name} is time-sliced, and every {vgpu_type.gpu} is in MIG mode;"
        " choose a profile of a GPU instance, or disable MIG mode"
    )


def _explain_pins(
    name: str,
    pins: Sequence[str],
    devices: Sequence[offered_devices.OfferedDevice],
) -> str:
    pinned = [d.name for d in devices if d.traits & set(pins)]
    if not pinned:
        return (
            f"{name}: no device has {', '.join(sorted(pins))}; set the flavor"
            " again, with another --device or without"
        )
    return (
        f"{name}: {', '.join(pinned)} does not support it; choose a profile"
        " of this device (`nova-accel profile list --host`), or another"
        " device"
    )


# -- all groups on one host -------------------------------------------------


def _explain_host(
    contents: flavor_specs.FlavorContents,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why no host has devices for all groups, or ""."""
    hosts = feasibility_search.group_by_host(cloud.devices)
    if any(feasibility_search.fits(contents, host, types) for host in hosts):
        return ""
    relaxed = dataclasses.replace(
        contents,
        policy=flavors.SelectionPolicy(numa=flavors.NumaPolicy.NONE),
        is_isolated=False,
    )
    count = len(contents.groups)
    profiles = ", ".join(
        dict.fromkeys(lookup.describe_group(g, types) for g in contents.groups)
    )
    most = max(_count_served(relaxed, host, types) for host in hosts)
    if most < count:
        return (
            f"{count} devices ({profiles}) in one server: no host can provide"
            f" more than {most} of them; lower --count"
        )
    most = max(_count_served(contents, host, types) for host in hosts)
    rules = " and ".join(_list_rules(contents))
    return (
        f"{count} devices ({profiles}) in one server with {rules}: no host"
        f" can provide more than {most} of them; lower --count, or relax the"
        " rule"
    )


def _count_served(
    contents: flavor_specs.FlavorContents,
    host: Sequence[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> int:
    """Return how many of the first groups a host can serve together."""
    for count in range(len(contents.groups), 0, -1):
        fewer = dataclasses.replace(contents, groups=contents.groups[:count])
        if feasibility_search.fits(fewer, host, types):
            return count
    return 0


def _list_rules(contents: flavor_specs.FlavorContents) -> Iterator[str]:
    policy = contents.policy
    if policy.numa is flavors.NumaPolicy.REQUIRED:
        yield (
            f"numa_policy=required ({contents.numa_cells or 1} NUMA"
            f" node{'s' * ((contents.numa_cells or 1) > 1)})"
        )
    if policy.locality is not flavors.Locality.ANY:
        yield f"locality={policy.locality.value}"
    if contents.is_isolated:
        yield "group_policy=isolate"
