# SPDX-License-Identifier: Apache-2.0
"""Capacity of a GPU in MIG mode for further GPU instances.

A partition stands in one instance of its profile's kind, beside others of
its own size (framebuffer) only. Where instances may be made for claims,
one takes memory slices of its own and its share of the compute slices.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.geometry import spans, time_slicing
from nova_accel.model import names

# Compute slices where nobody counts them: more than any device has.
_PLENTY = 1 << 16


def room(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile instances have room for.

    Counted are instances that exist and such as can be made. Where the
    instances, or which of them partitions stand in, are not known, a
    device that makes none itself is right about one more.
    """
    found = standing_room(device, profile)
    if device.geometry.is_dynamic:
        return found + _new(device, profile) * profile.per_instance
    if any(map(time_slicing.is_planned, device.partitions)):
        return found
    adrift = _KindState.read(device, profile.instance).adrift
    if adrift or not device.geometry.instances:
        return max(found, min(1, profile.available))
    return found


def standing_room(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit into instances that exist."""
    kind = _KindState.read(device, profile.instance)
    return max(
        0,
        sum(
            max(0, profile.per_instance - len(held))
            for held in kind.begun.values()
            if _is_alike(held, profile.size)
        )
        + max(0, len(kind.empty) - kind.lost(but=profile.size))
        * profile.per_instance
        - sum(p.size == profile.size for p in kind.adrift if p),
    )


def start(device: model.Device, profile: model.Profile) -> int | None:
    """Return where an instance must be made for the next of a profile.

    Of the places that cost its own kind no more than one, that which
    leaves the most for the largest kinds, then for the next smaller ones,
    and of equals the lowest. None when an instance with room exists, or
    none can be made.
    """
    if standing_room(device, profile) or not _new(device, profile):
        return None
    kind = device.geometry.kind(profile.instance)
    bench = _InstanceAllocator.read(device)
    if kind is None or bench is None:
        return None
    ranked = sorted(
        device.geometry.kinds,
        key=lambda k: (k.size, k.slices, k.name),
        reverse=True,
    )
    after = dataclasses.replace(
        bench,
        slices=bench.slices - kind.slices,
        made={**bench.made, kind.name: bench.made.get(kind.name, 0) + 1},
        has_media_engines=bench.has_media_engines
        and not kind.has_media_engines,
    )
    return spans.best(
        bench.openings(kind),
        kind.size,
        bench.taken,
        lambda mask: tuple(
            dataclasses.replace(after, taken=mask).count(k)
            for k in (kind, *ranked)
        ),
    )


def home(device: model.Device, profile: model.Profile) -> str | None:
    """Return the handle of the instance that the next one goes into.

    That with the least room left, of equals the first; None where none is
    known to have room.
    """
    kind = _KindState.read(device, profile.instance)
    begun = [
        (-len(held), handle)
        for handle, held in kind.begun.items()
        if _is_alike(held, profile.size) and len(held) < profile.per_instance
    ]
    if begun:
        return min(begun)[1]
    return kind.empty[0] if kind.empty else None


def reach(device: model.Device, profiles: Iterable[model.Profile]) -> int:
    """Return how many more partitions instances could ever hold.

    :param profiles: those of which at least one more fits.
    """
    found: dict[str, list[model.Profile]] = collections.defaultdict(list)
    for profile in profiles:
        found[profile.instance].append(profile)
    most = {
        name: max(p.per_instance for p in members)
        for name, members in found.items()
    }
    standing = sum(
        _KindState.read(device, name).reach(members)
        for name, members in found.items()
    )
    bench = (
        _InstanceAllocator.read(device) if device.geometry.is_dynamic else None
    )
    new = bench.most(device.geometry.kinds, most) if bench else 0
    return max(standing + new, min(1, len(found)))


def _is_alike(held: Iterable[model.Profile | None], size: int) -> bool:
    return all(p is not None and p.size == size for p in held)


def _home_of(
    device: model.Device, partition: model.Partition
) -> model.Instance | None:
    return next(
        (
            i
            for i in device.geometry.instances
            if i.handle == partition.instance
        ),
        None,
    )


def _new(device: model.Device, profile: model.Profile) -> int:
    """Return how many instances could be made for a profile."""
    kind = device.geometry.kind(profile.instance)
    bench = _InstanceAllocator.read(device)
    return bench.count(kind) if bench and kind else 0


@dataclasses.dataclass(frozen=True, slots=True)
class _KindState:
    """The instances of one kind, and what stands in them.

    ``begun`` holds the profiles in each instance that is not empty, None
    for one that the device doesn't know. ``adrift`` are the profiles of
    partitions that stand in an unknown one; None may stand in this kind.
    """

    empty: tuple[str, ...]
    begun: Mapping[str, tuple[model.Profile | None, ...]]
    adrift: tuple[model.Profile | None, ...]

    @classmethod
    def read(cls, device: model.Device, name: str) -> "_KindState":
        held: dict[str, list[model.Profile | None]] = {
            i.handle: [] for i in device.geometry.instances if i.kind == name
        }
        adrift: list[model.Profile | None] = []
        for partition in device.partitions:
            profile = device.profile(partition.profile)
            home_of = _home_of(device, partition)
            if home_of is None:
                if profile is None or profile.instance == name:
                    adrift.append(profile)
            elif home_of.handle in held:
                held[home_of.handle].append(profile)
        return cls(
            empty=tuple(h for h, inside in held.items() if not inside),
            begun={h: tuple(i) for h, i in held.items() if i},
            adrift=tuple(adrift),
        )

    def lost(self, but: int | None = None) -> int:
        """Return how many instances partitions adrift take at most.

        Those of one size share them. ``but`` leaves one size out.
        """
        sizes: dict[int, list[int]] = collections.defaultdict(list)
        for profile in self.adrift:
            if profile and profile.size != but:
                sizes[profile.size].append(profile.per_instance)
        return self.adrift.count(None) + sum(
            math.ceil(len(shares) / min(shares)) for shares in sizes.values()
        )

    def reach(self, profiles: Iterable[model.Profile]) -> int:
        """Return how many more of these profiles fit, mixed at will."""
        found = tuple(profiles)
        begun = sum(
            max(
                (
                    max(0, p.per_instance - len(held))
                    for p in found
                    if _is_alike(held, p.size)
                ),
                default=0,
            )
            for held in self.begun.values()
        )
        empty = max(0, len(self.empty) - self.lost())
        known = [p.size for p in self.adrift if p]
        left = sum(
            max(
                (-known.count(size) % p.per_instance)
                for p in found
                if p.size == size
            )
            for size in {p.size for p in found} & set(known)
        )
        return begun + empty * max(p.per_instance for p in found) + left


@dataclasses.dataclass(frozen=True, slots=True)
class _InstancePlace:
    """A place for an instance, and how many partitions that can hold."""

    start: int
    kind: model.InstanceKind
    weight: int


@dataclasses.dataclass(frozen=True, slots=True)
class _InstanceAllocator:
    """Where instances can be made: slices taken, slices left."""

    region: int
    taken: int
    slices: int
    made: Mapping[str, int]
    has_media_engines: bool = True

    @classmethod
    def read(cls, device: model.Device) -> "_InstanceAllocator | None":
        """Return the device's, None where nothing new may be made.

        That is where a kind or a place of what exists is not known, or a
        partition stands in an instance that nobody told of.
        """
        geometry = device.geometry
        if not geometry.is_dynamic:
            return None
        slices = device.counters.get(names.MIG_SLICE_CLASS, _PLENTY)
        placed = []
        has_media_engines = True
        for instance in geometry.instances:
            kind = geometry.kind(instance.kind)
            if kind is None or instance.span is None:
                return None
            placed.append(instance.span)
            slices -= kind.slices
            has_media_engines &= not kind.has_media_engines
        if any(_home_of(device, p) is None for p in device.partitions):
            for name in {k.name for k in geometry.kinds}:
                found = _KindState.read(device, name)
                if found.lost() > len(found.empty):
                    return None
        return cls(
            region=geometry.region,
            taken=spans.mask(placed),
            slices=slices,
            made=collections.Counter(i.kind for i in geometry.instances),
            has_media_engines=has_media_engines,
        )

    def openings(self, kind: model.InstanceKind) -> tuple[int, ...]:
        return spans.openings(kind.starts, kind.size, self.region, self.taken)

    def allowed(self, kind: model.InstanceKind) -> int:
        """Return how many more slices and the kind's limit allow."""
        if kind.has_media_engines and not self.has_media_engines:
            return 0
        by_slices = self.slices // kind.slices if kind.slices else _PLENTY
        if kind.limit is None:
            return max(0, by_slices)
        left = kind.limit - self.made.get(kind.name, 0)
        return max(0, min(by_slices, left))

    def count(self, kind: model.InstanceKind) -> int:
        """Return how many more of a kind can be made."""
        places = spans.most((s, kind.size) for s in self.openings(kind))
        return min(places, self.allowed(kind))

    def most(
        self,
        kinds: Iterable[model.InstanceKind],
        weights: Mapping[str, int],
    ) -> int:
        """Return the most weight that new instances can have together.

        Tried is every set of places, one after the other, remembered by
        what is left: a device has a handful of slices and of kinds.
        """
        places = tuple(
            sorted(
                (
                    _InstancePlace(start, kind, weights[kind.name])
                    for kind in kinds
                    if weights.get(kind.name)
                    for start in self.openings(kind)
                ),
                key=lambda p: (p.start, p.kind.name),
            )
        )
        tight = tuple(
            {p.kind.name: p.kind for p in places if self._is_tight(p.kind)}
        )
        limits = {k.name: k.limit or 0 for k in kinds}

        @functools.cache
        def search(
            at: int, end: int, slices: int, left: tuple[int, ...]
        ) -> int:
            if at == len(places):
                return 0
            place, found = places[at], search(at + 1, end, slices, left)
            after = tuple(
                n - (name == place.kind.name)
                for name, n in zip(tight, left, strict=True)
            )
            slices -= place.kind.slices
            if place.start < end or slices < 0 or min(after, default=0) < 0:
                return found
            end = place.start + place.kind.size
            more = place.weight + search(at + 1, end, slices, after)
            return max(found, more)

        return search(
            0,
            0,
            self.slices,
            tuple(limits[name] - self.made.get(name, 0) for name in tight),
        )

    def _is_tight(self, kind: model.InstanceKind) -> bool:
        """Return whether a kind's own limit is less than its places."""
        places = spans.most((s, kind.size) for s in self.openings(kind))
        return (
            kind.limit is not None
            and kind.limit - self.made.get(kind.name, 0) < places
        )
