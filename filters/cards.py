# SPDX-License-Identifier: Apache-2.0
"""What a card can still make, told from Placement alone.

A scheduler never sees the card. What consumers hold of it tells the sizes
of its partitions, the catalogue how such sizes share a card; their places
nobody tells. So what is refused here fits in no arrangement at all, and
what is expected to remain is reckoned in the tightest one.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from filters import arrangements, offered
from nova_accel import catalogue, flavors, model, names, packing

# What no device can make, a number that bounds nothing.
_PLENTY = 1 << 16
_ADDRESS = "card"

# How many fewer of each size could be made afterwards: pairs of size in
# MiB and number, the largest size first. Less is better.
Loss = tuple[tuple[int, int], ...]
# Names of vGPU types, and how many of each.
More = tuple[tuple[str, int], ...]
# What a card has of each resource class.
Capacity = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A card as Placement tells of it, and what stands on it.

    ``gpu`` is the catalogue's key of the model; ``capacity`` what it has
    of each class, ``held`` how many partitions of which size in MiB and
    compute slices there are, ``sizes`` those of which the host said it
    could make one when it last looked. ``is_told`` is False where one
    consumer has several, maybe not of one size. Equal shapes are equal
    cards.
    """

    gpu: str
    layout: model.Layout
    capacity: Capacity
    held: tuple[tuple[int, int, int], ...]
    sizes: frozenset[int] = frozenset()
    is_told: bool = True


class Cards:
    """Reckons with cards whose model the catalogue knows.

    :param known: the catalogue of GPUs and vGPU types.
    """

    def __init__(self, known: catalogue.Catalogue) -> None:
        self._known = known
        self._by_trait = known.by_trait()
        # A cloud has few kinds of cards, in few states each.
        self._device = functools.lru_cache(maxsize=4096)(self._build)
        self._left = functools.lru_cache(maxsize=16384)(self._remaining)
        self._stood = functools.lru_cache(maxsize=16384)(self._stand)
        self._room = functools.lru_cache(maxsize=16384)(self._has_room)
        self._sizes = functools.lru_cache(maxsize=4096)(self._told_sizes)

    def wanted(
        self, group: flavors.RequestGroup
    ) -> catalogue.VgpuFacts | None:
        """Return the vGPU type that a group asks for, None if unknown."""
        found = [
            self._by_trait[trait]
            for trait in sorted(group.required)
            if trait in self._by_trait
        ]
        return found[0] if len(found) == 1 else None

    def shape(
        self, facts: offered.ProviderFacts, gpu: str
    ) -> Shape | None:
        """Return a provider as a card of a model.

        None where its layout is not told, or what stands on it can't be.

        :param gpu: the catalogue's key of the model.
        """
        layout = _layout(facts.traits)
        held = _held(facts, layout)
        if layout is None or held is None:
            return None
        return Shape(
            gpu=gpu,
            layout=layout,
            capacity=tuple(
                sorted((n, s.capacity) for n, s in facts.stock.items())
            ),
            held=held,
            is_told=layout is model.Layout.EQUAL
            or all(
                each.get(names.GPU_CLASS, 0) <= 1 for each in facts.held or ()
            ),
            sizes=self._sizes(facts.traits),
        )

    def _told_sizes(self, traits: frozenset[str]) -> frozenset[int]:
        return frozenset(
            self._by_trait[trait].framebuffer_mb
            for trait in traits
            if trait in self._by_trait
        )

    def has_room(self, shape: Shape, more: More) -> bool:
        """Return whether so many more may fit, in some arrangement.

        False is certain. True is not: their places are not known.
        """
        return not shape.is_told or self._room(shape, more)

    def _has_room(self, shape: Shape, more: More) -> bool:
        device = self._device(shape.gpu, shape.layout, shape.capacity)
        needed: dict[str, int] = {}
        for profile, count in self._all(device, shape, more):
            if profile is None:
                return True
            needed[profile.name] = needed.get(profile.name, 0) + count
        return arrangements.is_possible(device, needed)

    def loss(self, shape: Shape, more: More) -> Loss | None:
        """Return what a card could make less of, with so many more on it.

        What its host says that it can't make now it does not lose. What
        would stand in no arrangement that is known loses all. None where
        nothing can be told.
        """
        key = dataclasses.replace(
            shape,
            # How many there may be of all sizes together changes with what
            # stands there, and Placement counts it.
            capacity=tuple(
                one for one in shape.capacity if one[0] != names.GPU_CLASS
            ),
            sizes=frozenset(),
        )
        before, after = self._left(key, ()), self._left(key, more)
        if before is None:
            return None
        return tuple(
            (size, before[size] - (after or {}).get(size, 0))
            for size in sorted(shape.sizes, reverse=True)
            if before.get(size, 0) > (after or {}).get(size, 0)
        )

    def _all(
        self, device: model.Device, shape: Shape, more: More
    ) -> Iterator[tuple[model.Profile | None, int]]:
        """Yield what is to stand on a card, None for what nobody knows."""
        for size, slices, count in shape.held:
            yield _sized(device, size, slices), count
        for name, count in more:
            wanted = self._known.find(name)
            yield _alike(device, wanted) if wanted else None, count

    def _remaining(
        self, shape: Shape, more: More
    ) -> Mapping[int, int] | None:
        """Return how many more of each size fit beside all that is there.

        None where that does not fit in its tightest arrangement: then it
        stands otherwise, and nothing is known.
        """
        blank = self._device(shape.gpu, shape.layout, shape.capacity)
        standing: list[model.Profile] = []
        for profile, count in self._all(blank, shape, more):
            if profile is None:
                return None
            standing += [profile] * count
        standing.sort(key=lambda p: (-p.size, p.name))
        device = self._stood(
            shape.gpu,
            shape.layout,
            shape.capacity,
            tuple(profile.name for profile in standing),
        )
        if device is None:
            return None
        found: dict[int, int] = {}
        left = packing.remaining(device)
        for profile in device.profiles:
            most = max(found.get(profile.size, 0), left[profile.name])
            found[profile.size] = most
        return found

    def _stand(
        self,
        gpu: str,
        layout: model.Layout,
        capacity: Capacity,
        standing: tuple[str, ...],
    ) -> model.Device | None:
        """Return a card with all these on it, None if they don't fit."""
        if not standing:
            return self._device(gpu, layout, capacity)
        device = self._stood(gpu, layout, capacity, standing[:-1])
        if device is None:
            return None
        choice = packing.choose(device, standing[-1])
        if choice is None:
            return None
        return packing.assume(device, standing[-1], choice)

    def _build(
        self,
        key: str,
        layout: model.Layout,
        capacity: Capacity,
    ) -> model.Device:
        """Return an empty card of a model."""
        gpu = self._known.gpu(key)
        counters = dict(capacity)
        types = self._known.profiles_of(key)
        # Of a mode in which the card holds fewer, the total says so.
        slots = counters.get(names.GPU_CLASS, catalogue.MAX_TIME_SLICED)
        chosen: dict[tuple[int, str], model.Profile] = {}
        for one in types:
            if bool(one.instance) == (layout is model.Layout.MIG):
                charges = {
                    name: amount
                    for name, amount in self._known.charges(one).items()
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


def described(shape: Shape) -> str:
    """Return what stands on a card, in words."""
    return (
        ", ".join(
            f"{count} of {size} MB" for size, _, count in shape.held
        )
        or "nothing"
    ) + f" ({shape.layout.value} sizes)" * (
        shape.layout is not model.Layout.MIG
    )


def _geometry(
    layout: model.Layout, gpu: catalogue.GpuFacts | None
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
    one: catalogue.VgpuFacts,
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


_LAYOUTS = {names.layout_trait(one.value): one for one in model.Layout}


def _layout(traits: frozenset[str]) -> model.Layout | None:
    """Return the layout that a provider's traits tell, None if none."""
    found = [_LAYOUTS[trait] for trait in _LAYOUTS.keys() & traits]
    return found[0] if len(found) == 1 else None


def _held(
    facts: offered.ProviderFacts, layout: model.Layout | None
) -> tuple[tuple[int, int, int], ...] | None:
    """Return what stands on a card: size, slices and number of each.

    Where nobody has read what each consumer holds, a card in equal-size
    mode tells by its sums. None where it can't be told.
    """
    usages = facts.held
    if usages is None:
        used = {n: s.used for n, s in facts.stock.items() if s.used}
        if used and layout is not model.Layout.EQUAL:
            return None
        usages = (used,) if used else ()
    found: dict[tuple[int, int], int] = {}
    for usage in usages:
        count = usage.get(names.GPU_CLASS, 0)
        memory = usage.get(names.GPU_MEMORY_CLASS, 0)
        slices = usage.get(names.MIG_SLICE_CLASS, 0)
        if not count or memory % count or slices % count or not memory:
            return None
        size = memory // count, slices // count
        found[size] = found.get(size, 0) + count
    return tuple(
        (*size, found[size]) for size in sorted(found, reverse=True)
    )


def _sized(
    device: model.Device, size: int, slices: int
) -> model.Profile | None:
    """Return a profile that charges so much, None if that is not told.

    Types of one size may stand in GPU instances of several lengths.
    """
    found = [
        p
        for p in device.profiles
        if p.size == size
        and p.charges.get(names.MIG_SLICE_CLASS, 0) == slices
    ]
    kinds = [device.geometry.kind(p.instance) for p in found]
    alike = {kind and arrangements.footprint(kind) for kind in kinds}
    return found[0] if len(alike) == 1 else None


def _alike(
    device: model.Device, wanted: catalogue.VgpuFacts
) -> model.Profile | None:
    """Return the card's profile of a type's size, None if it has none."""
    return next(
        (
            p
            for p in device.profiles
            if p.size == wanted.framebuffer_mb
            and p.instance == wanted.instance
        ),
        None,
    )
