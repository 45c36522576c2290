# SPDX-License-Identifier: Apache-2.0
"""Claims for the slots that Nova assigned to a server."""

import collections
import dataclasses
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.claims import matching
from nova_accel.fpga import regions
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names, providers

# How many ways to serve a server are compared with each other. More need
# seven different groups that seven cards could serve each: the others are
# left aside.
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
    is_matched = next(matching.match(wanted, free, devices, booked), None)
    if booked and is_matched is None:
        return plan(consumer, groups, slots, root, host)
    lacks: list[str] = []

    def has_room(provider: str, served: Sequence[matching.Wanted]) -> bool:
        device = devices[provider]
        chosen = [(group, device, provider, n) for group, _, n in served]
        claims = (
            *_deal(consumer, chosen, free),
            *(claim for claim in pinned if claim.provider == provider),
        )
        _, lacking = _place(claims, host)
        lacks.extend([lacking] if lacking else ())
        return not lacking

    ways = matching.match(wanted, free, devices, booked, has_room)
    matched = _choose_way(consumer, ways, free)
    if matched is not None:
        placed, lacking = _place((*matched, *pinned), host)
        if not lacking:
            return placed
        lacks.append(lacking)
    raise errors.ClaimError(
        consumer,
        lacks[0] if lacks else matching.mismatch(wanted, free, devices),
        public=f"no room on its host for {'; '.join(map(str, groups))}",
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


def _choose_way(
    consumer: str,
    ways: Iterator[list[matching.Choice]],
    free: Mapping[str, set[str]],
) -> tuple[model.Claim, ...] | None:
    """Return the claims of the way with most of them made, None of none.

    Of equals, the providers' uuids decide: making a way's claims changes
    nothing in its place, so it is found again.
    """

    def key(claims: tuple[model.Claim, ...]) -> tuple[int, list[str]]:
        made = sum(c.state is model.ClaimState.MADE for c in claims)
        return -made, [claim.provider for claim in claims]

    return min(
        (
            tuple(_deal(consumer, way, free))
            for way in itertools.islice(ways, MAX_WAYS)
        ),
        key=key,
        default=None,
    )


def _deal(
    consumer: str,
    matched: Iterable[matching.Choice],
    free: Mapping[str, set[str]],
) -> Iterator[model.Claim]:
    """Yield the claims of a match, slots dealt in their own order."""
    rest = {provider: sorted(slots) for provider, slots in free.items()}
    for group, device, provider, count in matched:
        for identifier in rest[provider][:count]:
            yield _claim(consumer, group, device, provider, identifier)
        del rest[provider][:count]


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


def charges(device: model.Device, claim: model.Claim) -> dict[str, int]:
    """Return what a claim takes of its device, by resource class.

    Only of classes that the device counts: it has no inventory of others.
    """
    amounts = device.charges(claim.profile)
    return {n: a for n, a in amounts.items() if n in device.counters}


def find_unallocated(
    held: Iterable[model.Claim],
    charged: Mapping[model.ClaimKey, Mapping[str, int]],
    allocated: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> dict[model.ClassKey, int]:
    """Return what claims take that is not allocated, by resource class.

    What consumers have allocated beyond their claims counts for claims of
    others: a server that is moved has its allocation under the uuid of
    the migration.

    :param charged: by claim what it takes, by resource class; claims that
        are not in it are not looked at.
    :param allocated: amounts by provider, consumer and class; providers
        that are not in it are not known.
    """
    keys_by_class: dict[tuple[str, str], list[model.ClaimKey]] = {}
    for claim in held:
        if claim.provider in allocated:
            for name in charged.get(claim.key, ()):
                key = claim.provider, name
                keys_by_class.setdefault(key, []).append(claim.key)
    return {
        (*key, name): amount
        for (provider, name), keys in keys_by_class.items()
        for key, amount in _uncovered(
            {key: charged[key][name] for key in sorted(keys)},
            {
                consumer: resources.get(name, 0)
                for consumer, resources in allocated[provider].items()
            },
        )
    }


def _uncovered(
    needed: Mapping[model.ClaimKey, int], allocated: Mapping[str, int]
) -> Iterator[tuple[model.ClaimKey, int]]:
    """Yield the claims of which something is not allocated, and how much.

    :param needed: the amount of one class that each claim takes.
    :param allocated: amounts of the class by consumer.
    """
    rest = collections.Counter(allocated)
    lacking = {}
    for key, amount in needed.items():
        covered = min(amount, rest[key[0]])
        rest[key[0]] -= covered
        lacking[key] = amount - covered
    spare = rest.total()
    for key, amount in lacking.items():
        covered = min(amount, spare)
        spare -= covered
        if amount > covered:
            yield key, amount - covered


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
    is_whole = device.technology in model.UNDIVIDED and handle in device.slots
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
            devices[address] = device_capacity.without(device, handles)
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
        choice = device_capacity.choose(device, claim.profile)
        if choice is None:
            return (), (
                f"{claim.device} can make no more {claim.profile} beside"
                " what runs on it now; another server was faster"
            )
        begins = choice.instance_start
        if begins is None:
            begins = device_capacity.held_start(device, claim.profile, begun)
        begun.add((claim.device, begins))
        devices[claim.device] = device_capacity.assume(
            device, claim.profile, choice
        )
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
    return (
        device_capacity.size_order(device, profile) if profile else (0, 0, 0)
    )
