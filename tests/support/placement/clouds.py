# SPDX-License-Identifier: Apache-2.0
"""Small clouds as Placement has them, for calculations without an API.

A place is ``host/address@node``; the NUMA node is optional.
"""

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from nova_accel.catalog import loader
from nova_accel.model import names, providers
from placement_sync.fleet.flavors import offered_devices

HERE = "node1/0000:41:00.0@0"
STATE_TRAITS = names.UNAVAILABLE_TRAITS
_NONE: Mapping[str, int] = MappingProxyType({})


def root(host: str = "node1") -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, host))


def device(
    capacities: Mapping[str, int],
    model: str = "",
    traits: Iterable[str] = (),
    used: Mapping[str, int] = _NONE,
    at: str = HERE,
) -> offered_devices.OfferedDevice:
    """Return a device; a whole one has its model among its traits."""
    place, _, node = at.partition("@")
    host, _, address = place.partition("/")
    own = {f"{names.MODEL_PREFIX}{model}"} if model else set()
    where = {f"{names.NUMA_PREFIX}{node}"} if node else set()
    is_out = names.UNAVAILABLE_TRAITS & set(traits)
    return offered_devices.OfferedDevice(
        uuid=names.provider_uuid(root(host), address),
        name=names.provider_name(host, address),
        host=host,
        root=root(host),
        card=names.provider_uuid(root(host), address.partition("/")[0]),
        model=min(own, default=""),
        traits=frozenset({*traits, names.OWNER_TRAIT}) | own | where,
        capacities={
            name: providers.ClassCapacity(
                capacity=0 if is_out else n,
                used=used.get(name, 0),
                reserved=n if is_out else 0,
            )
            for name, n in capacities.items()
        },
    )


def gpu(
    model: str,
    sizes: Iterable[str] = (),
    *traits: str,
    layout: str = "equal",
    used: Mapping[str, int] = _NONE,
    at: str = HERE,
) -> offered_devices.OfferedDevice:
    """Return an NVIDIA card that can create these sizes, such as ``8Q``."""
    facts = loader.load().gpu(model)
    assert facts is not None
    is_mig = layout == "mig"
    mode = [
        vgpu_type
        for vgpu_type in loader.load().profiles_of(model)
        if bool(vgpu_type.instance) == is_mig
    ]
    capacities = {
        "VGPU": max(vgpu_type.limit for vgpu_type in mode),
        names.GPU_MEMORY_CLASS: facts.memory_mb,
    }
    if is_mig:
        capacities[names.MIG_SLICE_CLASS] = facts.mig_slices
    return device(
        capacities,
        f"NVIDIA_{model}",
        (
            *(names.custom_name("VGPU_NVIDIA", model, size) for size in sizes),
            names.layout_trait(layout),
            *traits,
        ),
        used,
        at,
    )


def region(
    function: str, *, number: int = 0, is_free: bool = True
) -> offered_devices.OfferedDevice:
    """Return a region of an FPGA that holds a function."""
    return device(
        {names.FPGA_CLASS: 1},
        traits=(
            names.fpga_function_trait(function),
            names.interface_trait("1face"),
            names.PROGRAMMABLE_TRAIT,
            *([names.REGION_TRAIT] if is_free else []),
        ),
        used={} if is_free else {names.FPGA_CLASS: 1},
        at=f"node1/{names.region_address('0000:05:00.0', number)}",
    )
