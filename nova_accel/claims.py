# SPDX-License-Identifier: Apache-2.0
"""Which partition each slot that Nova handed out stands for."""

import dataclasses
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import (
    errors,
    flavors,
    matching,
    model,
    names,
    packing,
    providers,
    regions,
)

# How many ways to serve a server are compared with each other. More need
# seven different groups that seven cards could serve each: those are
# taken as they come.
MAX_WAYS = 1000


def plan(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
    booked: model.Booked = types.MappingProxyType({}),
) -> tuple[model.Claim, ...]:
    """Return the claims that a consumer's slots stand for.

    The flavor's groups name profiles, Nova's slots name devices: each
    group is matched to the slots of one device that has its profile. Of
    several matches, one that agrees with what Placement booked and is
    made already comes first, then the first for which there is room. The
    same input gives the same claims, so a retry finds its own work. A
    group that names its slot gets that one, and no other group does.

    :param consumer: uuid of the server.
    :param groups: the flavor's request groups.
    :param slots: what Nova's resource tracker claimed for the server.
    :param booked: the server's allocations, amounts by provider and
        resource class, where the caller has them. A flavor edited since
        the server was booked agrees with none: then they are left aside.
    :raises ClaimError: the slots can't be matched, or what they stand for
        can't be made any more.
    """
    groups, slots = tuple(groups), tuple(slots)
    devices = _devices(root, host)
    free = _by_provider(consumer, slots, devices)
    pinned = tuple(_pinned(consumer, groups, free, devices))
    open_groups = [group for group in groups if group.slot is None]
    wanted = tuple(matching.slot_groups(open_groups, free, devices))
    short = ""
    ways = matching.match(wanted, free, devices, booked)
    first = next(ways, None)
    if first is None and booked:
        return plan(consumer, groups, slots, root, host)
    ways = itertools.chain(() if first is None else (first,), ways)
    for matched in _made_first(consumer, ways, free, devices):
        placed, lacking = _place((*matched, *pinned), host)
        if not lacking:
            return placed
        short = short or lacking
    raise errors.ClaimError(
        consumer, short or matching.mismatch(wanted, free, devices)
    )


def find(
    consumer: str,
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
) -> tuple[model.Claim, ...]:
    """Return the claims whose partitions exist, whatever the flavor says.

    It is what a release has to unmake.
    """
    devices = _devices(root, host)
    found = []
    for slot in sorted(slots):
        device = devices.get(slot.provider)
        if device is None:
            continue
        found += [
            of_partition(
                device, partition, consumer, slot.provider, slot.identifier
            )
            for partition in _in_slot(device, slot)
        ]
    return tuple(found)


def _devices(
    root: providers.ProviderRoot, host: model.HostState
) -> dict[str, model.Device]:
    return {
        names.provider_uuid(root.uuid, device.address): device
        for device in host.devices
    }


def _by_provider(
    consumer: str,
    slots: Iterable[model.Slot],
    devices: Mapping[str, model.Device],
) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for slot in slots:
        if slot.provider not in devices:
            raise errors.ClaimError(
                consumer,
                f"slot {slot.identifier} belongs to resource provider"
                f" {slot.provider}, and no device of this host is that"
                " provider now; see `nova-accel inspect` for what is"
                " missing",
            )
        found.setdefault(slot.provider, set()).add(slot.identifier)
    return found


def _pinned(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    free: dict[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[model.Claim]:
    """Yield the claims of groups that name their slots, which they take."""
    for group in sorted(groups, key=lambda g: g.suffix):
        if group.slot is None:
            continue
        provider, identifier = group.slot
        device = devices.get(provider)
        if device is None or identifier not in free.get(provider, ()):
            raise errors.ClaimError(
                consumer, f"{group} lost its slot {identifier} of {provider}"
            )
        if matching.profile_of(group, device) is None:
            raise errors.ClaimError(
                consumer, f"{device.address} can't make {group} any more"
            )
        free[provider].discard(identifier)
        if not free[provider]:
            del free[provider]
        yield _claim(consumer, group, device, provider, identifier)


def _made_first(
    consumer: str,
    ways: Iterator[list[matching.Choice]],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[tuple[model.Claim, ...]]:
    """Yield the claims of each way, those with most of them made first.

    Of equals, the providers' uuids decide: making a way's claims changes
    nothing in its place, so it is found again.
    """

    def key(
        way: tuple[list[matching.Choice], tuple[model.Claim, ...]],
    ) -> tuple[int, list[str]]:
        matched, claims = way
        made = sum(c.state is model.ClaimState.MADE for c in claims)
        return -made, [provider for _, _, provider, _ in matched]

    def dealt(
        matched: list[matching.Choice],
    ) -> tuple[list[matching.Choice], tuple[model.Claim, ...]]:
        return matched, tuple(_deal(consumer, matched, free, devices))

    compared = [dealt(m) for m in itertools.islice(ways, MAX_WAYS)]
    for _, claims in sorted(compared, key=key):
        yield claims
    for matched in ways:
        yield dealt(matched)[1]


def _deal(
    consumer: str,
    matched: Iterable[matching.Choice],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[model.Claim]:
    """Yield the claims of a match, slots dealt in their own order.

    Of groups that ask for the same, the provider's uuid decides which
    comes first: a guest finds its devices in the same order every time.
    """
    rest = {provider: sorted(slots) for provider, slots in free.items()}
    for _, alike in itertools.groupby(matched, key=_asked):
        for group, device, provider, count in sorted(
            alike, key=lambda choice: choice[2]
        ):
            for identifier in rest[provider][:count]:
                yield _claim(consumer, group, device, provider, identifier)
            del rest[provider][:count]


def _asked(choice: matching.Choice) -> tuple[frozenset[str], str, int]:
    group, device, _, count = choice
    return group.required, device.resource_class, count


def _claim(
    consumer: str,
    group: flavors.RequestGroup,
    device: model.Device,
    provider: str,
    identifier: str,
) -> model.Claim:
    """Return the claim that a slot stands for, its place still open."""
    profile = matching.profile_of(group, device)
    assert profile is not None  # noqa: S101 - the match chose by it
    handle = matching.handle_of(device, provider, identifier)
    for partition in device.partitions:
        if partition.handle != handle:
            continue
        if partition.profile == profile.name:
            return of_partition(
                device, partition, consumer, provider, identifier
            )
        if _may_be(partition, profile):
            return dataclasses.replace(
                of_partition(
                    device, partition, consumer, provider, identifier
                ),
                profile=profile.name,
            )
    on_function = device.technology != "mdev" or identifier in profile.handles
    is_region = device.region is not None
    functions = regions.wanted_functions(group) if is_region else frozenset()
    return dataclasses.replace(
        of_partition(
            device,
            model.Partition(
                profile=profile.name,
                parent=identifier if on_function else device.address,
                handle=handle,
            ),
            consumer,
            provider,
            identifier,
        ),
        functions=functions,
        image=group.bitstream if is_region else "",
        state=model.ClaimState.PLANNED,
    )


def _may_be(partition: model.Partition, profile: model.Profile) -> bool:
    """Return whether a flavor's word names what nothing on the host does.

    The partition shows its type's number only, and of the profile the
    number is not known. What stands in a server's slots was made for its
    flavor: whoever asks sees to it that the partition is the server's.
    """
    return partition.is_nameless and partition.parent not in profile.handles


def of_partition(
    device: model.Device,
    partition: model.Partition,
    consumer: str = "",
    provider: str = "",
    slot: str = "",
) -> model.Claim:
    """Return the claim that an existing partition would be.

    :param consumer: uuid of its server, empty where it has none.
    :param provider: uuid of the device's provider, with ``slot``.
    """
    profile = device.profile(partition.profile)
    instance = _instance(device, partition)
    kind = profile.instance if profile else instance.kind if instance else ""
    is_owned = device.geometry.is_dynamic and bool(kind)
    return model.Claim(
        consumer=consumer,
        provider=provider,
        device=device.address,
        profile=partition.profile,
        slot=slot,
        parent=partition.parent,
        handle=partition.handle,
        technology=device.technology,
        plugin=device.plugin,
        type_id=profile.handles.get(partition.parent, "") if profile else "",
        device_api=profile.device_api if profile else "",
        members=device.members,
        is_managed=device.is_managed,
        vgpu_params=device.vgpu_params,
        start=partition.start,
        instance=kind,
        # Made anew, it needs its instance again: that goes with it.
        instance_start=(
            instance.span.start
            if is_owned and instance and instance.span
            else None
        ),
        owns_instance=is_owned,
        region=device.region,
        state=model.ClaimState.MADE,
    )


def _instance(
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


def _in_slot(
    device: model.Device, slot: model.Slot
) -> Iterator[model.Partition]:
    """Yield what stands in a slot; a whole function stands in its own."""
    handle = matching.handle_of(device, slot.provider, slot.identifier)
    found = [p for p in device.partitions if p.handle == handle]
    is_whole = (
        device.technology in matching.WHOLE and handle in device.slots
    )
    if not found and is_whole and device.profiles:
        profile = next(
            (p for p in device.profiles if handle in p.handles),
            device.profiles[0],
        )
        yield model.Partition(
            profile=profile.name, parent=handle, handle=handle
        )
    yield from found


def _place(
    claims: tuple[model.Claim, ...], host: model.HostState
) -> tuple[tuple[model.Claim, ...], str]:
    """Return the claims with their places, and why not if there are none.

    The largest are placed first, which leaves the least unused; what is
    made already stays where it is. What an earlier life left in one of
    the slots goes before anything is made: it takes no place.
    """
    found = list(claims)
    devices: dict[str, model.Device] = {}
    begun: set[tuple[str, int | None]] = set()
    open_ones = [
        n for n, c in enumerate(claims) if c.state is model.ClaimState.PLANNED
    ]
    handles = {claims[n].handle for n in open_ones}
    for address in {claims[n].device for n in open_ones}:
        device = host.device(address)
        if device is not None:
            devices[address] = packing.without(device, handles)
    for n in sorted(open_ones, key=lambda n: _order(claims[n], devices)):
        claim = claims[n]
        device = devices[claim.device]
        profile = device.profile(claim.profile)
        if profile and profile.handles and not claim.type_id:
            return (), (
                f"{claim.slot} can't make {claim.profile}, though"
                f" {claim.device} can; see `nova-accel inspect` for what is"
                " wrong with it"
            )
        choice = packing.choose(device, claim.profile)
        if choice is None:
            return (), (
                f"{claim.device} can make no more {claim.profile} beside"
                " what runs on it now; another server was faster"
            )
        begins = choice.instance_start
        if begins is None:
            begins = packing.held_start(device, claim.profile, begun)
        begun.add((claim.device, begins))
        devices[claim.device] = packing.assume(device, claim.profile, choice)
        found[n] = dataclasses.replace(
            claim, start=choice.start, instance_start=begins
        )
    return tuple(found), ""


def _order(
    claim: model.Claim, devices: Mapping[str, model.Device]
) -> tuple[int, int, int]:
    """Return by what claims are sorted: large ones first."""
    device = devices[claim.device]
    profile = device.profile(claim.profile)
    if profile is None:
        return 0, 0, 0
    kind = device.geometry.kind(profile.instance)
    return -(kind.size if kind else 0), -profile.span, -profile.size
