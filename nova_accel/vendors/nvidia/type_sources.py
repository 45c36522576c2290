# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU types, merged from kernel, NVML, XML and catalogue.

The kernel tells which a card has and which it can make now, and with
mdevs their framebuffer and limit; NVML tells the same for the whole card,
and so does the table that the host driver ships; the catalogue tells how
types share a card. They agree on names only.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.host.nvml import gpu_reader
from nova_accel.model import names

_SILENCE = mdev_names.TypeDescription()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferedType:
    """A type as a card's parents show it.

    ``name`` is without brand. ``ready`` is the parents' own word of how
    many more can be made: of a card the number it states, of VFs how many
    would make one. ``handles`` are its ids by parent. ``said`` is what
    the kernel says of it, ``written`` what the host driver's own table of
    types does. ``gap`` tells why it can't be offered, empty if it can.
    """

    name: str
    ready: int = 0
    handles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device_api: str = ""
    said: mdev_names.TypeDescription = _SILENCE
    written: mdev_names.TypeDescription = _SILENCE
    gap: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypeProperties:
    """A type as all sources together describe it; 0 and None: unknown.

    ``size`` is the framebuffer in MiB, ``limit`` the card's when all have
    this size; the rest as in ``model.Profile``.
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


def gather(
    offer: OfferedType,
    told: gpu_reader.NvmlVgpuType | None,
    *,
    has_places: bool = False,
) -> TypeProperties:
    """Return the facts of a type, the nearest source first.

    :param told: what NVML says of it.
    :param has_places: whether NVML has places of the card's types, so that
        those of the catalogue do not count.
    """
    listed = _listed(offer.name)
    span, limit_mixed = 0, None
    starts: tuple[int, ...] = ()
    if has_places:
        if told is not None and told.starts:
            span, starts = told.span, told.starts
            limit_mixed = min(
                vgpu_types.fit(starts, span), vgpu_types.MAX_TIME_SLICED
            )
    elif listed is not None:
        span, starts = listed.span, listed.starts_mixed
        limit_mixed = listed.limit_mixed
    return TypeProperties(
        size=_first(
            offer.said.memory_mb,
            told.framebuffer_mb if told else None,
            offer.written.memory_mb,
            listed.framebuffer_mb if listed else None,
            mdev_names.named_size(offer.name),
        )
        or 0,
        limit=_first(
            offer.said.max_instances,
            told.max_instances if told else None,
            offer.written.max_instances,
            listed.limit if listed else None,
        ),
        limit_mixed=limit_mixed,
        span=span,
        starts=starts,
        instance=_instance(offer.name, told, listed),
        per_instance=_per_instance(told, listed),
    )


def _listed(name: str) -> vgpu_types.CatalogVgpuType | None:
    """Return what the catalogue lists for a type, or one of its size."""
    facts = loader.load()
    names = (name, *mdev_names.same_size(name))
    return next((f for f in map(facts.find, names) if f), None)


def _first(*values: int | None) -> int | None:
    """Return the first number that says something."""
    return next((value for value in values if value), None)


def _instance(
    name: str,
    told: gpu_reader.NvmlVgpuType | None,
    listed: vgpu_types.CatalogVgpuType | None,
) -> str:
    # NVML may know a type and not the kind of instance it stands in.
    if told is not None and told.instance:
        return told.instance
    if listed is not None:
        return listed.instance
    return mdev_names.named_instance(name)


def _per_instance(
    told: gpu_reader.NvmlVgpuType | None,
    listed: vgpu_types.CatalogVgpuType | None,
) -> int:
    if told is not None and (told.instance or listed is None):
        return max(1, told.per_instance)
    return listed.per_instance if listed else 1


def slices(facts: TypeProperties, kinds: Iterable[model.InstanceKind]) -> int:
    """Return the compute slices that one vGPU has for itself.

    None of its own where several share an instance.
    """
    if not facts.instance or facts.per_instance != 1:
        return 0
    for kind in kinds:
        if kind.name == facts.instance:
            return kind.slices
    count = facts.instance.partition("g.")[0]
    return int(count) if count.isdecimal() else 0


def charges(
    facts: TypeProperties, counters: Iterable[str], taken_slices: int
) -> dict[str, int]:
    """Return what one vGPU takes of a card's counters."""
    found = {names.GPU_CLASS: 1}
    wanted = {
        names.GPU_MEMORY_CLASS: facts.size,
        names.MIG_SLICE_CLASS: taken_slices,
    }
    for name in counters:
        if wanted.get(name):
            found[name] = wanted[name]
    return found


def memory_total(offers: Types, held: Iterable[str], base: int) -> int:
    """Return a card's framebuffer in MiB, 0 if nothing tells it.

    Types that divide a card without a rest name all of it. Where nothing
    tells how many go, what is held and can be made must fit: Placement
    never withholds what the driver would make.

    :param held: the types of what is made.
    :param base: the nominal size of the model, 0 if it is not known.
    """
    facts = {name: fact for name, (_, fact) in offers.items() if fact.size}
    if not facts:
        return 0
    named = max(f.size * (f.limit or 1) for f in facts.values())
    if base or any(f.limit for f in facts.values()):
        return max(base, named)
    taken = [facts[name].size for name in held if name in facts]
    if not taken:
        return named
    more = max(offers[name][0].ready * f.size for name, f in facts.items())
    return max(named, sum(taken) + more)
