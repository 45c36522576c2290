# SPDX-License-Identifier: Apache-2.0
"""Ownership: which partitions are provably ours, and left over."""

import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan as found_claims
from nova_accel.model import flavors, names, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store

# Partitions that carry no id of our choosing: the next one on the same
# function looks the same, whoever made it.
NAMELESS = ("vendor-vfio",)

Made = Mapping[str, model.Claim]
_NONE: Made = types.MappingProxyType({})


def provider_of(root: providers.ProviderRoot | None, address: str) -> str:
    """Return the uuid of a card's provider, its address before one has."""
    if root is None:
        return address
    return names.provider_uuid(root.uuid, address)


def devices_of(
    root: providers.ProviderRoot | None,
    host: model.HostState,
    slots: Iterable[model.Slot],
) -> tuple[model.Device, ...]:
    """Return the devices that some slots are of."""
    wanted = {slot.provider for slot in slots}
    return tuple(
        device
        for device in host.devices
        if provider_of(root, device.address) in wanted
    )


def find_orphans(
    root: providers.ProviderRoot,
    host: model.HostState,
    claims: Iterable[model.Claim],
    use: connection.HostdevUse,
    made: Made = _NONE,
) -> tuple[model.Partition, ...]:
    """Return the partitions that are provably ours and unused.

    Provably ours: the handle is the uuid5 of one of our slots, or this
    process made the partition or knew it by a claim. Unused: no claim
    stands for it and no domain has it.

    :param made: the claims whose partitions this process has made or
        recalled and not unmade, by handle.
    """
    claimed = {claim.handle for claim in claims}
    return tuple(
        partition
        for device in host.devices
        for partition in device.partitions
        if partition.handle in our_handles(root, device, made)
        and partition.handle not in claimed
        and not use.holds(partition.handle)
    )


def find_strangers(
    root: providers.ProviderRoot,
    device: model.Device,
    claims: Iterable[model.Claim],
    made: Made = _NONE,
) -> tuple[model.Partition, ...]:
    """Return partitions that nothing tells from ours, but nothing proves.

    They stay, and what they take is reserved.
    """
    known = {claim.handle for claim in claims} | made.keys()
    if device.technology not in NAMELESS:
        return ()
    return tuple(p for p in device.partitions if p.handle not in known)


def is_ours(claim: model.Claim, made: Made) -> bool:
    """Return whether what stands in a slot is ours, as far as can be told.

    A server that is refused for what stands in its slot is cleaned up too.
    """
    return claim.technology not in NAMELESS or claim.handle in made


def slots_had(
    root: providers.ProviderRoot,
    host: model.HostState,
    groups: Iterable[flavors.RequestGroup],
    use: connection.HostdevUse,
) -> frozenset[model.Slot]:
    """Return the slots of which a server's own domain had the functions.

    For a server that Nova remembers no slots of, or not of this host. A
    function that is given as it is counts always. For one that was typed
    or programmed, its flavor must name a profile of the card, or ask for
    FPGA regions: Nova itself may have given it a function that somebody
    else has typed.
    """
    wanted = tuple(groups)
    asked = {trait for group in wanted for trait in group.required}
    has_region = any(names.FPGA_CLASS in group.resources for group in wanted)
    return frozenset(
        model.Slot(
            provider=provider_of(root, device.address),
            resource_class=device.resource_class,
            identifier=slot,
        )
        for device in host.devices
        if (device.region is not None and has_region)
        or (device.region is None and device.technology in model.UNDIVIDED)
        or (
            device.technology in NAMELESS
            and any(profile.trait in asked for profile in device.profiles)
        )
        for slot in device.slots
        if slot in use.functions
    )


def our_handles(
    root: providers.ProviderRoot, device: model.Device, made: Made = _NONE
) -> Collection[str]:
    """Return the handles that partitions of ours have on a device."""
    if device.technology in NAMELESS:
        profiles = {
            partition.handle: partition.profile
            for partition in device.partitions
            if not partition.is_nameless
        }
        return frozenset(
            handle
            for handle, claim in made.items()
            if claim.device == device.address
            and profiles.get(handle, claim.profile) == claim.profile
        )
    if device.technology != "mdev":
        return frozenset()
    provider = names.provider_uuid(root.uuid, device.address)
    return frozenset(names.mdev_uuid(provider, slot) for slot in device.slots)


def as_made(claim: model.Claim, made: Made) -> model.Claim:
    """Return the claim under which a partition was made, if it is known.

    It says more than the partition itself does: which GPU instance goes
    with it. The id of its type may have been unreadable when either was
    written.
    """
    known = made.get(claim.handle)
    if known is None or not claim_store.is_alike(known, claim):
        return claim
    return dataclasses.replace(known, type_id=known.type_id or claim.type_id)


def orphan_claim(
    device: model.Device, partition: model.Partition, made: Made
) -> model.Claim:
    """Return the claim that an orphan is unmade by."""
    return as_made(found_claims.of_partition(device, partition), made)


def unless_held(
    before: Iterable[model.Claim], found: Iterable[model.Claim]
) -> tuple[model.Claim, ...]:
    """Return claims, made only where the consumer held the partition.

    What stands in a slot otherwise was left by the slot's last holder: a
    removal that failed. Its state is not for the next one to see.
    """
    held = {claim.handle for claim in before}
    return tuple(
        claim
        if claim.handle in held
        else dataclasses.replace(claim, state=model.ClaimState.PLANNED)
        for claim in found
    )


def expected(
    consumer: str,
    found: tuple[model.Claim, ...],
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
) -> tuple[model.Claim, ...]:
    """Return what a server will need when it is started again.

    :param found: the claims of what it has still; they are returned where
        the host has no room for more, or can't be read.
    :param host: as it will be with what others need.
    """
    try:
        return found_claims.plan(consumer, groups, slots, root, host)
    except errors.ClaimError:
        return found


def but(
    found: Iterable[model.Claim], before: Iterable[model.Claim]
) -> tuple[model.Claim, ...]:
    """Return the claims whose partitions were not held before."""
    held = {claim.handle for claim in before}
    return tuple(claim for claim in found if claim.handle not in held)
