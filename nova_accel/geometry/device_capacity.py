# SPDX-License-Identifier: Apache-2.0
"""Remaining capacity of a device, in all layouts.

Four things bound it: the device's own word (``Profile.available``), its
counters, its slots and limits, and the geometry of its layout.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.geometry import mig, time_slicing

_Room = Callable[[model.Device, model.Profile], int]

# How many more of a profile each layout has room for; ANY says nothing.
_ROOMS: Mapping[model.Layout, _Room] = {
    model.Layout.EQUAL: time_slicing.equal_room,
    model.Layout.MIXED: time_slicing.mixed_room,
    model.Layout.MIG: mig.room,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where the next partition of a profile goes.

    ``start`` is its place under a MIXED layout, None where the device
    decides. ``instance_start`` is where a GPU instance must be made for it
    first, None where one with room exists.
    """

    start: int | None = None
    instance_start: int | None = None


def choose(device: model.Device, profile_name: str) -> PartitionPlace | None:
    """Return where the next of a profile goes, None if it doesn't fit.

    The same device gives the same choice: that which costs the profile
    itself no more than one, and then leaves the most for large profiles.
    """
    profile = device.profile(profile_name)
    free = free_counters(device)
    if profile is None or _more(device, profile, free) < 1:
        return None
    if device.geometry.layout is model.Layout.MIXED:
        return PartitionPlace(start=time_slicing.mixed_start(device, profile))
    if device.geometry.layout is model.Layout.MIG:
        return PartitionPlace(instance_start=mig.start(device, profile))
    return PartitionPlace()


def size_order(
    device: model.Device, profile: model.Profile
) -> tuple[int, int, int]:
    """Return the key by which the profiles of one server are placed.

    The largest come first, which leaves the least unused.
    """
    kind = device.geometry.kind(profile.instance)
    return -(kind.size if kind else 0), -profile.span, -profile.size


def assume(
    device: model.Device, profile_name: str, choice: PartitionPlace
) -> model.Device:
    """Return the device as it would be with one more partition.

    It has no handle yet: by that the reckoning knows that the device's own
    word was spoken before it. That word is lowered by one: under EQUAL all
    profiles', as all are cut from the same slots, else the profile's own.
    """
    device = _with_instance(device, profile_name, choice)
    is_shared = device.geometry.layout is model.Layout.EQUAL
    profile = device.profile(profile_name)
    instance = None
    if profile is not None and device.geometry.layout is model.Layout.MIG:
        instance = mig.home(device, profile)
    return dataclasses.replace(
        device,
        partitions=(
            *device.partitions,
            model.Partition(
                profile=profile_name,
                parent=device.address,
                handle="",
                start=choice.start,
                instance=instance,
            ),
        ),
        profiles=tuple(
            dataclasses.replace(p, available=p.available - 1)
            if is_shared or p.name == profile_name
            else p
            for p in device.profiles
        ),
    )


def hold(device: model.Device, claims: Iterable[model.Claim]) -> model.Device:
    """Return the device as it will be when what is claimed of it is made.

    A server that is off may have lost its partitions to a reboot of the
    host: the room that they need stays taken, so that it can be started.
    They are where the claims say, under the claims' handles.

    :param claims: the servers' claims; those of other devices, and those
        that are made, take nothing.
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
    # Who brings a GPU instance comes before those that share it.
    missing.sort(key=lambda claim: claim.instance_start is None)
    for claim in missing:
        device = assume(
            device,
            claim.profile,
            PartitionPlace(
                start=claim.start, instance_start=claim.instance_start
            ),
        )
    device = settle(device)
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
    kept = device.partitions[: -len(missing)]
    return dataclasses.replace(device, partitions=(*kept, *planned))


def held_start(
    device: model.Device,
    profile_name: str,
    begun: Collection[tuple[str, int | None]] = (),
) -> int | None:
    """Return where the GPU instance for the next of a profile must be made.

    It is held for a claim that is not made: whoever comes first makes it.
    None where it exists, or a new one is to be chosen.

    :param begun: addresses and starts of those that are made already for
        other claims of the same server.
    """
    profile = device.profile(profile_name)
    if profile is None or device.geometry.layout is not model.Layout.MIG:
        return None
    home = mig.home(device, profile)
    return next(
        (
            instance.span.start
            for instance in device.geometry.instances
            if instance.handle == home
            and instance.span is not None
            and home == _planned(instance.span.start)
            and (device.address, instance.span.start) not in begun
        ),
        None,
    )


def without(device: model.Device, handles: Collection[str]) -> model.Device:
    """Return the device as it would be without some of its partitions.

    The device's own word was spoken while they stood: it is raised by one
    each, or by the room that the layout gains. Of GPU instances that are
    made for claims, one that stands empty then goes as well.
    """
    kept = tuple(p for p in device.partitions if p.handle not in handles)
    gone = len(device.partitions) - len(kept)
    if not gone:
        return device
    counters = dict(device.counters)
    if device.geometry.layout is not model.Layout.ANY:
        counters.pop(device.resource_class, None)  # it follows from layout
    after = dataclasses.replace(
        device,
        partitions=kept,
        counters=counters,
        geometry=_without_empty(device, kept),
    )
    return dataclasses.replace(
        after,
        profiles=tuple(
            dataclasses.replace(
                p,
                available=p.available
                + max(gone, _room(after, p, -1) - _room(device, p, -1)),
            )
            for p in device.profiles
        ),
    )


def remaining(
    device: model.Device, planned: Iterable[str] = ()
) -> Mapping[str, int]:
    """Return how many more of each profile, alone, a device can make.

    :param planned: names of profiles about to be made, not yet visible in
        the device's partitions; each goes where ``choose`` puts it.
    """
    for name in planned:
        choice = choose(device, name)
        device = assume(device, name, choice or PartitionPlace())
    free = free_counters(device)
    return {p.name: _more(device, p, free) for p in device.profiles}


def capacity(device: model.Device) -> int:
    """Return the most partitions the device can hold at once.

    Reachable from its present state: what it holds stays. Never more than
    its slots, limits and counters allow, and as to the layout:

    ANY: of one profile, as the device says of none what it is worth in
    another. EQUAL: of the size that reigns; while none does, of that of
    which there can be most. MIXED: of any profiles side by side; one more
    where a place is not known. MIG: whatever fills the instances that
    exist, and those that can be made beside them, with most.
    """
    left = remaining(device)
    fitting = tuple(p for p in device.profiles if left[p.name] > 0)
    largest = max(left.values(), default=0)
    reach = largest
    if device.geometry.layout is model.Layout.MIXED:
        reach = time_slicing.mixed_reach(device, fitting)
    elif device.geometry.layout is model.Layout.MIG:
        reach = mig.reach(device, fitting)
    free = free_counters(device)
    bounds = (reach, sum(left.values()), *_bounds(device, fitting, free))
    # No bound is below what one profile alone can reach.
    return len(device.partitions) + max(largest, min(bounds))


def settle(device: model.Device) -> model.Device:
    """Return the device with its word and its geometry brought together.

    Each profile's ``available`` is what both allow, and the counter of the
    resource class is the capacity. A device that is settled stays as is.
    """
    left = remaining(device)
    return dataclasses.replace(
        device,
        counters={**device.counters, device.resource_class: capacity(device)},
        profiles=tuple(
            dataclasses.replace(p, available=left[p.name])
            for p in device.profiles
        ),
    )


def free_counters(
    device: model.Device, planned: Iterable[str] = ()
) -> dict[str, int]:
    """Return what partitions and plans leave of each counter."""
    free = dict(device.counters)
    names = [p.profile for p in device.partitions] + list(planned)
    for name in names:
        for counter, amount in device.charges(name).items():
            free[counter] = free.get(counter, 0) - amount
    return free


def _more(
    device: model.Device, profile: model.Profile, free: Mapping[str, int]
) -> int:
    """Return how many more of one profile a device can make."""
    bounds = [
        profile.available,
        _room(device, profile, profile.available),
        *_bounds(device, (profile,), free),
    ]
    if profile.limit is not None:
        held = time_slicing.count_of(device, profile.name)
        bounds.append(profile.limit - held)
    return max(0, min(bounds))


def _room(device: model.Device, profile: model.Profile, otherwise: int) -> int:
    """Return what the layout has room for, or else where it can't tell."""
    room = _ROOMS.get(device.geometry.layout)
    return otherwise if room is None else room(device, profile)


def _bounds(
    device: model.Device,
    profiles: tuple[model.Profile, ...],
    free: Mapping[str, int],
) -> list[int]:
    """Return how many more slots, the limit and each counter allow.

    A counter is divided by what the cheapest of the profiles charges. A
    resource class that isn't counted yet bounds nothing.
    """
    bounds = [_free_slots(device)]
    if device.geometry.limit is not None:
        bounds.append(device.geometry.limit - len(device.partitions))
    for name in {name for p in profiles for name in p.charges}:
        amount = min(p.charges.get(name, 0) for p in profiles)
        uncounted = (
            name == device.resource_class and name not in device.counters
        )
        if amount > 0 and not uncounted:
            bounds.append(free.get(name, 0) // amount)
    return bounds


def _free_slots(device: model.Device) -> int:
    """Return how many slots no partition takes.

    One that stands on a function that is no slot takes none.
    """
    parents = {device.address, *device.slots}
    return len(device.slots) - sum(
        p.parent in parents for p in device.partitions
    )


def _with_instance(
    device: model.Device, profile_name: str, choice: PartitionPlace
) -> model.Device:
    """Return the device with the GPU instance that a choice asks for.

    Claims that share an instance each name its start: it is made once.
    """
    profile, start = device.profile(profile_name), choice.instance_start
    kind = device.geometry.kind(profile.instance) if profile else None
    if kind is None or start is None:
        return device
    if any(
        i.handle == _planned(start) and i.kind == kind.name
        for i in device.geometry.instances
    ):
        return device
    made = model.Instance(
        kind=kind.name,
        handle=_planned(start),
        span=model.Span(start=start, size=kind.size),
    )
    geometry = dataclasses.replace(
        device.geometry, instances=(*device.geometry.instances, made)
    )
    return dataclasses.replace(device, geometry=geometry)


def _planned(start: int) -> str:
    """Return the handle of a GPU instance that is not made yet."""
    return f"planned-{start}"


def _without_empty(
    device: model.Device, kept: Iterable[model.Partition]
) -> model.Geometry:
    """Return the geometry less the instances that only others stood in."""
    if not device.geometry.is_dynamic:
        return device.geometry
    left = {p.instance for p in kept}
    emptied = {p.instance for p in device.partitions} - left
    return dataclasses.replace(
        device.geometry,
        instances=tuple(
            i for i in device.geometry.instances if i.handle not in emptied
        ),
    )
