# SPDX-License-Identifier: Apache-2.0
"""State of a vGPU card: layout and partitions, derived from Placement.

The scheduler has no access to the card. Allocations of consumers give the
sizes of its partitions, the catalog the placements that a size may have,
and the card's traits the present placements
(nova_accel.geometry.occupancy). The traits count only if they add up to the
allocations.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import occupancy as occupancies
from nova_accel.geometry.occupancy import Occupancy, OccupiedPlace
from nova_accel.model import flavors, names, providers

# vGPU type names with the number of each, in the order of the groups.
VgpuCounts = tuple[tuple[str, int], ...]

_PLACED_LAYOUTS = frozenset({model.Layout.MIXED, model.Layout.MIG})
_LAYOUTS = {
    names.layout_trait(layout.value): layout for layout in model.Layout
}


# Units of each resource class.
Capacity = tuple[tuple[str, int], ...]
# An ``available`` above what any device can make, so that it limits nothing.
_PLENTY = 1 << 16
_ADDRESS = "card"


@dataclasses.dataclass(frozen=True, slots=True)
class CardState:
    """A card's layout, inventories and partitions; equal if they are equal.

    ``gpu`` is the catalog's key of the model, ``capacity`` the units of
    each resource class. ``partitions`` are tuples of size in MiB, compute
    slices and number, those of pending servers included.
    ``offered_sizes`` are the sizes in MiB that the host reported as
    possible. ``is_certain`` is False if a consumer has several partitions,
    perhaps of different sizes, or if the host has placements that the
    catalog does not have. ``occupancy`` are the present placements, None
    if they are not known. ``pending`` are the types of earlier servers of
    the same request, whose partitions the host will create next, in order.
    """

    gpu: str
    layout: model.Layout
    capacity: Capacity
    partitions: tuple[tuple[int, int, int], ...]
    offered_sizes: frozenset[int] = frozenset()
    is_certain: bool = True
    occupancy: Occupancy | None = None
    pending: tuple[VgpuCounts, ...] = ()

    def __str__(self) -> str:
        """Return the partitions: ``1 of 24576 MB, 2 of 8192 MB``."""
        is_mig = self.layout is model.Layout.MIG
        partitions = ", ".join(
            f"{count} of {size} MB" for size, _, count in self.partitions
        )
        mode = "" if is_mig else f" ({self.layout.value} sizes)"
        return f"{partitions or 'nothing'}{mode}"


class CardStates:
    """Builder of card states, for models of the catalog.

    :param catalog: the catalog of GPUs and vGPU types.
    """

    def __init__(self, catalog: vgpu_types.Catalog) -> None:
        self._catalog = catalog
        self._types = catalog.by_trait()
        # A cloud has few different sets of traits.
        self._parse_traits = functools.lru_cache(maxsize=16384)(
            occupancies.parse_traits
        )
        self._has_catalog_starts = functools.lru_cache(maxsize=16384)(
            self._check_starts
        )
        self._offered_sizes = functools.lru_cache(maxsize=4096)(
            self._list_sizes
        )

    def find_type(
        self, group: flavors.RequestGroup
    ) -> vgpu_types.CatalogVgpuType | None:
        """Return the vGPU type of a group, None if unknown or ambiguous."""
        types = [
            self._types[trait]
            for trait in sorted(group.required)
            if trait in self._types
        ]
        return types[0] if len(types) == 1 else None

    def list_pending(
        self,
        groups: Iterable[flavors.RequestGroup],
        siblings: Iterable[Iterable[str]],
    ) -> tuple[VgpuCounts, ...]:
        """Return the vGPU types of earlier servers of the request on a card.

        :param siblings: the group suffixes of each of these servers, as in
            ``Provider.siblings``.
        """
        by_suffix = {group.suffix: group for group in groups}
        return tuple(
            tuple(
                (vgpu_type.name, group.resources.get(names.GPU_CLASS, 0))
                for group in map(by_suffix.get, sorted(suffixes))
                if group and (vgpu_type := self.find_type(group))
            )
            for suffixes in siblings
        )

    def build(
        self,
        facts: providers.Provider,
        gpu: str,
        pending: Sequence[VgpuCounts] = (),
    ) -> CardState | None:
        """Return the state of a provider's card.

        None if its layout or its partitions can't be derived.

        :param gpu: the catalog's key of the model.
        :param pending: vGPU types of earlier servers of the request.
        """
        layout = parse_layout(facts.traits)
        placed = self.parse_occupancy(facts, pending)
        if placed is not None:
            facts = self._allocate_places(facts, pending, placed)
        partitions = _derive_partitions(facts, layout)
        if layout is None or partitions is None:
            return None
        return CardState(
            gpu=gpu,
            layout=layout,
            capacity=self._sum_capacity(facts, placed),
            partitions=partitions,
            is_certain=self._has_catalog_starts(facts.traits, layout)
            and (
                placed is not None
                or layout is model.Layout.EQUAL
                or _has_single_allocations(facts)
            ),
            offered_sizes=self._offered_sizes(facts.traits),
            occupancy=placed,
            pending=tuple(pending),
        )

    def parse_occupancy(
        self,
        facts: providers.Provider,
        pending: Sequence[VgpuCounts] = (),
    ) -> Occupancy | None:
        """Return the placements in a card's traits, None if incomplete.

        They are complete if they add up to what is allocated, together with
        pending servers: Nova starts the servers of a request only after all
        of them are scheduled, so the host has not reported theirs.
        """
        if parse_layout(facts.traits) not in _PLACED_LAYOUTS:
            return None
        placed = self._parse_traits(facts.traits)
        classes = {name for units in facts.allocations or () for name in units}
        places = (*placed.places, *placed.unallocated)
        if not all(place.trait in self._types for place in places) or not (
            facts.capacities.keys() >= classes
        ):
            return None
        total: collections.Counter[str] = collections.Counter()
        for place in placed.places:
            total.update(self._charge_place(place))
        for name, count in itertools.chain.from_iterable(pending):
            total.update(self._charge(name, count))
        used = {n: c.used for n, c in facts.capacities.items() if c.used}
        placed_units = {n: total[n] for n in facts.capacities if total[n]}
        return placed if placed_units == used else None

    def is_occupancy_known(
        self,
        facts: providers.Provider,
        pending: Sequence[VgpuCounts] = (),
    ) -> bool:
        """Return whether a card's traits list all its partitions."""
        return self.parse_occupancy(facts, pending) is not None

    def _sum_capacity(
        self,
        facts: providers.Provider,
        placed: Occupancy | None,
    ) -> Capacity:
        """Return a card's units, with those reserved for partitions."""
        capacity = collections.Counter(
            {name: c.capacity for name, c in facts.capacities.items()}
        )
        for place in placed.unallocated if placed else ():
            charges = self._charge_place(place)
            capacity.update(
                {name: charges[name] for name in charges.keys() & capacity}
            )
        return tuple(sorted(capacity.items()))

    def _allocate_places(
        self,
        facts: providers.Provider,
        pending: Sequence[VgpuCounts],
        placed: Occupancy,
    ) -> providers.Provider:
        """Return a provider with an allocation for each place and type."""
        return dataclasses.replace(
            facts,
            allocations=(
                *map(self._charge_place, placed.places),
                *itertools.starmap(
                    self._charge, itertools.chain.from_iterable(pending)
                ),
            ),
        )

    def _charge_place(self, place: OccupiedPlace) -> dict[str, int]:
        return self._charge(self._types[place.trait].name, place.count)

    def _charge(self, name: str, count: int) -> dict[str, int]:
        """Return the units by class of so many vGPUs of a type."""
        vgpu_type = self._catalog.find(name)
        charges = self._catalog.charges(vgpu_type) if vgpu_type else {}
        return {name: count * amount for name, amount in charges.items()}

    def _check_starts(
        self, traits: frozenset[str], layout: model.Layout
    ) -> bool:
        """Return whether all places start where the catalog has starts.

        NVML of the host's driver lists other or more starts for some types.
        """
        placed = self._parse_traits(traits)
        return all(
            place.start in starts
            for place in (*placed.places, *placed.unallocated)
            if (vgpu_type := self._types.get(place.trait))
            and (starts := self._list_starts(vgpu_type, layout))
        )

    def _list_starts(
        self, vgpu_type: vgpu_types.CatalogVgpuType, layout: model.Layout
    ) -> tuple[int, ...]:
        if layout is not model.Layout.MIG:
            return vgpu_type.starts_mixed
        gpu = self._catalog.gpu(vgpu_type.gpu)
        kinds = gpu.kinds if gpu else ()
        return next(
            (kind.starts for kind in kinds if kind.name == vgpu_type.instance),
            (),
        )

    def _list_sizes(self, traits: frozenset[str]) -> frozenset[int]:
        return frozenset(
            self._types[trait].framebuffer_mb
            for trait in traits
            if trait in self._types
        )


def parse_layout(traits: frozenset[str]) -> model.Layout | None:
    """Return the layout in a provider's traits, None without exactly one."""
    layouts = [_LAYOUTS[trait] for trait in _LAYOUTS.keys() & traits]
    return layouts[0] if len(layouts) == 1 else None


def _has_single_allocations(facts: providers.Provider) -> bool:
    """Return whether no consumer has more than one partition."""
    return all(
        units.get(names.GPU_CLASS, 0) <= 1 for units in facts.allocations or ()
    )


def _derive_partitions(
    facts: providers.Provider, layout: model.Layout | None
) -> tuple[tuple[int, int, int], ...] | None:
    """Return size, slices and number of a card's partitions.

    Without allocations the used units suffice for a card in equal-size
    mode. None if the partitions can't be derived.
    """
    allocations = facts.allocations
    if allocations is None:
        used = {n: c.used for n, c in facts.capacities.items() if c.used}
        if used and layout is not model.Layout.EQUAL:
            return None
        allocations = (used,) if used else ()
    counts: dict[tuple[int, int], int] = {}
    for units in allocations:
        count = units.get(names.GPU_CLASS, 0)
        memory = units.get(names.GPU_MEMORY_CLASS, 0)
        slices = units.get(names.MIG_SLICE_CLASS, 0)
        if not count or memory % count or slices % count or not memory:
            return None
        size = memory // count, slices // count
        counts[size] = counts.get(size, 0) + count
    return tuple(
        (*size, counts[size]) for size in sorted(counts, reverse=True)
    )


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
