# SPDX-License-Identifier: Apache-2.0
"""Ownership: which partitions this library provably made, and orphans."""

import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.model import flavors, names, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store

# Technologies whose partitions have no id that this library chose: two
# partitions on the same function look the same, whatever program made them.
NAMELESS = ("vendor-vfio",)

Made = Mapping[str, model.Claim]
_NONE: Made = types.MappingProxyType({})


def provider_of(root: providers.ProviderRoot | None, address: str) -> str:
    """Return the uuid of a card's provider, its address without a root."""
    if root is None:
        return address
    return names.provider_uuid(root.uuid, address)


def devices_of(
    root: providers.ProviderRoot | None,
    host: model.HostState,
    slots: Iterable[model.Slot],
) -> tuple[model.Device, ...]:
    slot_providers = {slot.provider for slot in slots}
    return tuple(
        device
        for device in host.devices
        if provider_of(root, device.address) in slot_providers
    )


def find_orphans(
    root: providers.ProviderRoot,
    host: model.HostState,
    claims: Iterable[model.Claim],
    use: connection.HostdevUse,
    made: Made = _NONE,
) -> tuple[model.Partition, ...]:
    """Return the partitions that are provably owned and unused.

    Owned: the handle is the uuid5 of one of our slots, or this process made
    the partition or restored a claim on it. Unused: it has no claim, and
    no domain has it.

    :param made: the claims whose partitions this process has made or
        restored and not removed, by handle.
    """
    claimed = {claim.handle for claim in claims}
    return tuple(
        partition
        for device in host.devices
        for partition in device.partitions
        if partition.handle in owned_handles(root, device, made)
        and partition.handle not in claimed
        and not use.holds(partition.handle)
    )


def find_unowned(
    device: model.Device,
    claims: Iterable[model.Claim],
    made: Made = _NONE,
) -> tuple[model.Partition, ...]:
    """Return the partitions without an id that are not provably owned.

    They stay, and their capacity is reserved.
    """
    owned = {claim.handle for claim in claims} | made.keys()
    if device.technology not in NAMELESS:
        return ()
    return tuple(p for p in device.partitions if p.handle not in owned)


def is_owned(claim: model.Claim, made: Made) -> bool:
    """Return whether the partition in a slot may count as owned.

    A server that is refused because of a partition in its slot is cleaned
    up too, and must not remove that partition.
    """
    if claim.handle in made:
        return True
    return claim.technology not in NAMELESS and matching.is_in_own_slot(claim)


def slots_of_domain(
    root: providers.ProviderRoot,
    host: model.HostState,
    groups: Iterable[flavors.RequestGroup],
    use: connection.HostdevUse,
) -> frozenset[model.Slot]:
    """Return the slots of the functions that a server's domain had.

    For a server whose slots Nova has deleted, or that has slots of another
    host now. A function that is assigned unchanged counts always. For one
    that was typed or programmed, its flavor must name a profile of the
    card, or ask for FPGA regions: Nova itself may have assigned a function
    that another program has typed.
    """
    groups = tuple(groups)
    traits = {trait for group in groups for trait in group.required}
    has_region = any(names.FPGA_CLASS in group.resources for group in groups)
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
            and any(profile.trait in traits for profile in device.profiles)
        )
        for slot in device.slots
        if slot in use.functions
    )


def owned_handles(
    root: providers.ProviderRoot, device: model.Device, made: Made = _NONE
) -> Collection[str]:
    """Return the handles that owned partitions have on a device."""
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
    return {names.mdev_uuid(provider, slot) for slot in device.slots} | {
        handle
        for handle, claim in made.items()
        if claim.device == device.address
    }


def recorded_claim(claim: model.Claim, made: Made) -> model.Claim:
    """Return the claim that a partition was made for, if it is recorded.

    It has data that can't be read from the partition: the GPU instance
    that belongs to it. The id of its type may have been unreadable when
    either claim was planned.
    """
    recorded = made.get(claim.handle)
    if recorded is None or not claim_store.has_same_profile(recorded, claim):
        return claim
    return dataclasses.replace(
        recorded, type_id=recorded.type_id or claim.type_id
    )


def orphan_claim(
    device: model.Device, partition: model.Partition, made: Made
) -> model.Claim:
    """Return the claim to remove an orphan with."""
    return recorded_claim(
        claim_plan.claim_from_partition(device, partition), made
    )


def plan_unless_made(
    before: Iterable[model.Claim], claims: Iterable[model.Claim]
) -> tuple[model.Claim, ...]:
    """Return the claims, planned unless the consumer had the partition.

    Any other partition in a slot was left by the slot's last consumer,
    whose removal failed. Its state must not be visible to the next one.
    """
    handles = {claim.handle for claim in before}
    return tuple(
        claim
        if claim.handle in handles
        else dataclasses.replace(claim, state=model.ClaimState.PLANNED)
        for claim in claims
    )


def plan_missing(
    consumer: str,
    existing: tuple[model.Claim, ...],
    groups: Collection[flavors.RequestGroup],
    slots: Collection[model.Slot],
    root: providers.ProviderRoot,
    host: model.HostState,
    store: claim_store.ClaimStore,
) -> tuple[model.Claim, ...]:
    """Return a server's claims with those of removed partitions.

    :param existing: the claims of its partitions that exist; they are
        returned if the host has no room for the others, or can't be read.
    """
    if not groups or len(existing) >= len(slots):
        return existing
    free = store.without_claims_of_others(consumer, host)
    try:
        return claim_plan.plan(consumer, groups, slots, root, free)
    except errors.ClaimError:
        return existing


def exclude(
    claims: Iterable[model.Claim], excluded: Iterable[model.Claim]
) -> tuple[model.Claim, ...]:
    """Return the claims whose partitions no excluded claim has."""
    handles = {claim.handle for claim in excluded}
    return tuple(claim for claim in claims if claim.handle not in handles)


def assigned_handles(
    claims: Iterable[model.Claim], domain: connection.HostdevUse
) -> frozenset[str]:
    """Return the handles that a server got.

    :param domain: the host devices of the server's domain.
    """
    return domain.functions | {claim.handle for claim in claims}


def explain_leftover(claim: model.Claim, use: connection.HostdevUse) -> str:
    """Return why a partition that is left in a slot can't be removed."""
    text = f"slot {claim.slot} of {claim.device} still holds {claim.handle}"
    if any(map(use.holds, claim.handles)):
        return (
            f"{text}, and a guest has it; see `virsh list` and the XML of"
            " its domains"
        )
    return (
        f"{text} as {claim.profile}, which no server of this host is known"
        " to have made; clear it by hand if nothing needs it"
    )
