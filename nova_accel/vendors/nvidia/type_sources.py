# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU types, merged from kernel, NVML, XML and catalog.

- The kernel lists the types of a card and those that it can create now;
  with mdevs, also their framebuffer and limit.
- NVML reports the same for the whole card.
- ``vgpuConfig.xml``, which the host driver ships, has the same.
- The catalog has the placements of mixed sizes and the GPU instances.

The sources have only the names of types in common.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.host import nvml_gpus
from nova_accel.model import names

# More types than a host's cards have; each pass looks for all of them.
_MAX_TYPES = 1024
# Compute slices in the name of a kind of GPU instance, before "g.".
_SLICES = re.compile(r"[0-9]{1,2}")
_NO_DESCRIPTION = mdev_names.TypeDescription()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferedType:
    """A type as the kernel shows it on a card's parents.

    ``name`` is without brand. ``ready`` is how many more can be created:
    the number that the card states, or the number of VFs that list the
    type. ``handles`` are its ids by parent. ``kernel`` is the description
    in sysfs, ``xml`` that in vgpuConfig.xml. ``gap`` says why the type
    can't be offered, empty if it can.
    """

    name: str
    ready: int = 0
    handles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device_api: str = ""
    kernel: mdev_names.TypeDescription = _NO_DESCRIPTION
    xml: mdev_names.TypeDescription = _NO_DESCRIPTION
    gap: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypeProperties:
    """A type with the data of all sources; 0 and None mean unknown.

    ``size`` is the framebuffer in MiB. ``limit`` is the maximum on a card
    in equal-size mode, ``limit_mixed`` in mixed-size mode. The rest is as
    in ``model.Profile``.
    """

    size: int = 0
    limit: int | None = None
    limit_mixed: int | None = None
    span: int = 0
    starts: tuple[int, ...] = ()
    instance: str = ""
    per_instance: int = 1


# A card's types by name.
Types = Mapping[str, tuple[OfferedType, TypeProperties]]


def merge(
    offer: OfferedType,
    nvml: nvml_gpus.NvmlVgpuType | None,
    *,
    has_placements: bool = False,
) -> TypeProperties:
    """Return the properties of a type; kernel before NVML, XML, catalog.

    :param nvml: NVML's data of the type, None if it has none.
    :param has_placements: whether NVML reports placements for the card, so
        that those of the catalog are ignored.
    """
    catalog_type = _find_catalog_type(offer.name)
    span, limit_mixed = 0, None
    starts: tuple[int, ...] = ()
    if has_placements:
        if nvml is not None and nvml.starts:
            span, starts = nvml.span, nvml.starts
            limit_mixed = vgpu_types.compute_mixed_limit(starts, span)
    elif catalog_type is not None:
        span, starts = catalog_type.span, catalog_type.starts_mixed
        limit_mixed = catalog_type.limit_mixed
    return TypeProperties(
        size=_first_nonzero(
            offer.kernel.memory_mb,
            nvml.framebuffer_mb if nvml else None,
            offer.xml.memory_mb,
            catalog_type.framebuffer_mb if catalog_type else None,
        )
        or mdev_names.parse_size(offer.name)
        or 0,
        limit=_first_nonzero(
            offer.kernel.max_instances,
            nvml.max_instances if nvml else None,
            offer.xml.max_instances,
            catalog_type.limit if catalog_type else None,
            most=mdev_names.MAX_INSTANCES,
        ),
        limit_mixed=limit_mixed,
        span=span,
        starts=starts,
        instance=_get_instance_kind(offer.name, nvml, catalog_type),
        per_instance=_get_per_instance(nvml, catalog_type),
    )


@functools.lru_cache(_MAX_TYPES)
def _find_catalog_type(name: str) -> vgpu_types.CatalogVgpuType | None:
    """Return the catalog's entry of a type, or of one of its size."""
    catalog = loader.load()
    type_names = (name, *mdev_names.list_series_names(name))
    return next((f for f in map(catalog.find, type_names) if f), None)


def _first_nonzero(*values: int | None, most: int | None = None) -> int | None:
    """Return the first number above zero, None if there is none.

    :param most: larger ones are skipped.
    """
    for value in values:
        if value and value > 0 and (most is None or value <= most):
            return value
    return None


def _get_instance_kind(
    name: str,
    nvml: nvml_gpus.NvmlVgpuType | None,
    catalog_type: vgpu_types.CatalogVgpuType | None,
) -> str:
    # NVML may report a type without its kind of GPU instance.
    if nvml is not None and nvml.instance:
        return nvml.instance
    if catalog_type is not None:
        return catalog_type.instance
    return mdev_names.parse_instance_kind(name)


def _get_per_instance(
    nvml: nvml_gpus.NvmlVgpuType | None,
    catalog_type: vgpu_types.CatalogVgpuType | None,
) -> int:
    if nvml is not None and (nvml.instance or catalog_type is None):
        return max(1, nvml.per_instance)
    return catalog_type.per_instance if catalog_type else 1


def count_slices(
    properties: TypeProperties, kinds: Iterable[model.InstanceKind]
) -> int:
    """Return the compute slices that one vGPU has exclusively.

    0 if several vGPUs share a GPU instance.
    """
    if not properties.instance or properties.per_instance != 1:
        return 0
    for kind in kinds:
        if kind.name == properties.instance:
            return kind.slices
    count = properties.instance.partition("g.")[0]
    return int(count) if _SLICES.fullmatch(count) else 0


def compute_charges(
    properties: TypeProperties, counters: Iterable[str], taken_slices: int
) -> dict[str, int]:
    """Return the amounts that one vGPU takes, by resource class."""
    charges = {names.GPU_CLASS: 1}
    amounts = {
        names.GPU_MEMORY_CLASS: properties.size,
        names.MIG_SLICE_CLASS: taken_slices,
    }
    for name in counters:
        if amounts.get(name):
            charges[name] = amounts[name]
    return charges


def compute_memory_total(
    offers: Types, existing: Iterable[str], base: int
) -> int:
    """Return a card's framebuffer in MiB, 0 if it is unknown.

    A type whose size times limit is the card's framebuffer gives all of it.
    If no limit is known, existing and creatable vGPUs must fit, so that
    Placement does not refuse a vGPU that the driver would create.

    :param existing: the types of existing vGPUs.
    :param base: the nominal size of the model, 0 if it is not known.
    """
    properties = {
        name: fact for name, (_, fact) in offers.items() if fact.size
    }
    if not properties:
        return 0
    named = max(f.size * (f.limit or 1) for f in properties.values())
    if base or any(f.limit for f in properties.values()):
        return max(base, named)
    sizes = [properties[name].size for name in existing if name in properties]
    if not sizes:
        return named
    creatable = max(
        offers[name][0].ready * f.size for name, f in properties.items()
    )
    return max(named, sum(sizes) + creatable)
