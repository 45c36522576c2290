# SPDX-License-Identifier: Apache-2.0
"""Empty vGPU card of a model, from the catalog.

For those that have no access to the card: its placements are the catalog's.
"""

from collections.abc import Mapping

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.model import names

# Units of each resource class.
Capacity = tuple[tuple[str, int], ...]
# An ``available`` above what any device can make, so that it limits nothing.
_PLENTY = 1 << 16
_ADDRESS = "card"


def build_empty_card(
    catalog: vgpu_types.Catalog,
    key: str,
    layout: model.Layout,
    capacity: Capacity,
) -> model.Device:
    """Return an empty card of a model.

    :param key: the catalog's key of the model.
    :param capacity: allocatable units, as in the provider's inventories.
    """
    gpu = catalog.gpu(key)
    counters = dict(capacity)
    if layout is model.Layout.MIG and gpu is not None:
        # Types that share a GPU instance charge no slices, so an operator's
        # ``reserved`` of slices does not limit the geometry.
        slices = counters.get(names.MIG_SLICE_CLASS, 0)
        counters[names.MIG_SLICE_CLASS] = max(slices, gpu.mig_slices)
    # In a mode with fewer partitions the inventory's total is lower.
    slots = counters.get(names.GPU_CLASS, vgpu_types.MAX_TIME_SLICED)
    profiles: dict[tuple[int, str], model.Profile] = {}
    for vgpu_type in catalog.profiles_of(key):
        if bool(vgpu_type.instance) == (layout is model.Layout.MIG):
            charges = {
                name: amount
                for name, amount in catalog.charges(vgpu_type).items()
                if name in counters
            }
            size = vgpu_type.framebuffer_mb, vgpu_type.instance
            profiles.setdefault(
                size, _build_profile(vgpu_type, layout, charges)
            )
    return model.Device(
        address=_ADDRESS,
        plugin="",
        technology="",
        vendor="",
        model=key,
        resource_class=names.GPU_CLASS,
        counters=counters,
        slots=names.slot_names(max(slots, 1)),
        profiles=tuple(profiles.values()),
        geometry=_build_geometry(layout, gpu),
    )


def _build_geometry(
    layout: model.Layout, gpu: vgpu_types.CatalogGpu | None
) -> model.Geometry:
    """Return the geometry of an empty card.

    In MIG mode GPU instances are assumed to be created with claims, as the
    scheduler does not know the existing ones.
    """
    is_mig = layout is model.Layout.MIG
    region = 0
    if gpu is not None:
        region = gpu.mig_region if is_mig else gpu.region
    return model.Geometry(
        layout=layout,
        region=region if layout is not model.Layout.EQUAL else 0,
        kinds=gpu.kinds if gpu and is_mig else (),
        is_dynamic=is_mig,
    )


def _build_profile(
    vgpu_type: vgpu_types.CatalogVgpuType,
    layout: model.Layout,
    charges: Mapping[str, int],
) -> model.Profile:
    is_mixed = layout is model.Layout.MIXED
    limits = [vgpu_type.limit, vgpu_type.limit_mixed if is_mixed else None]
    return model.Profile(
        name=vgpu_type.name,
        trait=vgpu_type.trait,
        charges=charges,
        available=_PLENTY,
        size=vgpu_type.framebuffer_mb,
        limit=min(n for n in limits if n is not None),
        span=vgpu_type.span if is_mixed else 0,
        starts=vgpu_type.starts_mixed if is_mixed else (),
        instance=vgpu_type.instance,
        per_instance=vgpu_type.per_instance,
    )
