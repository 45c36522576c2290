# SPDX-License-Identifier: Apache-2.0
"""Feasibility of partitions on one card, with unknown placements.

The scheduler does not know the placements of existing partitions, so any
arrangement that the card's layout allows is considered.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping

from nova_accel import model
from nova_accel.model import names

# Compute slices if the device has no such counter: more than any device has.
_PLENTY = 1 << 16

# Number of partitions by profile name.
Needed = Mapping[str, int]
# Length of a placement in units of the region, and its possible starts.
_Kind = tuple[int, tuple[int, ...]]


def is_possible(device: model.Device, needed: Needed) -> bool:
    """Return whether an empty card could hold all these partitions.

    False is certain. True is not: counters and limits are not considered.
    """
    return not needed or _CHECKS[device.geometry.layout](device, needed)


def has_engines(device: model.Device, needed: Needed) -> bool:
    """Return whether one GPU instance serves all types with media engines.

    A card has at most one such instance. False is certain, True is not: see
    ``is_possible``.

    :param needed: partitions that are on the card for certain, or will be.
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
    """Return a kind of GPU instance without its name and limit.

    Some kinds with different names have the same size, starts and slices.
    """
    return dataclasses.replace(kind, name="", limit=None)


def _is_equal(device: model.Device, needed: Needed) -> bool:
    """Return whether all are of one size; Placement counts them."""
    return len(needed) == 1


def _is_mixed_possible(device: model.Device, needed: Needed) -> bool:
    """Return whether partitions have places in some arrangement."""
    kinds: collections.Counter[_Kind] = collections.Counter()
    for profile in device.profiles:
        count = needed.get(profile.name, 0)
        if count and not (profile.span and profile.starts):
            return True  # Its placements are not known.
        if count:
            kinds[profile.span, profile.starts] += count
    return _is_placeable(kinds, device.geometry.region)


def _is_mig_possible(device: model.Device, needed: Needed) -> bool:
    """Return whether GPU instances for all have places."""
    kinds = {kind.name: kind for kind in device.geometry.kinds}
    counts: dict[tuple[model.InstanceKind, int, int], int] = {}
    for profile in device.profiles:
        count = needed.get(profile.name, 0)
        if count and profile.instance not in kinds:
            return True
        if count:
            kind = footprint(kinds[profile.instance])
            key = kind, profile.size, max(1, profile.per_instance)
            counts[key] = counts.get(key, 0) + count
    placements: collections.Counter[_Kind] = collections.Counter()
    slices = device.counters.get(names.MIG_SLICE_CLASS, _PLENTY)
    for (kind, _, share), count in counts.items():
        instances = math.ceil(count / share)
        placements[kind.size, kind.starts] += instances
        slices -= instances * kind.slices
    return slices >= 0 and _is_placeable(placements, device.geometry.region)


def _always(device: model.Device, needed: Needed) -> bool:
    return True


_CHECKS: Mapping[model.Layout, Callable[[model.Device, Needed], bool]] = {
    model.Layout.EQUAL: _is_equal,
    model.Layout.MIXED: _is_mixed_possible,
    model.Layout.MIG: _is_mig_possible,
    model.Layout.ANY: _always,
}


def _is_placeable(counts: Mapping[_Kind, int], region: int) -> bool:
    """Return whether so many of each kind have placements side by side.

    Depth-first search over the units of the region. The state is the unit
    and the numbers still to place, so it is cached.

    :param region: its length in units, 0 if not known.
    """
    kinds = sorted(counts, reverse=True)
    end = region or max(max(starts) + span for span, starts in kinds)

    @functools.cache
    def search(unit: int, missing: tuple[int, ...]) -> bool:
        if _sum_lengths(missing, kinds) > end - unit:
            return False
        if not any(missing):
            return True
        return any(
            missing[n]
            and unit in starts
            and search(
                unit + span, (*missing[:n], missing[n] - 1, *missing[n + 1 :])
            )
            for n, (span, starts) in enumerate(kinds)
        ) or search(unit + 1, missing)

    return search(0, tuple(counts[kind] for kind in kinds))


def _sum_lengths(counts: Iterable[int], kinds: Iterable[_Kind]) -> int:
    return sum(n * span for n, (span, _) in zip(counts, kinds, strict=True))
