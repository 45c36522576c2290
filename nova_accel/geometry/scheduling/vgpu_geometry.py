# SPDX-License-Identifier: Apache-2.0
"""vGPU types that fit on a card beside its partitions, and how many.

If the placements of all partitions are known, the result is computed with
the host's own functions. Otherwise a type is rejected only if it fits in no
arrangement at all, and the remaining capacity is that of the tightest
arrangement. The host may have other placements than the catalog: nothing
is rejected if its report proves so.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.geometry.scheduling import card_state, vgpu_feasibility
from nova_accel.geometry.scheduling.card_state import (
    CardState,
    CardStates,
    VgpuCounts,
    parse_layout,
)
from nova_accel.model import names, providers

# Size in MiB and kind of GPU instance: types with the same ones differ in
# NVIDIA's series only.
Shape = tuple[int, str]
# Decrease of the number of partitions that remain possible: pairs of size
# in MiB and number, the largest size first. Less is better.
Loss = tuple[tuple[int, int], ...]


class VgpuGeometry:
    """Room of cards whose model is in the catalog.

    ``states`` builds the card states that the methods take.

    :param catalog: the catalog of GPUs and vGPU types.
    """

    def __init__(self, catalog: vgpu_types.Catalog) -> None:
        self.states = CardStates(catalog)
        self._catalog = catalog
        self._types = catalog.by_trait()
        # A cloud has few models of cards, in few states each.
        self._empty_card = functools.lru_cache(maxsize=4096)(
            functools.partial(card_state.build_empty_card, catalog)
        )
        cached = functools.lru_cache(maxsize=16384)
        self._placed_card = cached(self._restore_card)
        self._packed_card = cached(self._pack)
        self._has_place = cached(self._check_place)
        self._has_arrangement = cached(self._check_arrangement)
        self._remaining = cached(self._count_remaining)
        self._most = cached(self._count_empty)
        self._loss = cached(self._sum_loss)

    def has_room(self, state: CardState, types: VgpuCounts) -> bool:
        """Return whether vGPUs may fit on a card.

        False is certain. True is certain if all placements on the card are
        known and in the catalog; otherwise there is an arrangement in
        which they fit, or the host's placements are not known.
        """
        if not state.is_certain or self._is_offered(state, types):
            return True
        if state.occupancy is not None:
            return self._has_place(state, types)
        return self._has_arrangement(state, types)

    def compute_loss(self, state: CardState, types: VgpuCounts) -> Loss | None:
        """Return how many partitions of each size a card loses with vGPUs.

        Sizes that its host reports as impossible are not counted. If the
        vGPUs fit in no known arrangement, all remaining ones are lost. None
        if the card's partitions can't be arranged.
        """
        return self._loss(state, types)

    def count_room(
        self,
        provider: providers.Provider,
        vgpu_type: vgpu_types.CatalogVgpuType,
        added: VgpuCounts = (),
    ) -> int:
        """Return how many more vGPUs of a type a card can make, at most.

        Exact if the places of its partitions are known and in the catalog,
        and in equal-size mode; else as in the tightest arrangement or, if
        the partitions are not known either, of an empty card. Units of
        Placement are not considered.

        :param added: vGPUs that the card will have besides.
        """
        shape = vgpu_type.framebuffer_mb, vgpu_type.instance
        state = self.states.build(provider, vgpu_type.gpu)
        if state is None or not state.is_certain:
            return self.count_most(vgpu_type, provider.traits)
        key = _without_total(state)
        counts = self._remaining(key, added)
        if counts is not None:
            single = ((vgpu_type.name, 1),)
            is_offered = not added and self._is_offered(state, single)
            return max(counts.get(shape, 0), int(is_offered))
        if added and self._remaining(key, ()) is not None:
            return 0
        return self.count_most(vgpu_type, provider.traits)

    def count_most(
        self, vgpu_type: vgpu_types.CatalogVgpuType, traits: frozenset[str]
    ) -> int:
        """Return how many vGPUs of a type an empty card can make.

        :param traits: the card's, for its layout.
        """
        layout = parse_layout(traits) or model.Layout.EQUAL
        counts = self._most(vgpu_type.gpu, layout)
        shape = vgpu_type.framebuffer_mb, vgpu_type.instance
        return counts.get(shape, vgpu_type.limit)

    def restore_card(self, state: CardState) -> model.Device | None:
        """Return a card with its partitions, each at its place.

        None if a place is not known; in equal-size mode none is needed.
        """
        if state.layout is model.Layout.EQUAL:
            return self._arrange_tightest(state, ())
        return self._placed_card(_without_sizes(state))

    # -- room -----------------------------------------------------------------

    def _is_offered(self, state: CardState, types: VgpuCounts) -> bool:
        """Return whether the host has reported that this one vGPU fits.

        It reports possible types together with the placements, computed
        from NVML's starts. In MIG mode types of one size may need different
        GPU instances, so the size is not sufficient.
        """
        if (
            state.layout is not model.Layout.MIXED
            or state.occupancy is None
            or state.pending
            or sum(count for _, count in types) != 1
        ):
            return False
        vgpus = [self._catalog.find(name) for name, count in types if count]
        return all(
            vgpu and vgpu.framebuffer_mb in state.offered_sizes
            for vgpu in vgpus
        )

    def _check_place(self, state: CardState, types: VgpuCounts) -> bool:
        """Return whether the host will find placements for vGPUs."""
        device = self._placed_card(_without_sizes(state))
        if device is None:
            return self._has_arrangement(state, types)
        try:
            return self._claim(device, types) is not None
        except _UnknownProfileError:
            return True

    def _check_arrangement(self, state: CardState, types: VgpuCounts) -> bool:
        """Return whether vGPUs fit in any arrangement of the partitions."""
        device = self._empty_card(state.gpu, state.layout, state.capacity)
        needed: collections.Counter[str] = collections.Counter()
        for profile, count in self._find_profiles(device, types):
            if profile is None:
                return True
            needed[profile.name] += count
        with_pending = needed.copy()
        for pending in state.pending:
            for profile, count in self._find_profiles(device, pending):
                with_pending[profile.name if profile else ""] += count
        if not vgpu_feasibility.has_engines(device, with_pending):
            return False
        for profile, count in _list_partitions(device, state):
            if profile is None:
                return True
            needed[profile.name] += count
        return vgpu_feasibility.is_possible(device, needed)

    # -- remaining partitions -------------------------------------------------

    def _sum_loss(self, state: CardState, types: VgpuCounts) -> Loss | None:
        key = _without_total(state)
        before, after = self._remaining(key, ()), self._remaining(key, types)
        if before is None:
            return None
        sizes, sizes_after = _count_by_size(before), _count_by_size(after)
        return tuple(
            (size, sizes[size] - sizes_after[size])
            for size in sorted(state.offered_sizes, reverse=True)
            if sizes[size] > sizes_after[size]
        )

    def _count_remaining(
        self, state: CardState, types: VgpuCounts
    ) -> Mapping[Shape, int] | None:
        """Return how many partitions of each shape remain possible.

        None if the vGPUs do not fit, or not in the tightest arrangement if
        placements are not known.
        """
        device: model.Device | None = self._placed_card(_without_sizes(state))
        if device is not None:
            try:
                device = self._claim(device, types)
            except _UnknownProfileError:
                return None
        else:
            device = self._arrange_tightest(state, types)
        return _count_by_shape(device) if device is not None else None

    def _count_empty(
        self, gpu: str, layout: model.Layout
    ) -> Mapping[Shape, int]:
        return _count_by_shape(self._empty_card(gpu, layout, ()))

    def _arrange_tightest(
        self, state: CardState, types: VgpuCounts
    ) -> model.Device | None:
        """Return a card with partitions and vGPUs, the largest first."""
        empty = self._empty_card(state.gpu, state.layout, state.capacity)
        profiles: list[model.Profile] = []
        for profile, count in itertools.chain(
            _list_partitions(empty, state), self._find_profiles(empty, types)
        ):
            if profile is None:
                return None
            profiles += [profile] * count
        profiles.sort(key=lambda p: (-p.size, p.name))
        return self._packed_card(
            state.gpu,
            state.layout,
            state.capacity,
            tuple(profile.name for profile in profiles),
        )

    def _pack(
        self,
        gpu: str,
        layout: model.Layout,
        capacity: card_state.Capacity,
        profiles: tuple[str, ...],
    ) -> model.Device | None:
        """Return a card with profiles placed in order, None if one fails."""
        if not profiles:
            return self._empty_card(gpu, layout, capacity)
        *first, last = profiles
        device = self._packed_card(gpu, layout, capacity, tuple(first))
        return _place(device, last) if device is not None else None

    # -- cards ----------------------------------------------------------------

    def _restore_card(self, state: CardState) -> model.Device | None:
        """Return a card with its partitions at their placements.

        None if the placements are not known or contradict the catalog.
        """
        if state.occupancy is None:
            return None
        empty = self._empty_card(state.gpu, state.layout, state.capacity)
        places = (*state.occupancy.places, *state.occupancy.unallocated)
        device = occupancy.restore_partitions(
            empty,
            state.occupancy,
            {
                place.trait: profile
                for place in places
                if (profile := _find_profile(empty, self._types[place.trait]))
            },
        )
        try:
            for types in state.pending:
                if device is not None:
                    device = self._claim(device, types)
        except _UnknownProfileError:
            return None
        return device

    def _claim(
        self, device: model.Device, types: VgpuCounts
    ) -> model.Device | None:
        """Return a card after a server's claim, None if the claim fails.

        The order is that of ``claim_plan.plan``: the largest first.

        :raises _UnknownProfileError: the card has no such profile.
        """
        profiles: list[model.Profile] = []
        for profile, count in self._find_profiles(device, types):
            if profile is None:
                raise _UnknownProfileError
            profiles += [profile] * count
        claimed: model.Device | None = device
        for profile in sorted(
            profiles, key=lambda p: device_capacity.size_key(device, p)
        ):
            if claimed is not None:
                claimed = _place(claimed, profile.name)
        return claimed

    def _find_profiles(
        self, device: model.Device, types: VgpuCounts
    ) -> Iterator[tuple[model.Profile | None, int]]:
        """Yield the profile of each type, None if the card has none."""
        for name, count in types:
            vgpu = self._catalog.find(name)
            yield _find_profile(device, vgpu) if vgpu else None, count


class _UnknownProfileError(Exception):
    """The catalog has no such profile for this card."""


def _without_sizes(state: CardState) -> CardState:
    """Return a state without the fields that placements do not depend on."""
    return dataclasses.replace(state, partitions=(), offered_sizes=frozenset())


def _place(device: model.Device, profile: str) -> model.Device | None:
    """Return a card with one more partition, None if it has no placement."""
    choice = device_capacity.choose_place(device, profile)
    if choice is None:
        return None
    return device_capacity.add_partition(device, profile, choice)


def _without_total(state: CardState) -> CardState:
    """Return a state without the total number of partitions.

    It depends on those present, and Placement counts it.
    """
    return dataclasses.replace(
        state,
        capacity=tuple(
            (name, units)
            for name, units in state.capacity
            if name != names.GPU_CLASS
        ),
        offered_sizes=frozenset(),
    )


def _count_by_shape(device: model.Device) -> dict[Shape, int]:
    """Return how many more of each shape a card can make, each alone."""
    remaining = device_capacity.remaining(device)
    return {(p.size, p.instance): remaining[p.name] for p in device.profiles}


def _count_by_size(
    counts: Mapping[Shape, int] | None,
) -> collections.Counter[int]:
    """Return the largest count of each size, of any kind of instance."""
    sizes: collections.Counter[int] = collections.Counter()
    for (size, _), count in (counts or {}).items():
        sizes[size] = max(sizes[size], count)
    return sizes


def _list_partitions(
    device: model.Device, state: CardState
) -> Iterator[tuple[model.Profile | None, int]]:
    """Yield the profiles of a card's partitions, None if ambiguous."""
    for size, slices, count in state.partitions:
        yield _find_charged_profile(device, size, slices), count


def _find_charged_profile(
    device: model.Device, size: int, slices: int
) -> model.Profile | None:
    """Return the profile of a size and slices, None if ambiguous.

    Types of one size may be in GPU instances of different lengths.
    """
    profiles = [
        p
        for p in device.profiles
        if p.size == size and p.charges.get(names.MIG_SLICE_CLASS, 0) == slices
    ]
    kinds = [device.geometry.kind(p.instance) for p in profiles]
    footprints = {kind and vgpu_feasibility.footprint(kind) for kind in kinds}
    return profiles[0] if len(footprints) == 1 else None


def _find_profile(
    device: model.Device, vgpu: vgpu_types.CatalogVgpuType
) -> model.Profile | None:
    """Return the card's profile of a type's size, None if it has none."""
    return next(
        (
            p
            for p in device.profiles
            if p.size == vgpu.framebuffer_mb and p.instance == vgpu.instance
        ),
        None,
    )
