# SPDX-License-Identifier: Apache-2.0
"""Capacity of a GPU in equal-size and in mixed-size mode."""

from collections.abc import Iterable

from nova_accel import model
from nova_accel.geometry import spans


def is_planned(partition: model.Partition) -> bool:
    """Return whether a partition is only assumed: it has no handle yet."""
    return not partition.handle


def count_of(device: model.Device, profile: str) -> int:
    """Return how many partitions of a profile a device holds."""
    return sum(p.profile == profile for p in device.partitions)


def equal_room(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile fit in equal-size mode.

    The first partition decides the size, and the size how many there may
    be of all profiles together. Where it can't be told which size reigns,
    the device's own word is all there is: it knows what stands on it, but
    nothing of what is planned.
    """
    held: set[int] = set()
    for partition in device.partitions:
        other = device.profile(partition.profile)
        if not is_planned(partition):
            held.add(other.size if other else 0)
        elif partition.profile != profile.name and (
            other is None or not other.size or other.size != profile.size
        ):
            return 0
    reigning = held.pop() if len(held) == 1 else 0
    if reigning and profile.size and reigning != profile.size:
        return 0
    if profile.limit is None:
        return profile.available
    return profile.limit - len(device.partitions)


def mixed_room(device: model.Device, profile: model.Profile) -> int:
    """Return how many more of a profile have a place in mixed-size mode.

    Where a partition's place or the profile's own places are not known,
    the device's word is good for one more, and for none beside a plan.
    """
    taken = _taken(device)
    if taken is None or not _has_places(profile):
        planned = any(map(is_planned, device.partitions))
        return 0 if planned else min(1, profile.available)
    return _count(device, profile, taken)


def mixed_start(device: model.Device, profile: model.Profile) -> int | None:
    """Return where the next of a profile should begin.

    Of the places that cost its own kind no more than one, that which
    leaves the most for the largest profiles, then for the next smaller
    ones, and of equals the lowest. None leaves it to the device.
    """
    taken = _taken(device)
    if taken is None or not _has_places(profile):
        return None
    kinds = {(p.span, p.starts): p for p in device.profiles if _has_places(p)}
    ranked = [profile, *(kinds[k] for k in sorted(kinds, reverse=True))]
    return spans.best(
        _openings(device, profile, taken),
        profile.span,
        taken,
        lambda mask: tuple(_count(device, p, mask) for p in ranked),
    )


def mixed_reach(
    device: model.Device, profiles: Iterable[model.Profile]
) -> int:
    """Return how many more partitions have places in mixed-size mode.

    :param profiles: those of which at least one more fits.
    """
    found = tuple(profiles)
    taken = _taken(device)
    if taken is None:
        return min(1, len(found))
    reach = spans.most(
        {
            (start, profile.span)
            for profile in found
            if _has_places(profile)
            for start in _openings(device, profile, taken)
        }
    )
    return max(reach, min(1, len(found)))


def _has_places(profile: model.Profile) -> bool:
    return profile.span > 0 and bool(profile.starts)


def _taken(device: model.Device) -> int | None:
    """Return what is taken of the region, None if that is not known."""
    found = []
    for partition in device.partitions:
        profile = device.profile(partition.profile)
        if partition.start is None or profile is None or not profile.span:
            return None
        found.append(model.Span(start=partition.start, size=profile.span))
    return spans.mask(found)


def _openings(
    device: model.Device, profile: model.Profile, taken: int
) -> tuple[int, ...]:
    return spans.openings(
        profile.starts, profile.span, device.geometry.region, taken
    )


def _count(device: model.Device, profile: model.Profile, taken: int) -> int:
    return spans.room(
        profile.starts, profile.span, device.geometry.region, taken
    )
