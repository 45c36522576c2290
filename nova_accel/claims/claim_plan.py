# SPDX-License-Identifier: Apache-2.0
"""Claims for the slots that Nova assigned to a server.

All functions are deterministic: a retry plans the same claims, so it finds
the partitions of an earlier attempt.
"""

import collections
import dataclasses
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.claims import matching
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names, providers

# Number of matches that are compared. A server exceeds it only with seven
# different groups that each fit on seven cards; further matches are ignored.
MAX_MATCHES = 1000

# A request group, and the claim of one of its slots.
GroupClaim = tuple[flavors.RequestGroup, model.Claim]


def plan(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
    allocated: model.Allocations = types.MappingProxyType({}),
) -> tuple[model.Claim, ...]:
    """Return the claims for a consumer's slots; see plan_by_group.

    :raises ClaimError: as there.
    """
    return _claims_of(
        plan_by_group(consumer, groups, slots, root, host, allocated)
    )


def plan_by_group(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
    allocated: model.Allocations = types.MappingProxyType({}),
) -> tuple[GroupClaim, ...]:
    """Return the claims for a consumer's slots, each with its group.

    The flavor's groups name profiles, Nova's slots name devices: each group
    is matched to the slots of one device that has its profile. Preferred
    is a match that agrees with the allocations and whose partitions exist,
    then the first one with room. A group with a slot of its own gets that
    slot, which no other group can use.

    :param consumer: UUID of the server.
    :param groups: the flavor's request groups.
    :param slots: slots that Nova's resource tracker assigned to the server.
    :param allocated: the server's allocations, where the caller has them.
        They are ignored if no match agrees with them, as after an edit of
        the flavor.
    :raises ClaimError: the slots don't match the groups, or a partition
        can't be made any more.
    """
    groups, slots = tuple(groups), tuple(slots)
    devices = _devices_by_provider(root, host)
    free = _slots_by_provider(consumer, slots, devices, root, host)
    pinned = tuple(_claim_pinned(consumer, groups, free, devices))
    open_groups = [group for group in groups if group.slot is None]
    requests = tuple(matching.list_slot_requests(open_groups, free, devices))
    matches = matching.match(requests, free, devices, allocated)
    if allocated and next(matches, None) is None:
        return plan_by_group(consumer, groups, slots, root, host)
    check = _RoomCheck(consumer, devices, free, _claims_of(pinned), host)
    matches = matching.match(requests, free, devices, allocated, check)
    assigned = _choose_match(consumer, matches, free)
    if assigned is not None:
        pairs = (*assigned, *pinned)
        placed = check.place(_claims_of(pairs))
        if placed is not None:
            return tuple(
                (group, claim)
                for (group, _), claim in zip(pairs, placed, strict=True)
            )
    raise errors.ClaimError(
        consumer,
        check.reasons[0]
        if check.reasons
        else matching.explain_mismatch(requests, free, devices),
        public=f"no room on its host for {'; '.join(map(str, groups))}",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _RoomCheck:
    """Check for ``matching.match`` whether a device has room.

    ``reasons`` collects why claims have no place.
    """

    consumer: str
    devices: Mapping[str, model.Device]
    free: Mapping[str, set[str]]
    pinned: tuple[model.Claim, ...]
    host: model.HostState
    reasons: list[str] = dataclasses.field(default_factory=list)

    def __call__(
        self, provider: str, requests: Sequence[matching.SlotRequest]
    ) -> bool:
        device = self.devices[provider]
        assignments = [
            (group, device, provider, count) for group, _, count in requests
        ]
        claims = (
            *_claims_of(_assign_slots(self.consumer, assignments, self.free)),
            *(claim for claim in self.pinned if claim.provider == provider),
        )
        return self.place(claims) is not None

    def place(
        self, claims: tuple[model.Claim, ...]
    ) -> tuple[model.Claim, ...] | None:
        """Return the claims with their places, None without room."""
        placed, reason = _place(claims, self.host)
        if reason:
            self.reasons.append(reason)
            return None
        return placed


def _claims_of(pairs: Iterable[GroupClaim]) -> tuple[model.Claim, ...]:
    return tuple(claim for _, claim in pairs)


def find_existing(
    consumer: str,
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
) -> tuple[model.Claim, ...]:
    """Return claims for the existing partitions in slots.

    A release removes these partitions; the flavor does not matter.
    """
    devices = _devices_by_provider(root, host)
    claims = []
    for slot in sorted(slots):
        device = devices.get(slot.provider)
        if device is None:
            continue
        claims += [
            claim_from_partition(
                device, partition, consumer, slot.provider, slot.identifier
            )
            for partition in _list_partitions(device, slot)
        ]
    return tuple(claims)


def _devices_by_provider(
    root: providers.ProviderRoot, host: model.HostState
) -> dict[str, model.Device]:
    return {
        names.provider_uuid(root.uuid, device.address): device
        for device in host.devices
    }


def _slots_by_provider(
    consumer: str,
    slots: Iterable[model.Slot],
    devices: Mapping[str, model.Device],
    root: providers.ProviderRoot,
    host: model.HostState,
) -> dict[str, set[str]]:
    by_provider: dict[str, set[str]] = {}
    for slot in slots:
        if slot.provider not in devices:
            cause = _explain_absence(slot.provider, root, host)
            raise errors.ClaimError(
                consumer,
                f"slot {slot.identifier} belongs to resource provider"
                f" {slot.provider}, and this host has no device of that"
                f" provider now: {cause}",
            )
        by_provider.setdefault(slot.provider, set()).add(slot.identifier)
    return by_provider


def _explain_absence(
    provider: str, root: providers.ProviderRoot, host: model.HostState
) -> str:
    """Return why a device is not offered, from the problems of the host."""
    for problem in host.problems:
        address = problem.address
        if address and names.provider_uuid(root.uuid, address) == provider:
            return f"{problem.where} {problem.reason}"
    return (
        "its card has left the host, or has another driver; `nova-accel"
        " inspect` prints what the host has"
    )


def _claim_pinned(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    free: dict[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[GroupClaim]:
    """Yield the claims of groups with a slot; remove it from ``free``."""
    for group in sorted(groups, key=lambda g: g.suffix):
        if group.slot is None:
            continue
        provider, identifier = group.slot
        device = devices.get(provider)
        if device is None or identifier not in free.get(provider, ()):
            raise errors.ClaimError(
                consumer, f"{group} lost its slot {identifier} of {provider}"
            )
        if matching.find_profile(group, device) is None:
            raise errors.ClaimError(
                consumer, f"{device.address} can't make {group} any more"
            )
        free[provider].discard(identifier)
        if not free[provider]:
            del free[provider]
        yield group, _claim(consumer, group, device, provider, identifier)


def _choose_match(
    consumer: str,
    matches: Iterator[list[matching.Assignment]],
    free: Mapping[str, set[str]],
) -> tuple[GroupClaim, ...] | None:
    """Return the claims of the match with most existing partitions.

    Of equal ones the providers' UUIDs decide: once the claims of a match
    are made, the same match is chosen again. None without a match.
    """

    def key(pairs: tuple[GroupClaim, ...]) -> tuple[int, list[str]]:
        claims = _claims_of(pairs)
        made = sum(c.state is model.ClaimState.MADE for c in claims)
        return -made, [claim.provider for claim in claims]

    return min(
        (
            tuple(_assign_slots(consumer, match, free))
            for match in itertools.islice(matches, MAX_MATCHES)
        ),
        key=key,
        default=None,
    )


def _assign_slots(
    consumer: str,
    assignments: Iterable[matching.Assignment],
    free: Mapping[str, set[str]],
) -> Iterator[GroupClaim]:
    """Yield the claims of a match; slots are assigned in sorted order."""
    unassigned = {provider: sorted(slots) for provider, slots in free.items()}
    for group, device, provider, count in assignments:
        for identifier in unassigned[provider][:count]:
            yield group, _claim(consumer, group, device, provider, identifier)
        del unassigned[provider][:count]


def _claim(
    consumer: str,
    group: flavors.RequestGroup,
    device: model.Device,
    provider: str,
    identifier: str,
) -> model.Claim:
    profile = matching.find_profile(group, device)
    assert profile is not None  # noqa: S101 - match() has checked it
    handle = matching.slot_handle(device, provider, identifier)
    for partition in device.partitions:
        if partition.handle != handle:
            continue
        if partition.profile == profile.name:
            return claim_from_partition(
                device, partition, consumer, provider, identifier
            )
        if _may_have_profile(partition, profile):
            return dataclasses.replace(
                claim_from_partition(
                    device, partition, consumer, provider, identifier
                ),
                profile=profile.name,
            )
    is_on_function = (
        device.technology != "mdev" or identifier in profile.handles
    )
    is_region = device.region is not None
    functions = (
        matching.required_functions(group) if is_region else frozenset()
    )
    return dataclasses.replace(
        claim_from_partition(
            device,
            model.Partition(
                profile=profile.name,
                parent=identifier if is_on_function else device.address,
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


def _may_have_profile(
    partition: model.Partition, profile: model.Profile
) -> bool:
    """Return whether a partition with an unknown name may be of a profile.

    The partition only has its type's number, and the number of the profile
    is unknown. The partition in a server's slot was made for its flavor.
    The caller checks that it is the server's.
    """
    return partition.is_nameless and partition.parent not in profile.handles


def claim_charges(device: model.Device, claim: model.Claim) -> dict[str, int]:
    """Return the charges of a claim by resource class.

    Classes without a counter of the device are left out: its provider has
    no inventory of them.
    """
    amounts = device.charges(claim.profile)
    return {n: a for n, a in amounts.items() if n in device.counters}


def find_unallocated(
    claims: Iterable[model.Claim],
    charged: Mapping[model.ClaimKey, Mapping[str, int]],
    allocated: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> dict[model.ClassKey, int]:
    """Return the charges of claims without an allocation.

    Allocations of consumers that exceed their claims count for other
    claims: a server in a move has an allocation under the UUID of its
    migration.

    :param charged: charges of each claim; other claims are ignored.
    :param allocated: amounts by provider, consumer and resource class;
        claims on other providers are ignored.
    """
    keys_by_class: dict[tuple[str, str], list[model.ClaimKey]] = {}
    for claim in claims:
        if claim.provider in allocated:
            for name in charged.get(claim.key, ()):
                key = claim.provider, name
                keys_by_class.setdefault(key, []).append(claim.key)
    return {
        (*key, name): amount
        for (provider, name), keys in keys_by_class.items()
        for key, amount in _find_uncovered(
            {key: charged[key][name] for key in sorted(keys)},
            {
                consumer: resources.get(name, 0)
                for consumer, resources in allocated[provider].items()
            },
        )
    }


def _find_uncovered(
    needed: Mapping[model.ClaimKey, int], allocated: Mapping[str, int]
) -> Iterator[tuple[model.ClaimKey, int]]:
    """Yield the claims without a full allocation, and the missing amounts.

    :param needed: charges of the claims, of one class.
    :param allocated: amounts of the class by consumer.
    """
    unused = collections.Counter(allocated)
    missing = {}
    for key, amount in needed.items():
        covered = min(amount, unused[key[0]])
        unused[key[0]] -= covered
        missing[key] = amount - covered
    spare = unused.total()
    for key, amount in missing.items():
        covered = min(amount, spare)
        spare -= covered
        if amount > covered:
            yield key, amount - covered


def claim_from_partition(
    device: model.Device,
    partition: model.Partition,
    consumer: str = "",
    provider: str = "",
    slot: str = "",
) -> model.Claim:
    """Return the claim of an existing partition.

    :param consumer: UUID of its server, empty without one.
    :param provider: UUID of the device's provider, which has the ``slot``.
    """
    profile = device.profile(partition.profile)
    instance = device.geometry.instance(partition.instance)
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
        # Recreating the partition needs the instance at the same place.
        instance_start=(
            instance.span.start
            if is_owned and instance and instance.span
            else None
        ),
        owns_instance=is_owned,
        region=device.region,
        state=model.ClaimState.MADE,
    )


def _list_partitions(
    device: model.Device, slot: model.Slot
) -> Iterator[model.Partition]:
    """Yield the partition in a slot; a whole function is one in its own."""
    handle = matching.slot_handle(device, slot.provider, slot.identifier)
    partitions = [p for p in device.partitions if p.handle == handle]
    is_whole = device.technology in model.UNDIVIDED and handle in device.slots
    if not partitions and is_whole and device.profiles:
        profile = next(
            (p for p in device.profiles if handle in p.handles),
            device.profiles[0],
        )
        yield model.Partition(
            profile=profile.name, parent=handle, handle=handle
        )
    yield from partitions


def _place(
    claims: tuple[model.Claim, ...], host: model.HostState
) -> tuple[tuple[model.Claim, ...], str]:
    """Return the claims with their places, or the reason without room.

    The largest are placed first, which wastes least; existing partitions
    keep their place. A stale partition in one of the slots will be removed
    before the first one is made, so it occupies no place.
    """
    placed = list(claims)
    created: set[tuple[str, int | None]] = set()
    planned = [
        index
        for index, claim in enumerate(claims)
        if claim.state is model.ClaimState.PLANNED
    ]
    devices = _without_stale_partitions([claims[i] for i in planned], host)
    for index in sorted(planned, key=lambda i: _size_key(claims[i], devices)):
        claim = claims[index]
        device = devices[claim.device]
        profile = device.profile(claim.profile)
        if profile and profile.handles and not claim.type_id:
            return (), (
                f"{claim.slot} can't make {claim.profile}, though"
                f" {claim.device} can; see `nova-accel inspect` for what is"
                " wrong with it"
            )
        place = device_capacity.choose_place(device, claim.profile)
        if place is None:
            return (), (
                f"{claim.device} can make no more {claim.profile} beside"
                " what runs on it now; another server was faster"
            )
        start = place.instance_start
        if start is None:
            start = device_capacity.find_reserved_start(
                device, claim.profile, created
            )
        created.add((claim.device, start))
        devices[claim.device] = device_capacity.add_partition(
            device, claim.profile, place
        )
        placed[index] = dataclasses.replace(
            claim, start=place.start, instance_start=start
        )
    return tuple(placed), ""


def _without_stale_partitions(
    claims: Sequence[model.Claim], host: model.HostState
) -> dict[str, model.Device]:
    """Return the devices of claims without partitions in their slots."""
    handles = {claim.handle for claim in claims}
    return {
        device.address: device_capacity.remove_partitions(device, handles)
        for address in {claim.device for claim in claims}
        if (device := host.device(address)) is not None
    }


def _size_key(
    claim: model.Claim, devices: Mapping[str, model.Device]
) -> tuple[int, int, int]:
    device = devices[claim.device]
    profile = device.profile(claim.profile)
    return device_capacity.size_key(device, profile) if profile else (0, 0, 0)
