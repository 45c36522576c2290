# SPDX-License-Identifier: Apache-2.0
"""Capacity of a GPU in equal-size and in mixed-size mode."""

from collections.abc import Iterable

from nova_accel import model
from nova_accel.geometry import spans


def is_planned(partition: model.Partition) -> bool:
    """Return whether a partition is only planned: it has no handle yet."""
    return not partition.handle


def count_partitions(device: model.Device, profile: str) -> int:
    return [p.profile for p in device.partitions].count(profile)


def remaining_equal(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit in equal-size mode.

    The first partition determines the size, and the size the number of
    partitions of all profiles together. Where the present size is unknown,
    ``available`` decides: the device read it with the existing partitions,
    but without the planned ones.
    """
    sizes: set[int] = set()
    for partition in device.partitions:
        other = device.profile(partition.profile)
        if not is_planned(partition):
            sizes.add(other.size if other else 0)
        elif partition.profile != profile.name and (
            other is None or not other.size or other.size != profile.size
        ):
            return 0
    present_size = sizes.pop() if len(sizes) == 1 else 0
    if present_size and profile.size and present_size != profile.size:
        return 0
    if profile.limit is None:
        return profile.available
    return profile.limit - len(device.partitions)


def remaining_mixed(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit in mixed-size mode.

    Where a partition's position or the profile's starts are unknown, trust
    ``available`` for one partition, and for none beside a planned one.
    """
    occupied = _occupied(device)
    if occupied is None or not _has_starts(profile):
        has_planned = any(map(is_planned, device.partitions))
        return 0 if has_planned else min(1, profile.available)
    return _count_fitting(device, profile, occupied)


def choose_mixed_start(
    device: model.Device, profile: model.Profile
) -> int | None:
    """Return the start of the next partition of a profile.

    It is a start that costs the profile itself no more than one partition;
    preferably one that leaves most for the largest profiles, then for
    the next smaller ones; then the lowest. None lets the device choose.
    """
    occupied = _occupied(device)
    if occupied is None or not _has_starts(profile):
        return None
    by_spans = {
        (p.span, p.starts): p for p in device.profiles if _has_starts(p)
    }
    ranked = [profile, *(by_spans[k] for k in sorted(by_spans, reverse=True))]
    return spans.choose_start(
        _free_starts(device, profile, occupied),
        profile.span,
        occupied,
        lambda mask: tuple(_count_fitting(device, p, mask) for p in ranked),
    )


def remaining_mixed_total(
    device: model.Device, profiles: Iterable[model.Profile]
) -> int:
    """Return how many more partitions of any profiles fit in mixed mode.

    :param profiles: profiles of which at least one more partition fits.
    """
    fitting = tuple(profiles)
    occupied = _occupied(device)
    if occupied is None:
        return min(1, len(fitting))
    total = spans.count_disjoint(
        {
            (start, profile.span)
            for profile in fitting
            if _has_starts(profile)
            for start in _free_starts(device, profile, occupied)
        }
    )
    return max(total, min(1, len(fitting)))


def _has_starts(profile: model.Profile) -> bool:
    return profile.span > 0 and bool(profile.starts)


def _occupied(device: model.Device) -> int | None:
    """Return the occupied units as a bit mask, None if unknown."""
    occupied = []
    for partition in device.partitions:
        profile = device.profile(partition.profile)
        if partition.start is None or profile is None or not profile.span:
            return None
        occupied.append(model.Span(start=partition.start, size=profile.span))
    return spans.to_mask(occupied)


def _free_starts(
    device: model.Device, profile: model.Profile, occupied: int
) -> tuple[int, ...]:
    return spans.free_starts(
        profile.starts, profile.span, device.geometry.region, occupied
    )


def _count_fitting(
    device: model.Device, profile: model.Profile, occupied: int
) -> int:
    return spans.count_fitting(
        profile.starts, profile.span, device.geometry.region, occupied
    )
