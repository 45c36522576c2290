# SPDX-License-Identifier: Apache-2.0
"""Remaining capacity of a device, in all layouts.

It is limited by ``Profile.available``, by the device's counters, by its
slots and limits, and by the geometry of its layout. ``available`` was read
with the partitions that exist; planned partitions have no handle and are
subtracted from it.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.geometry import mig, time_slicing

_Remaining = Callable[[model.Device, model.Profile], int]

# Further partitions of a profile by layout; ANY has no limit of its own.
_REMAINING_BY_LAYOUT: Mapping[model.Layout, _Remaining] = {
    model.Layout.EQUAL: time_slicing.remaining_equal,
    model.Layout.MIXED: time_slicing.remaining_mixed,
    model.Layout.MIG: mig.remaining,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Place of the next partition of a profile.

    ``start`` is its start under a MIXED layout, None where the device
    chooses. ``instance_start`` is the start of the GPU instance to create
    for it, None where one with room exists.
    """

    start: int | None = None
    instance_start: int | None = None


def choose_place(
    device: model.Device, profile_name: str
) -> PartitionPlace | None:
    """Return the place of the next partition, None if it doesn't fit.

    The choice is deterministic: a place that costs the profile itself no
    more than one partition, and then leaves most for large profiles.
    """
    profile = device.profile(profile_name)
    free, room = free_counters(device), _list_room(device)
    if profile is None or _count_remaining(device, profile, free, room) < 1:
        return None
    if device.geometry.layout is model.Layout.MIXED:
        return PartitionPlace(
            start=time_slicing.choose_mixed_start(device, profile)
        )
    if device.geometry.layout is model.Layout.MIG:
        return PartitionPlace(
            instance_start=mig.choose_instance_start(device, profile)
        )
    return PartitionPlace()


def size_key(
    device: model.Device, profile: model.Profile
) -> tuple[int, int, int]:
    """Return the sort key for placing profiles, largest first.

    That order wastes least.
    """
    kind = device.geometry.kind(profile.instance)
    return -(kind.size if kind else 0), -profile.span, -profile.size


def add_partition(
    device: model.Device, profile_name: str, place: PartitionPlace
) -> model.Device:
    """Return the device with one more planned partition.

    It has no handle, which marks it as planned. ``available`` is lowered
    by one: under EQUAL that of all profiles, as they share the slots, else
    that of the profile.
    """
    device = _add_instance(device, profile_name, place)
    is_shared = device.geometry.layout is model.Layout.EQUAL
    profile = device.profile(profile_name)
    instance = None
    if profile is not None and device.geometry.layout is model.Layout.MIG:
        instance = mig.find_instance(device, profile)
    return dataclasses.replace(
        device,
        partitions=(
            *device.partitions,
            model.Partition(
                profile=profile_name,
                parent=device.address,
                handle="",
                start=place.start,
                instance=instance,
            ),
        ),
        profiles=tuple(
            [
                dataclasses.replace(p, available=p.available - 1)
                if is_shared or p.name == profile_name
                else p
                for p in device.profiles
            ]
        ),
    )


def reserve_claims(
    device: model.Device, claims: Iterable[model.Claim]
) -> model.Device:
    """Return the device with the partitions of claims that are not made.

    A server that is shut off may have lost its partitions to a reboot of
    the host: their room remains reserved, so that it can start again.
    They have the places and handles of their claims.

    :param claims: claims of servers; those of other devices and those that
        are made have no effect.
    """
    existing = {partition.handle for partition in device.partitions}
    missing = [
        claim
        for claim in claims
        if claim.device == device.address
        and claim.state is model.ClaimState.PLANNED
        and device.technology not in model.UNDIVIDED
        and claim.handle not in existing
    ]
    if not missing:
        return device
    # Claims that create a GPU instance precede those that share it.
    missing.sort(key=lambda claim: claim.instance_start is None)
    for claim in missing:
        device = add_partition(
            device,
            claim.profile,
            PartitionPlace(
                start=claim.start, instance_start=claim.instance_start
            ),
        )
    device = recalculate(device)
    planned = [
        dataclasses.replace(
            partition,
            handle=claim.handle,
            parent=claim.parent or device.address,
        )
        for partition, claim in zip(
            device.partitions[-len(missing) :], missing, strict=True
        )
    ]
    others = device.partitions[: -len(missing)]
    return dataclasses.replace(device, partitions=(*others, *planned))


def find_reserved_start(
    device: model.Device,
    profile_name: str,
    created: Collection[tuple[str, int | None]] = (),
) -> int | None:
    """Return the start of the reserved GPU instance for the next partition.

    It is reserved by a claim that is not made; the first claim that needs
    it creates it. None where the instance exists, or a new one is chosen.

    :param created: addresses and starts of the instances that other claims
        of the same server create.
    """
    profile = device.profile(profile_name)
    if profile is None or device.geometry.layout is not model.Layout.MIG:
        return None
    handle = mig.find_instance(device, profile)
    return next(
        (
            instance.span.start
            for instance in device.geometry.instances
            if instance.handle == handle
            and instance.span is not None
            and handle == _planned_handle(instance.span.start)
            and (device.address, instance.span.start) not in created
        ),
        None,
    )


def remove_partitions(
    device: model.Device, handles: Collection[str]
) -> model.Device:
    """Return the device without some of its partitions.

    ``available`` was read with these partitions present: add one for each
    removed partition, or the room that the layout gains if that is more.
    A dynamic geometry loses the instances that become empty.
    """
    remaining_partitions = tuple(
        p for p in device.partitions if p.handle not in handles
    )
    removed = len(device.partitions) - len(remaining_partitions)
    if not removed:
        return device
    counters = dict(device.counters)
    if device.geometry.layout is not model.Layout.ANY:
        counters.pop(device.resource_class, None)  # it follows from layout
    after = dataclasses.replace(
        device,
        partitions=remaining_partitions,
        counters=counters,
        geometry=_remove_empty_instances(device, remaining_partitions),
    )
    return dataclasses.replace(
        after,
        profiles=tuple(
            dataclasses.replace(
                profile,
                available=profile.available
                + max(
                    removed,
                    _remaining_in_layout(after, profile, -1)
                    - _remaining_in_layout(device, profile, -1),
                ),
            )
            for profile in device.profiles
        ),
    )


def remaining(
    device: model.Device, planned: Iterable[str] = ()
) -> Mapping[str, int]:
    """Return how many more partitions of each single profile fit.

    :param planned: names of profiles whose partitions will be made first,
        each at the place of ``choose_place``.
    """
    for name in planned:
        place = choose_place(device, name)
        device = add_partition(device, name, place or PartitionPlace())
    free, room = free_counters(device), _list_room(device)
    return {
        p.name: _count_remaining(device, p, free, room)
        for p in device.profiles
    }


def capacity(device: model.Device) -> int:
    """Return the maximal number of partitions, existing ones included.

    The existing partitions remain. Besides slots, limits and counters it
    is limited by the layout:

    - ANY: partitions of one profile, as the device doesn't report the
      exchange rate of profiles.
    - EQUAL: partitions of the present size or, of an empty device, of the
      size with most partitions.
    - MIXED: partitions of any profiles; one more where a place is unknown.
    - MIG: partitions of any profiles in existing and new instances.
    """
    counts = remaining(device)
    fitting = tuple(p for p in device.profiles if counts[p.name] > 0)
    largest = max(counts.values(), default=0)
    in_layout = largest
    if device.geometry.layout is model.Layout.MIXED:
        in_layout = time_slicing.remaining_mixed_total(device, fitting)
    elif device.geometry.layout is model.Layout.MIG:
        in_layout = mig.remaining_total(device, fitting)
    free = free_counters(device)
    limits = (
        in_layout,
        sum(counts.values()),
        *_list_room(device),
        *_list_limits(device, _get_lowest_charges(fitting), free),
    )
    # No limit is lower than the count of a single profile.
    return len(device.partitions) + max(largest, min(limits))


def recalculate(device: model.Device) -> model.Device:
    """Return the device with consistent ``available`` and capacity.

    Each profile's ``available`` becomes its remaining count, the counter of
    the resource class the capacity. The function is idempotent.
    """
    counts = remaining(device)
    return dataclasses.replace(
        device,
        counters={**device.counters, device.resource_class: capacity(device)},
        profiles=tuple(
            [
                dataclasses.replace(p, available=counts[p.name])
                for p in device.profiles
            ]
        ),
    )


def free_counters(
    device: model.Device, planned: Iterable[str] = ()
) -> dict[str, int]:
    """Return the free amount of each counter, by resource class.

    :param planned: names of profiles to subtract besides the partitions.
    """
    free = dict(device.counters)
    names = [p.profile for p in device.partitions] + list(planned)
    for name in names:
        for counter, amount in device.charges(name).items():
            free[counter] = free.get(counter, 0) - amount
    return free


def _count_remaining(
    device: model.Device,
    profile: model.Profile,
    free: Mapping[str, int],
    room: Collection[int],
) -> int:
    """Return how many more of a profile fit.

    :param room: see ``_list_room``.
    """
    limits = [
        profile.available,
        _remaining_in_layout(device, profile, profile.available),
        *room,
        *_list_limits(device, profile.charges, free),
    ]
    if profile.limit is not None:
        existing = time_slicing.count_partitions(device, profile.name)
        limits.append(profile.limit - existing)
    return max(0, min(limits))


def _remaining_in_layout(
    device: model.Device, profile: model.Profile, default: int
) -> int:
    """Return the remaining count by layout; the default if it has none."""
    count = _REMAINING_BY_LAYOUT.get(device.geometry.layout)
    return default if count is None else count(device, profile)


def _list_limits(
    device: model.Device,
    charges: Mapping[str, int],
    free: Mapping[str, int],
) -> list[int]:
    """Return the remaining counts by each counter.

    The device's resource class is no limit until it has a counter.

    :param charges: of one partition.
    """
    limits = []
    for name, amount in charges.items():
        is_uncounted = (
            name == device.resource_class and name not in device.counters
        )
        if amount > 0 and not is_uncounted:
            limits.append(free.get(name, 0) // amount)
    return limits


def _get_lowest_charges(
    profiles: Collection[model.Profile],
) -> dict[str, int]:
    """Return the lowest charge of some profiles, by resource class."""
    charges = [profile.charges for profile in profiles]
    return {
        name: min([charge.get(name, 0) for charge in charges])
        for name in set[str]().union(*charges)
    }


def _list_room(device: model.Device) -> list[int]:
    """Return the remaining counts by slots and by the device's limit.

    A partition on a function that is not a slot occupies none.
    """
    parents = {device.address, *device.slots}
    occupied = [p for p in device.partitions if p.parent in parents]
    room = [len(device.slots) - len(occupied)]
    if device.geometry.limit is not None:
        room.append(device.geometry.limit - len(device.partitions))
    return room


def _add_instance(
    device: model.Device, profile_name: str, place: PartitionPlace
) -> model.Device:
    """Return the device with the GPU instance that a place requires.

    Claims that share an instance have the same start: it is added once.
    """
    profile, start = device.profile(profile_name), place.instance_start
    kind = device.geometry.kind(profile.instance) if profile else None
    if kind is None or start is None:
        return device
    if any(
        i.handle == _planned_handle(start) and i.kind == kind.name
        for i in device.geometry.instances
    ):
        return device
    planned = model.Instance(
        kind=kind.name,
        handle=_planned_handle(start),
        span=model.Span(start=start, size=kind.size),
    )
    geometry = dataclasses.replace(
        device.geometry, instances=(*device.geometry.instances, planned)
    )
    return dataclasses.replace(device, geometry=geometry)


def _planned_handle(start: int) -> str:
    """Return the handle of a GPU instance that does not exist yet."""
    return f"planned-{start}"


def _remove_empty_instances(
    device: model.Device, partitions: Iterable[model.Partition]
) -> model.Geometry:
    """Return the geometry without instances that lost all partitions."""
    if not device.geometry.is_dynamic:
        return device.geometry
    used = {p.instance for p in partitions}
    emptied = {p.instance for p in device.partitions} - used
    return dataclasses.replace(
        device.geometry,
        instances=tuple(
            i for i in device.geometry.instances if i.handle not in emptied
        ),
    )
