# SPDX-License-Identifier: Apache-2.0
"""vGPU geometry of a card, as far as Placement tells it.

A scheduler never sees the card. What consumers hold of it tells the sizes
of its partitions, the catalogue how such sizes share a card, and the
card's traits where they are (nova_accel.geometry.occupancy). Where these
add up to what is allocated, what will fit is computed as the host does it.
Otherwise a profile is refused only if it fits in no arrangement at all, and
what is expected to remain is reckoned in the tightest one. The host may have
other places than the catalogue: nothing is refused where its report says so.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from filters import provider_facts
from filters.fit import empty_cards, vgpu_feasibility
from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.model import flavors, names

# How many fewer of each size could be made afterwards: pairs of size in
# MiB and number, the largest size first. Less is better.
Loss = tuple[tuple[int, int], ...]
# Names of vGPU types, and how many of each, in the order of the groups.
More = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CardShape:
    """A card as Placement tells of it, and what stands on it.

    ``gpu`` is the catalogue's key of the model; ``capacity`` what it has
    of each class, ``held`` how many partitions of which size in MiB and
    compute slices there are, ``sizes`` those of which the host said it
    could make one when it last looked. ``is_told`` is False where one
    consumer has several, maybe not of one size, and where the host has
    places that the catalogue does not have. ``occupied`` is where
    these are, None where that is not known; ``waiting`` are earlier servers
    of the request, whose partitions the host will make next, in order;
    ``held`` includes them. Equal shapes are equal cards.
    """

    gpu: str
    layout: model.Layout
    capacity: empty_cards.Capacity
    held: tuple[tuple[int, int, int], ...]
    sizes: frozenset[int] = frozenset()
    is_told: bool = True
    occupied: occupancy.Occupancy | None = None
    waiting: tuple[More, ...] = ()


class VgpuGeometry:
    """Reckons with cards whose model the catalogue knows.

    :param known: the catalogue of GPUs and vGPU types.
    """

    def __init__(self, known: vgpu_types.Catalog) -> None:
        self._known = known
        self._by_trait = known.by_trait()
        # A cloud has few kinds of cards, in few states each.
        self._device = functools.lru_cache(maxsize=4096)(
            functools.partial(empty_cards.build, known)
        )
        self._left = functools.lru_cache(maxsize=16384)(self._remaining)
        self._stood = functools.lru_cache(maxsize=16384)(self._stand)
        self._room = functools.lru_cache(maxsize=16384)(self._has_room)
        self._fits = functools.lru_cache(maxsize=16384)(self._has_place)
        self._placed = functools.lru_cache(maxsize=16384)(self._place)
        self._occupied = functools.lru_cache(maxsize=16384)(
            occupancy.parse_traits
        )
        self._known_places = functools.lru_cache(maxsize=16384)(
            self._has_known_places
        )
        self._sizes = functools.lru_cache(maxsize=4096)(self._told_sizes)

    def wanted(
        self, group: flavors.RequestGroup
    ) -> vgpu_types.CatalogVgpuType | None:
        """Return the vGPU type that a group asks for, None if unknown."""
        found = [
            self._by_trait[trait]
            for trait in sorted(group.required)
            if trait in self._by_trait
        ]
        return found[0] if len(found) == 1 else None

    def shape(
        self,
        facts: provider_facts.ProviderFacts,
        gpu: str,
        siblings: Sequence[More] = (),
    ) -> CardShape | None:
        """Return a provider as a card of a model.

        None where its layout is not told, or what stands on it can't be.

        :param gpu: the catalogue's key of the model.
        :param siblings: what earlier servers of the request have of it.
        """
        layout = _layout(facts.traits)
        occupied = self.occupied(facts, siblings)
        if occupied is not None:
            facts = self._with_places(facts, siblings, occupied)
        held = _held(facts, layout)
        if layout is None or held is None:
            return None
        return CardShape(
            gpu=gpu,
            layout=layout,
            capacity=self._capacity(facts, occupied),
            held=held,
            is_told=self._known_places(facts.traits, layout)
            and (
                occupied is not None
                or layout is model.Layout.EQUAL
                or all(
                    each.get(names.GPU_CLASS, 0) <= 1
                    for each in facts.held or ()
                )
            ),
            sizes=self._sizes(facts.traits),
            occupied=occupied,
            waiting=tuple(siblings),
        )

    def _capacity(
        self,
        facts: provider_facts.ProviderFacts,
        occupied: occupancy.Occupancy | None,
    ) -> empty_cards.Capacity:
        """Return what a card has, with what its reserved places take."""
        found = collections.Counter(
            {name: stock.capacity for name, stock in facts.stock.items()}
        )
        for place in occupied.unallocated if occupied else ():
            kind = self._by_trait[place.trait]
            charges = self._charges(kind.name, place.count)
            found.update({n: charges[n] for n in charges.keys() & found})
        return tuple(sorted(found.items()))

    def _with_places(
        self,
        facts: provider_facts.ProviderFacts,
        siblings: Sequence[More],
        occupied: occupancy.Occupancy,
    ) -> provider_facts.ProviderFacts:
        """Return a provider with what its places charge, and siblings."""
        return dataclasses.replace(
            facts,
            held=(
                *(
                    self._charges(self._by_trait[p.trait].name, p.count)
                    for p in occupied.places
                ),
                *(
                    self._charges(*one)
                    for one in itertools.chain.from_iterable(siblings)
                ),
            ),
        )

    def occupied(
        self,
        facts: provider_facts.ProviderFacts,
        siblings: Sequence[More] = (),
    ) -> occupancy.Occupancy | None:
        """Return where a card's partitions are, if its traits tell all.

        They do if they add up to what is allocated, together with what the
        siblings have: Nova starts the servers of a request only after all
        of them are scheduled, so their host has not reported them.
        """
        if _layout(facts.traits) not in _PLACED_LAYOUTS:
            return None
        found = self._occupied(facts.traits)
        held = (name for each in facts.held or () for name in each)
        places = (*found.places, *found.unallocated)
        if not all(p.trait in self._by_trait for p in places) or not (
            facts.stock.keys() >= set(held)
        ):
            return None
        total: collections.Counter[str] = collections.Counter()
        for place in found.places:
            kind = self._by_trait[place.trait]
            total.update(self._charges(kind.name, place.count))
        for one in itertools.chain.from_iterable(siblings):
            total.update(self._charges(*one))
        used = {name: s.used for name, s in facts.stock.items() if s.used}
        is_all = {n: total[n] for n in facts.stock if total[n]} == used
        return found if is_all else None

    def _has_known_places(
        self, traits: frozenset[str], layout: model.Layout
    ) -> bool:
        """Return whether all partitions are where the catalogue has places.

        The host has those that NVML lists, which are others, or more, for
        some types.
        """
        found = self._occupied(traits)
        return all(
            place.start in starts
            for place in (*found.places, *found.unallocated)
            if (kind := self._by_trait.get(place.trait))
            and (starts := self._starts(kind, layout))
        )

    def _starts(
        self, kind: vgpu_types.CatalogVgpuType, layout: model.Layout
    ) -> tuple[int, ...]:
        """Return where partitions of a type may begin, none if unknown."""
        if layout is not model.Layout.MIG:
            return kind.starts_mixed
        gpu = self._known.gpu(kind.gpu)
        kinds = gpu.kinds if gpu else ()
        return next((k.starts for k in kinds if k.name == kind.instance), ())

    def is_occupancy_known(
        self,
        facts: provider_facts.ProviderFacts,
        siblings: Sequence[More] = (),
    ) -> bool:
        """Return whether a card's traits tell all that is on it."""
        return self.occupied(facts, siblings) is not None

    def siblings(
        self,
        groups: Iterable[flavors.RequestGroup],
        shares: Iterable[Iterable[str]],
    ) -> tuple[More, ...]:
        """Return the vGPU types that earlier servers have of a card.

        :param shares: the suffixes of the groups that each of them has.
        """
        by_suffix = {group.suffix: group for group in groups}
        return tuple(
            tuple(
                (kind.name, group.resources.get(names.GPU_CLASS, 0))
                for group in map(by_suffix.get, sorted(suffixes))
                if group and (kind := self.wanted(group))
            )
            for suffixes in shares
        )

    def _charges(self, name: str, count: int) -> dict[str, int]:
        """Return what so many vGPUs of a type take of a card."""
        kind = self._known.find(name)
        found = self._known.charges(kind) if kind else {}
        return {name: count * amount for name, amount in found.items()}

    def _told_sizes(self, traits: frozenset[str]) -> frozenset[int]:
        return frozenset(
            self._by_trait[trait].framebuffer_mb
            for trait in traits
            if trait in self._by_trait
        )

    def has_room(self, shape: CardShape, more: More) -> bool:
        """Return whether so many more may fit.

        False is certain. True is too where all places on the card are
        known, and the catalogue has them; elsewhere there is some
        arrangement in which they fit, or the host's places are not known.
        """
        if not shape.is_told or self._is_offered(shape, more):
            return True
        if shape.occupied is not None:
            return self._fits(shape, more)
        return self._room(shape, more)

    def _is_offered(self, shape: CardShape, more: More) -> bool:
        """Return whether the host has reported that just this one fits.

        It reports the types that fit together with the places, and goes by
        the places that NVML lists. In MIG mode types of one size may need
        different GPU instances, so the size does not tell.
        """
        if (
            shape.layout is not model.Layout.MIXED
            or shape.occupied is None
            or shape.waiting
            or sum(count for _, count in more) != 1
        ):
            return False
        kinds = [self._known.find(name) for name, count in more if count]
        return all(k and k.framebuffer_mb in shape.sizes for k in kinds)

    def _has_place(self, shape: CardShape, more: More) -> bool:
        """Return whether the host will find places for so many more."""
        device = self._placed(_without_sizes(shape))
        if device is None:
            return self._room(shape, more)
        try:
            return self._fill(device, more) is not None
        except _UnknownProfileError:
            return True

    def _place(self, shape: CardShape) -> model.Device | None:
        """Return a card with its partitions in their places.

        None if these contradict the catalogue.
        """
        if shape.occupied is None:
            return None
        blank = self._device(shape.gpu, shape.layout, shape.capacity)
        device = occupancy.restore(
            blank,
            shape.occupied,
            {
                place.trait: profile
                for place in (
                    *shape.occupied.places,
                    *shape.occupied.unallocated,
                )
                if (profile := _alike(blank, self._by_trait[place.trait]))
            },
        )
        try:
            for more in shape.waiting:
                if device is not None:
                    device = self._fill(device, more)
        except _UnknownProfileError:
            return None
        return device

    def _fill(self, device: model.Device, more: More) -> model.Device | None:
        """Return a card after a server's claim, None if that fails.

        The order is that of ``claim_plan.plan``: the largest are placed first.
        """
        profiles: list[model.Profile] = []
        for profile, count in self._requested(device, more):
            if profile is None:
                raise _UnknownProfileError
            profiles += [profile] * count
        for profile in sorted(
            profiles, key=lambda p: device_capacity.size_order(device, p)
        ):
            choice = device_capacity.choose(device, profile.name)
            if choice is None:
                return None
            device = device_capacity.assume(device, profile.name, choice)
        return device

    def _has_room(self, shape: CardShape, more: More) -> bool:
        device = self._device(shape.gpu, shape.layout, shape.capacity)
        needed: collections.Counter[str] = collections.Counter()
        for profile, count in self._requested(device, more):
            if profile is None:
                return True
            needed[profile.name] += count
        named = needed.copy()
        for one in shape.waiting:
            for profile, count in self._requested(device, one):
                named[profile.name if profile else ""] += count
        if not vgpu_feasibility.has_engines(device, named):
            return False
        for profile, count in self._held(device, shape):
            if profile is None:
                return True
            needed[profile.name] += count
        return vgpu_feasibility.is_possible(device, needed)

    def loss(self, shape: CardShape, more: More) -> Loss | None:
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

    def _held(
        self, device: model.Device, shape: CardShape
    ) -> Iterator[tuple[model.Profile | None, int]]:
        """Yield the profiles on a card, None for one that is unknown."""
        for size, slices, count in shape.held:
            yield _sized(device, size, slices), count

    def _requested(
        self, device: model.Device, more: More
    ) -> Iterator[tuple[model.Profile | None, int]]:
        """Yield the profiles asked for, None for one that is unknown."""
        for name, count in more:
            wanted = self._known.find(name)
            yield _alike(device, wanted) if wanted else None, count

    def _remaining(
        self, shape: CardShape, more: More
    ) -> Mapping[int, int] | None:
        """Return how many more of each size fit beside all that is there.

        None where that does not fit, or not in its tightest arrangement
        where places are not known.
        """
        device: model.Device | None = self._placed(_without_sizes(shape))
        if device is not None:
            try:
                device = self._fill(device, more)
            except _UnknownProfileError:
                return None
        else:
            device = self._tightest(shape, more)
        return _by_size(device) if device is not None else None

    def _tightest(self, shape: CardShape, more: More) -> model.Device | None:
        """Return a card with all these in their tightest arrangement."""
        blank = self._device(shape.gpu, shape.layout, shape.capacity)
        standing: list[model.Profile] = []
        for profile, count in itertools.chain(
            self._held(blank, shape), self._requested(blank, more)
        ):
            if profile is None:
                return None
            standing += [profile] * count
        standing.sort(key=lambda p: (-p.size, p.name))
        return self._stood(
            shape.gpu,
            shape.layout,
            shape.capacity,
            tuple(profile.name for profile in standing),
        )

    def _stand(
        self,
        gpu: str,
        layout: model.Layout,
        capacity: empty_cards.Capacity,
        standing: tuple[str, ...],
    ) -> model.Device | None:
        """Return a card with all these on it, None if they don't fit."""
        if not standing:
            return self._device(gpu, layout, capacity)
        device = self._stood(gpu, layout, capacity, standing[:-1])
        if device is None:
            return None
        choice = device_capacity.choose(device, standing[-1])
        if choice is None:
            return None
        return device_capacity.assume(device, standing[-1], choice)


class _UnknownProfileError(Exception):
    """The catalogue has no such profile for this card."""


def _without_sizes(shape: CardShape) -> CardShape:
    """Return a shape less what its places do not depend on."""
    return dataclasses.replace(shape, held=(), sizes=frozenset())


def _by_size(device: model.Device) -> dict[int, int]:
    """Return how many more of each size a card can make, each alone."""
    found: dict[int, int] = {}
    left = device_capacity.remaining(device)
    for profile in device.profiles:
        most = max(found.get(profile.size, 0), left[profile.name])
        found[profile.size] = most
    return found


def described(shape: CardShape) -> str:
    """Return what stands on a card, in words."""
    return (
        ", ".join(f"{count} of {size} MB" for size, _, count in shape.held)
        or "nothing"
    ) + f" ({shape.layout.value} sizes)" * (
        shape.layout is not model.Layout.MIG
    )


_PLACED_LAYOUTS = frozenset({model.Layout.MIXED, model.Layout.MIG})
_LAYOUTS = {names.layout_trait(one.value): one for one in model.Layout}


def _layout(traits: frozenset[str]) -> model.Layout | None:
    """Return the layout that a provider's traits tell, None if none."""
    found = [_LAYOUTS[trait] for trait in _LAYOUTS.keys() & traits]
    return found[0] if len(found) == 1 else None


def _held(
    facts: provider_facts.ProviderFacts, layout: model.Layout | None
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
    return tuple((*size, found[size]) for size in sorted(found, reverse=True))


def _sized(
    device: model.Device, size: int, slices: int
) -> model.Profile | None:
    """Return a profile that charges so much, None if that is not told.

    Types of one size may stand in GPU instances of several lengths.
    """
    found = [
        p
        for p in device.profiles
        if p.size == size and p.charges.get(names.MIG_SLICE_CLASS, 0) == slices
    ]
    kinds = [device.geometry.kind(p.instance) for p in found]
    alike = {kind and vgpu_feasibility.footprint(kind) for kind in kinds}
    return found[0] if len(alike) == 1 else None


def _alike(
    device: model.Device, wanted: vgpu_types.CatalogVgpuType
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
