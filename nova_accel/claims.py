# SPDX-License-Identifier: Apache-2.0
"""Which partition each slot that Nova handed out stands for."""

import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import errors, flavors, model, names, packing, providers

_Wanted = tuple[flavors.RequestGroup, str, int]
_Choice = tuple[flavors.RequestGroup, model.Device, str, int]


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
    same input gives the same claims, so a retry finds its own work.

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
    wanted = tuple(_slot_groups(groups, free, devices))
    short = ""
    ways = _match(wanted, free, devices, booked)
    first = next(ways, None)
    if first is None and booked:
        return plan(consumer, groups, slots, root, host)
    for matched in itertools.chain(() if first is None else (first,), ways):
        found = tuple(_deal(consumer, matched, free, devices))
        lacking = _shortage(found, host)
        if not lacking:
            return found
        short = short or lacking
    raise errors.ClaimError(
        consumer, short or _mismatch(wanted, free, devices)
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


def _slot_groups(
    groups: Iterable[flavors.RequestGroup],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> Iterator[_Wanted]:
    """Yield what each group asks of our classes.

    Ours are those that slots came from, and that of a device whose profile
    the group names: it was to get a slot too.
    """
    classes = {devices[provider].resource_class for provider in free}
    for group in sorted(groups, key=lambda g: g.suffix):
        named = {
            device.resource_class
            for device in devices.values()
            if any(p.trait in group.required for p in device.profiles)
        }
        for name in sorted((classes | named) & group.resources.keys()):
            if group.resources[name]:
                yield group, name, group.resources[name]


def _match(
    wanted: Sequence[_Wanted],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
    booked: model.Booked,
) -> Iterator[list[_Choice]]:
    """Yield the ways to serve every group and to use up every slot.

    A server has a handful of groups: plain backtracking serves. Groups
    that ask for the same are not tried in each other's place.
    """
    left = {provider: len(slots) for provider, slots in free.items()}
    fitting = [
        [
            provider
            for provider in _candidates(group, name, free, devices)
            if _is_covered(group, devices[provider], booked.get(provider))
        ]
        for group, name, _ in wanted
    ]

    def search(index: int, before: int) -> Iterator[list[_Choice]]:
        if index == len(wanted):
            if not any(left.values()):
                yield []
            return
        group, _, count = wanted[index]
        first = before if _is_repeated(wanted, index) else 0
        for place, provider in enumerate(fitting[index]):
            if place < first or left[provider] < count:
                continue
            left[provider] -= count
            for rest in search(index + 1, place):
                yield [(group, devices[provider], provider, count), *rest]
            left[provider] += count

    yield from search(0, 0)


def _is_covered(
    group: flavors.RequestGroup,
    device: model.Device,
    booked: Mapping[str, int] | None,
) -> bool:
    """Return whether what was booked on a device can pay for a group."""
    return booked is None or all(
        booked.get(name, 0) >= amount
        for name, amount in group.resources.items()
        if name in device.counters
    )


def _is_repeated(wanted: Sequence[_Wanted], index: int) -> bool:
    """Return whether a group asks for what the one before it does."""
    if not index:
        return False
    (group, *asked), (other, *other_asked) = wanted[index], wanted[index - 1]
    return asked == other_asked and group.required == other.required


def _candidates(
    group: flavors.RequestGroup,
    name: str,
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> list[str]:
    """Return the providers that have a group's profile.

    First those on which the slots hold most partitions of it.
    """

    def key(provider: str) -> tuple[int, str]:
        device = devices[provider]
        profile = _profile(group, device)
        handles = {_handle(device, provider, i) for i in free[provider]}
        made = sum(
            p.handle in handles
            for p in device.partitions
            if profile is not None and p.profile == profile.name
        )
        return -made, provider

    return sorted(
        (
            provider
            for provider in free
            if devices[provider].resource_class == name
            and _profile(group, devices[provider]) is not None
        ),
        key=key,
    )


def _profile(
    group: flavors.RequestGroup, device: model.Device
) -> model.Profile | None:
    """Return the profile a group names on a device, or None.

    A group that names none gets the only profile of a device that has one.
    """
    named = [p for p in device.profiles if p.trait in group.required]
    if len(named) == 1:
        return named[0]
    unnamed = not any(
        trait.startswith(names.PROFILE_PREFIXES) and trait not in device.traits
        for trait in group.required
    )
    if not named and unnamed and len(device.profiles) == 1:
        return device.profiles[0]
    return None


def _mismatch(
    wanted: Sequence[_Wanted],
    free: Mapping[str, set[str]],
    devices: Mapping[str, model.Device],
) -> str:
    asked = "; ".join(
        f"group {group.suffix or '(unsuffixed)'} wants {count} {name} with"
        f" {', '.join(sorted(group.required)) or 'any profile'}"
        for group, name, count in wanted
    )
    given = "; ".join(
        f"{len(slots)} slots of {devices[provider].address}"
        f" ({', '.join(p.name for p in devices[provider].profiles)})"
        for provider, slots in sorted(free.items())
    )
    return (
        f"the flavor asks: {asked or 'nothing'}; Nova claimed: {given}. Name"
        " one profile in each group of the flavor"
        " (trait_GROUP:<profile trait>=required)"
    )


def _handle(device: model.Device, provider: str, identifier: str) -> str:
    if device.technology == "mdev":
        return names.mdev_uuid(provider, identifier)
    return identifier


def _deal(
    consumer: str,
    matched: Iterable[_Choice],
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


def _asked(choice: _Choice) -> tuple[frozenset[str], str, int]:
    group, device, _, count = choice
    return group.required, device.resource_class, count


def _claim(
    consumer: str,
    group: flavors.RequestGroup,
    device: model.Device,
    provider: str,
    identifier: str,
) -> model.Claim:
    profile = _profile(group, device)
    assert profile is not None  # noqa: S101 - _match chose by it
    parent = identifier if identifier in profile.handles else device.address
    handle = _handle(device, provider, identifier)
    made = any(
        p.handle == handle and p.profile == profile.name
        for p in device.partitions
    )
    return model.Claim(
        consumer=consumer,
        provider=provider,
        device=device.address,
        profile=profile.name,
        slot=identifier,
        parent=parent,
        handle=handle,
        technology=device.technology,
        plugin=device.plugin,
        type_id=profile.handles.get(parent, ""),
        device_api=profile.device_api,
        members=device.members,
        state=model.ClaimState.MADE if made else model.ClaimState.PLANNED,
    )


def _in_slot(
    device: model.Device, slot: model.Slot
) -> Iterator[model.Partition]:
    """Yield what stands in a slot; a whole device stands in its own."""
    handle = _handle(device, slot.provider, slot.identifier)
    if not device.partitions and device.technology == "passthrough":
        yield model.Partition(
            profile=device.profiles[0].name, parent=handle, handle=handle
        )
    for partition in device.partitions:
        if partition.handle == handle:
            yield partition


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
    handles = profile.handles if profile else {}
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
        type_id=handles.get(partition.parent, ""),
        device_api=profile.device_api if profile else "",
        members=device.members,
        state=model.ClaimState.MADE,
    )


def _shortage(claims: Iterable[model.Claim], host: model.HostState) -> str:
    """Return why the devices can't make what is claimed, empty if they can."""
    planned: dict[str, list[str]] = {}
    for claim in claims:
        if claim.state is model.ClaimState.MADE:
            continue
        device = host.device(claim.device)
        profile = device.profile(claim.profile) if device else None
        if profile and profile.handles and not claim.type_id:
            return (
                f"{claim.slot} can't make {claim.profile}, though"
                f" {claim.device} can; see `nova-accel inspect` for what is"
                " wrong with it"
            )
        taken = planned.setdefault(claim.device, [])
        if device is None or (
            packing.remaining(device, taken).get(claim.profile, 0) < 1
        ):
            return (
                f"{claim.device} can make no more {claim.profile} beside"
                " what runs on it now; another server was faster"
            )
        taken.append(claim.profile)
    return ""
