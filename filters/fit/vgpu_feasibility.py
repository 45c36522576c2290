# SPDX-License-Identifier: Apache-2.0
"""Feasibility of partitions on one card, for unknown places.

What begins where nobody tells a scheduler, so every arrangement counts
that the card's layout allows.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping

from nova_accel import model
from nova_accel.model import names

# Compute slices where nobody counts them: more than any device has.
_PLENTY = 1 << 16

# How many of each profile, by name.
Needed = Mapping[str, int]
# A length, and where it may begin.
_Kind = tuple[int, tuple[int, ...]]


def is_possible(device: model.Device, needed: Needed) -> bool:
    """Return whether an empty card could hold all of these at once.

    False is certain. True is not: counters and limits are for others.
    """
    return not needed or _RULES[device.geometry.layout](device, needed)


def has_engines(device: model.Device, needed: Needed) -> bool:
    """Return whether one GPU instance has all media engines needed.

    False is certain, True is not: see ``is_possible``.

    :param needed: profiles that stand on the card, or will, for certain.
    """
    kinds = {k.name: k for k in device.geometry.kinds}
    shares = [
        (count, max(1, profile.per_instance))
        for profile in device.profiles
        for count in (needed.get(profile.name, 0),)
        for kind in (kinds.get(profile.instance),)
        if count and kind is not None and kind.has_media_engines
    ]
    return sum(math.ceil(count / share) for count, share in shares) <= 1


def footprint(kind: model.InstanceKind) -> model.InstanceKind:
    """Return a kind less its name: some differ in nothing that counts.

    Of those with media engines, or for graphics, there is one at most.
    """
    return dataclasses.replace(kind, name="", limit=None)


def _equal(device: model.Device, needed: Needed) -> bool:
    """Return whether all are of one size; how many, Placement counts."""
    return len(needed) == 1


def _mixed(device: model.Device, needed: Needed) -> bool:
    """Return whether partitions have places in some arrangement."""
    kinds: collections.Counter[_Kind] = collections.Counter()
    for profile in device.profiles:
        count = needed.get(profile.name, 0)
        if count and not (profile.span and profile.starts):
            return True  # nobody tells its places
        if count:
            kinds[profile.span, profile.starts] += count
    return _placeable(kinds, device.geometry.region)


def _mig(device: model.Device, needed: Needed) -> bool:
    """Return whether GPU instances for all have places."""
    kinds = {kind.name: kind for kind in device.geometry.kinds}
    wanted: dict[tuple[model.InstanceKind, int, int], int] = {}
    for profile in device.profiles:
        count = needed.get(profile.name, 0)
        if count and profile.instance not in kinds:
            return True
        if count:
            kind = footprint(kinds[profile.instance])
            one = kind, profile.size, max(1, profile.per_instance)
            wanted[one] = wanted.get(one, 0) + count
    made: collections.Counter[_Kind] = collections.Counter()
    slices = device.counters.get(names.MIG_SLICE_CLASS, _PLENTY)
    for (kind, _, share), count in wanted.items():
        instances = math.ceil(count / share)
        made[kind.size, kind.starts] += instances
        slices -= instances * kind.slices
    return slices >= 0 and _placeable(made, device.geometry.region)


def _any(device: model.Device, needed: Needed) -> bool:
    return True


_RULES: Mapping[model.Layout, Callable[[model.Device, Needed], bool]] = {
    model.Layout.EQUAL: _equal,
    model.Layout.MIXED: _mixed,
    model.Layout.MIG: _mig,
    model.Layout.ANY: _any,
}


def _placeable(counts: Mapping[_Kind, int], region: int) -> bool:
    """Return whether so many of each kind have places side by side.

    Tried is what may begin at each unit, from the first one on. Of all
    before, nothing matters but how many of each are left to place.

    :param region: its length, 0 where nobody tells it.
    """
    kinds = sorted(counts, reverse=True)
    end = region or max(max(starts) + span for span, starts in kinds)

    @functools.cache
    def search(at: int, left: tuple[int, ...]) -> bool:
        if _length(left, kinds) > end - at:
            return False
        if not any(left):
            return True
        return any(
            left[n]
            and at in starts
            and search(at + span, (*left[:n], left[n] - 1, *left[n + 1 :]))
            for n, (span, starts) in enumerate(kinds)
        ) or search(at + 1, left)

    return search(0, tuple(counts[kind] for kind in kinds))


def _length(left: Iterable[int], kinds: Iterable[_Kind]) -> int:
    return sum(n * span for n, (span, _) in zip(left, kinds, strict=True))
