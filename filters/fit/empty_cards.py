# SPDX-License-Identifier: Apache-2.0
"""Empty cards as the catalogue describes them."""

from collections.abc import Mapping

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.model import names

# What a card has of each resource class.
Capacity = tuple[tuple[str, int], ...]

# What no device can make, a number that bounds nothing.
_PLENTY = 1 << 16
_ADDRESS = "card"


def build(
    known: vgpu_types.Catalog,
    key: str,
    layout: model.Layout,
    capacity: Capacity,
) -> model.Device:
    """Return an empty card of a model.

    :param known: the catalogue of GPUs and vGPU types.
    :param key: the catalogue's key of the model.
    """
    gpu = known.gpu(key)
    counters = dict(capacity)
    if layout is model.Layout.MIG and gpu is not None:
        # Types that share a GPU instance charge no slices, so what an
        # operator has reserved of these is no bound of the geometry.
        slices = counters.get(names.MIG_SLICE_CLASS, 0)
        counters[names.MIG_SLICE_CLASS] = max(slices, gpu.mig_slices)
    types = known.profiles_of(key)
    # Of a mode in which the card holds fewer, the total says so.
    slots = counters.get(names.GPU_CLASS, vgpu_types.MAX_TIME_SLICED)
    chosen: dict[tuple[int, str], model.Profile] = {}
    for one in types:
        if bool(one.instance) == (layout is model.Layout.MIG):
            charges = {
                name: amount
                for name, amount in known.charges(one).items()
                if name in counters
            }
            profile = _profile(one, layout, charges)
            chosen.setdefault((one.framebuffer_mb, one.instance), profile)
    return model.Device(
        address=_ADDRESS,
        plugin="",
        technology="",
        vendor="",
        model=key,
        resource_class=names.GPU_CLASS,
        counters=counters,
        slots=names.slot_names(max(slots, 1)),
        profiles=tuple(chosen.values()),
        geometry=_geometry(layout, gpu),
    )


def _geometry(
    layout: model.Layout, gpu: vgpu_types.CatalogGpu | None
) -> model.Geometry:
    """Return how partitions share the card.

    Instances of a card in MIG mode are taken for such as are made for
    claims: which of them exist nobody tells.
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


def _profile(
    one: vgpu_types.CatalogVgpuType,
    layout: model.Layout,
    charges: Mapping[str, int],
) -> model.Profile:
    is_mixed = layout is model.Layout.MIXED
    limits = [one.limit, one.limit_mixed if is_mixed else None]
    return model.Profile(
        name=one.name,
        trait=one.trait,
        charges=charges,
        available=_PLENTY,
        size=one.framebuffer_mb,
        limit=min(n for n in limits if n is not None),
        span=one.span if is_mixed else 0,
        starts=one.starts_mixed if is_mixed else (),
        instance=one.instance,
        per_instance=one.per_instance,
    )
