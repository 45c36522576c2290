# SPDX-License-Identifier: Apache-2.0
"""Capacity of a GPU in MIG mode.

A partition is inside one GPU instance of its profile's kind, which it
shares only with partitions of the same framebuffer size. A dynamic
geometry also creates instances for claims: each takes memory slices of its
own and its share of the compute slices.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.geometry import spans, time_slicing
from nova_accel.model import names

# Compute slices of a device without that counter: more than any has.
_PLENTY = 1 << 16


def remaining(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit, in existing or new instances.

    A device whose geometry is not dynamic, and whose instances or their
    partitions are unknown, is trusted for one more partition if it reports
    one as ``available``.
    """
    count = remaining_in_existing(device, profile)
    if device.geometry.is_dynamic:
        new = _count_new_instances(device, profile)
        return count + new * profile.per_instance
    if any(map(time_slicing.is_planned, device.partitions)):
        return count
    unassigned = _KindState.read(device, profile.instance).unassigned
    if unassigned or not device.geometry.instances:
        return max(count, min(1, profile.available))
    return count


def remaining_in_existing(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit into existing instances."""
    state = _KindState.read(device, profile.instance)
    in_shared = sum(
        max(0, profile.per_instance - len(occupants))
        for occupants in state.occupied.values()
        if _have_size(occupants, profile.size)
    )
    empty = len(state.empty) - state.count_lost(except_size=profile.size)
    return max(
        0,
        in_shared
        + max(0, empty) * profile.per_instance
        - sum(p.size == profile.size for p in state.unassigned if p),
    )


def choose_instance_start(
    device: model.Device, profile: model.Profile
) -> int | None:
    """Return the start of the instance to create for the next partition.

    It is a start that costs the instance kind itself no more than one
    instance; preferably one that leaves most for the largest kinds,
    then for the next smaller ones; then the lowest. None where an instance
    with room exists, or none can be created.
    """
    if remaining_in_existing(device, profile):
        return None
    if not _count_new_instances(device, profile):
        return None
    kind = device.geometry.kind(profile.instance)
    allocator = _InstanceAllocator.read(device)
    if kind is None or allocator is None:
        return None
    ranked = sorted(
        device.geometry.kinds,
        key=lambda k: (k.size, k.slices, k.name),
        reverse=True,
    )
    after = dataclasses.replace(
        allocator,
        slices=allocator.slices - kind.slices,
        counts={
            **allocator.counts,
            kind.name: allocator.counts.get(kind.name, 0) + 1,
        },
        has_media_engines=allocator.has_media_engines
        and not kind.has_media_engines,
    )
    return spans.choose_start(
        allocator.free_starts(kind),
        kind.size,
        allocator.occupied,
        lambda mask: tuple(
            dataclasses.replace(after, occupied=mask).count_new(k)
            for k in (kind, *ranked)
        ),
    )


def find_instance(device: model.Device, profile: model.Profile) -> str | None:
    """Return the handle of the instance for the next partition.

    It is the one with the least free room, then the first; None if no
    instance is known to have room.
    """
    state = _KindState.read(device, profile.instance)
    shared = [
        (-len(occupants), handle)
        for handle, occupants in state.occupied.items()
        if _have_size(occupants, profile.size)
        and len(occupants) < profile.per_instance
    ]
    if shared:
        return min(shared)[1]
    return state.empty[0] if state.empty else None


def remaining_total(
    device: model.Device, profiles: Iterable[model.Profile]
) -> int:
    """Return how many more partitions of any profiles fit.

    :param profiles: profiles of which at least one more partition fits.
    """
    by_kind: dict[str, list[model.Profile]] = collections.defaultdict(list)
    for profile in profiles:
        by_kind[profile.instance].append(profile)
    weights = {
        name: max(p.per_instance for p in members)
        for name, members in by_kind.items()
    }
    in_existing = sum(
        _KindState.read(device, name).remaining_total(members)
        for name, members in by_kind.items()
    )
    allocator = (
        _InstanceAllocator.read(device) if device.geometry.is_dynamic else None
    )
    in_new = (
        allocator.max_weight(device.geometry.kinds, weights)
        if allocator
        else 0
    )
    return max(in_existing + in_new, min(1, len(by_kind)))


def _have_size(profiles: Iterable[model.Profile | None], size: int) -> bool:
    return all(p is not None and p.size == size for p in profiles)


def _count_new_instances(device: model.Device, profile: model.Profile) -> int:
    kind = device.geometry.kind(profile.instance)
    allocator = _InstanceAllocator.read(device)
    return allocator.count_new(kind) if allocator and kind else 0


@dataclasses.dataclass(frozen=True, slots=True)
class _KindState:
    """Existing instances of one kind and the partitions in them.

    ``empty`` are handles. ``occupied`` has the profiles of the partitions
    in each other instance, None for a profile that the device doesn't
    have. ``unassigned`` are the profiles of partitions whose instance is
    unknown and may be of this kind.
    """

    empty: tuple[str, ...]
    occupied: Mapping[str, tuple[model.Profile | None, ...]]
    unassigned: tuple[model.Profile | None, ...]

    @classmethod
    def read(cls, device: model.Device, name: str) -> "_KindState":
        occupants: dict[str, list[model.Profile | None]] = {
            i.handle: [] for i in device.geometry.instances if i.kind == name
        }
        unassigned: list[model.Profile | None] = []
        for partition in device.partitions:
            profile = device.profile(partition.profile)
            instance = device.geometry.instance(partition.instance)
            if instance is None:
                if profile is None or profile.instance == name:
                    unassigned.append(profile)
            elif instance.handle in occupants:
                occupants[instance.handle].append(profile)
        return cls(
            empty=tuple(h for h, inside in occupants.items() if not inside),
            occupied={h: tuple(i) for h, i in occupants.items() if i},
            unassigned=tuple(unassigned),
        )

    def count_lost(self, except_size: int | None = None) -> int:
        """Return how many empty instances the unassigned partitions need.

        Partitions of one size share instances. ``except_size`` excludes
        partitions of that size.
        """
        shares: dict[int, list[int]] = collections.defaultdict(list)
        for profile in self.unassigned:
            if profile and profile.size != except_size:
                shares[profile.size].append(profile.per_instance)
        return self.unassigned.count(None) + sum(
            math.ceil(len(group) / min(group)) for group in shares.values()
        )

    def remaining_total(self, profiles: Iterable[model.Profile]) -> int:
        """Return how many more partitions of any of the profiles fit."""
        fitting = tuple(profiles)
        in_occupied = sum(
            max(
                (
                    max(0, p.per_instance - len(occupants))
                    for p in fitting
                    if _have_size(occupants, p.size)
                ),
                default=0,
            )
            for occupants in self.occupied.values()
        )
        empty = max(0, len(self.empty) - self.count_lost())
        sizes = [p.size for p in self.unassigned if p]
        beside_unassigned = sum(
            max(
                (-sizes.count(size) % p.per_instance)
                for p in fitting
                if p.size == size
            )
            for size in {p.size for p in fitting} & set(sizes)
        )
        return (
            in_occupied
            + empty * max(p.per_instance for p in fitting)
            + beside_unassigned
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _InstancePlace:
    """Possible place of a new instance; ``weight`` is in partitions."""

    start: int
    kind: model.InstanceKind
    weight: int


@dataclasses.dataclass(frozen=True, slots=True)
class _InstanceAllocator:
    """Room for new instances.

    ``occupied`` is the bit mask of the memory slices, ``slices`` the number
    of free compute slices, ``counts`` the existing instances by kind.
    """

    region: int
    occupied: int
    slices: int
    counts: Mapping[str, int]
    has_media_engines: bool = True

    @classmethod
    def read(cls, device: model.Device) -> "_InstanceAllocator | None":
        """Return the allocator of a device, None if it can't create any.

        It creates none while the kind or place of an existing instance is
        unknown, or partitions may be in instances that were not read.
        """
        geometry = device.geometry
        if not geometry.is_dynamic:
            return None
        slices = device.counters.get(names.MIG_SLICE_CLASS, _PLENTY)
        occupied = []
        has_media_engines = True
        for instance in geometry.instances:
            kind = geometry.kind(instance.kind)
            if kind is None or instance.span is None:
                return None
            occupied.append(instance.span)
            slices -= kind.slices
            has_media_engines &= not kind.has_media_engines
        if not all(geometry.instance(p.instance) for p in device.partitions):
            for name in {k.name for k in geometry.kinds}:
                state = _KindState.read(device, name)
                if state.count_lost() > len(state.empty):
                    return None
        return cls(
            region=geometry.region,
            occupied=spans.to_mask(occupied),
            slices=slices,
            counts=collections.Counter(i.kind for i in geometry.instances),
            has_media_engines=has_media_engines,
        )

    def free_starts(self, kind: model.InstanceKind) -> tuple[int, ...]:
        return spans.free_starts(
            kind.starts, kind.size, self.region, self.occupied
        )

    def count_allowed(self, kind: model.InstanceKind) -> int:
        """Return how many more the slices and the kind's limit allow."""
        if kind.has_media_engines and not self.has_media_engines:
            return 0
        by_slices = self.slices // kind.slices if kind.slices else _PLENTY
        if kind.limit is None:
            return max(0, by_slices)
        by_limit = kind.limit - self.counts.get(kind.name, 0)
        return max(0, min(by_slices, by_limit))

    def count_new(self, kind: model.InstanceKind) -> int:
        """Return how many more instances of a kind can be created."""
        return min(self._count_places(kind), self.count_allowed(kind))

    def _count_places(self, kind: model.InstanceKind) -> int:
        return spans.count_disjoint(
            (start, kind.size) for start in self.free_starts(kind)
        )

    def max_weight(
        self,
        kinds: Iterable[model.InstanceKind],
        weights: Mapping[str, int],
    ) -> int:
        """Return the maximal total weight of new instances.

        Exhaustive search over sets of places with a cache of states; a
        device has only few slices and kinds.
        """
        places = self._list_places(kinds, weights)
        limited = tuple(
            {p.kind.name: p.kind for p in places if self._is_limited(p.kind)}
        )
        limits = {k.name: k.limit or 0 for k in kinds}

        @functools.cache
        def search(
            index: int, end: int, slices: int, allowed: tuple[int, ...]
        ) -> int:
            if index == len(places):
                return 0
            place = places[index]
            without = search(index + 1, end, slices, allowed)
            allowed = tuple(
                number - (name == place.kind.name)
                for name, number in zip(limited, allowed, strict=True)
            )
            slices -= place.kind.slices
            if place.start < end or slices < 0 or min(allowed, default=0) < 0:
                return without
            end = place.start + place.kind.size
            return max(
                without,
                place.weight + search(index + 1, end, slices, allowed),
            )

        return search(
            0,
            0,
            self.slices,
            tuple(limits[name] - self.counts.get(name, 0) for name in limited),
        )

    def _list_places(
        self,
        kinds: Iterable[model.InstanceKind],
        weights: Mapping[str, int],
    ) -> tuple[_InstancePlace, ...]:
        places = (
            _InstancePlace(start, kind, weights[kind.name])
            for kind in kinds
            if weights.get(kind.name)
            for start in self.free_starts(kind)
        )
        return tuple(sorted(places, key=lambda p: (p.start, p.kind.name)))

    def _is_limited(self, kind: model.InstanceKind) -> bool:
        """Return whether a kind's limit is lower than its free places."""
        return kind.limit is not None and kind.limit - self.counts.get(
            kind.name, 0
        ) < self._count_places(kind)
