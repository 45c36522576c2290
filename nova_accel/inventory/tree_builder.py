# SPDX-License-Identifier: Apache-2.0
"""Provider tree of a host, computed from its devices and claims."""

import fnmatch
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.claims import matching
from nova_accel.config import policy
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.model import names, providers

# What is told of a region, and gone from sight while a guest has the card.
FPGA_TRAITS = (
    names.FUNCTION_PREFIX,
    names.INTERFACE_PREFIX,
    names.PROGRAMMABLE_TRAIT,
)
OWNER_TRAITS = frozenset({names.OWNER_TRAIT, names.NOVA_OWNER_TRAIT})


def build_tree(
    root: providers.ProviderRoot,
    host: model.HostState,
    rules: policy.Policy,
    claims: Iterable[model.Claim] = (),
    owner_traits: frozenset[str] = OWNER_TRAITS,
    occupied: frozenset[str] = frozenset(),
) -> providers.ProviderTree:
    """Return our providers below a compute node.

    One provider per device, a part's below that of its whole. Its totals
    are what the device can hold in its present state; ``reserved`` is what
    partitions take that no claim has booked, and all of a device that is
    at fault or drained; its profile traits are those that can be made now
    and that policy offers. Other traits say where its partitions are. What
    is claimed and not made yet is reckoned as
    if it were.

    :param claims: the claims of this host's servers; what they hold is
        booked in Placement already, unless they are not allocated: then
        it is reserved, as Placement would sell it again. Slots of claims
        that Nova does not back are not handed out.
    :param owner_traits: the traits that mark a provider as ours.
    :param occupied: addresses of functions that guests have; one that is
        given away as it is, and that a guest has unbooked, is reserved.
    """
    held = tuple(claims)
    nodes = (
        _node(
            root,
            device,
            rules,
            tuple(c for c in held if c.device == device.address),
            owner_traits,
            occupied,
        )
        for device in host.devices
    )
    return providers.ProviderTree(
        root=root, nodes=tuple(sorted(nodes, key=lambda n: n.name))
    )


def _node(
    root: providers.ProviderRoot,
    device: model.Device,
    rules: policy.Policy,
    mine: tuple[model.Claim, ...],
    owner_traits: frozenset[str],
    occupied: frozenset[str],
) -> providers.ProviderNode:
    rule = rules.of(device)
    device = device_capacity.hold(device, mine)
    reserved = (
        dict(device.counters)
        if device.is_closed
        else unbooked(device, mine, occupied)
    )
    inventories = {
        name: _inventory(device, name, total, reserved, rule.max_slots)
        for name, total in device.counters.items()
        if total > 0
    }
    return providers.ProviderNode(
        name=names.provider_name(root.name, device.address),
        uuid=names.provider_uuid(root.uuid, device.address),
        parent=(
            names.provider_uuid(root.uuid, device.parent)
            if device.parent
            else root.uuid
        ),
        inventories=inventories,
        traits=device.traits
        | owner_traits
        | makeable(device, rule, mine)
        | _labels(device)
        | _layout(device)
        | occupancy.build_traits(
            device, {c.handle for c in mine if c.is_allocated}
        ),
        slots=_slots(root, device, inventories, mine, occupied),
        unread=_unread(device, mine, occupied),
    )


def _labels(device: model.Device) -> frozenset[str]:
    """Return the traits that tell why nothing of a device is offered."""
    labels = set()
    if device.fault:
        labels.add(names.FAULTED_TRAIT)
    if device.drain:
        labels.add(names.DRAINED_TRAIT)
    if device.marks_unknown:
        labels.add(names.UNKNOWN_TRAIT)
    return frozenset(labels)


def _layout(device: model.Device) -> frozenset[str]:
    """Return the trait of how partitions share a device now, if any."""
    layout = device.geometry.layout
    if layout is model.Layout.ANY:
        return frozenset()
    return frozenset({names.layout_trait(layout.value)})


def _unread(
    device: model.Device,
    claims: Collection[model.Claim],
    occupied: frozenset[str],
) -> tuple[str, ...]:
    """Return the prefixes of traits of which nothing can be told now.

    What only the host's driver shows of a card is among them while a
    guest has it whole: that driver is not there to ask.
    """
    region = device.region
    if region is None or region.function is not None:
        return device.unread
    if claims or occupied.intersection((*device.slots, *device.members)):
        return (*device.unread, *FPGA_TRAITS)
    return device.unread


def makeable(
    device: model.Device,
    rule: policy.Rule,
    claims: Iterable[model.Claim] = (),
) -> frozenset[str]:
    """Return the traits of the profiles that a device may make now.

    Those that it can make and that the rule offers, while there are fewer
    than the rule allows: of what exists, whoever made it, and what is
    claimed and not made yet.
    """
    made = {p.handle: p.profile for p in device.partitions}
    claimed = {c.handle: c.profile for c in claims}
    existing = list((claimed | made).values())
    if device.is_closed:
        return frozenset()
    if rule.max_slots is not None and len(existing) >= rule.max_slots:
        return frozenset()
    return frozenset(
        profile.trait
        for profile in device.profiles
        if profile.available > 0
        and rule.offers(profile.name)
        and all(
            existing.count(profile.name) < limit
            for pattern, limit in rule.max_instances.items()
            if fnmatch.fnmatchcase(profile.name, pattern)
        )
    )


def unbooked(
    device: model.Device,
    claims: Iterable[model.Claim],
    occupied: frozenset[str] = frozenset(),
) -> Mapping[str, int]:
    """Return what is taken without an allocation, by resource class.

    That is what others' partitions charge and, where functions are given
    away as they are, what those charge that guests have; and what is
    claimed without an allocation.

    :param occupied: addresses of functions that guests have.
    """
    claims = tuple(claims)
    booked = {claim.handle for claim in claims if claim.is_allocated}
    occupied |= {claim.slot for claim in claims if not claim.is_allocated}
    lacking = {c.handle: dict(c.unallocated) for c in claims if c.unallocated}
    taken: dict[str, int] = {}
    foreign = [p for p in device.partitions if p.handle not in booked]
    for handle, name in [(p.handle, p.profile) for p in foreign] + [
        (slot, _profile_at(device, slot))
        for slot in given_away(device, occupied)
        if slot not in booked | {p.handle for p in foreign}
    ]:
        charges = lacking.get(handle, device.charges(name))
        for counter, amount in charges.items():
            taken[counter] = taken.get(counter, 0) + amount
    return taken


def given_away(
    device: model.Device, occupied: frozenset[str]
) -> tuple[str, ...]:
    """Return the slots that are functions, and that guests have as such.

    A guest has a whole card, or a whole region of one, if it has any of
    its functions.
    """
    if device.technology not in model.UNDIVIDED:
        return ()
    is_one = device.address in device.slots or device.region is not None
    if is_one and occupied & {*device.members}:
        return device.slots
    return tuple(slot for slot in device.slots if slot in occupied)


def _profile_at(device: model.Device, slot: str) -> str:
    """Return the name of the profile that a whole function has."""
    fitting = [p for p in device.profiles if slot in p.handles]
    return next((p.name for p in (*fitting, *device.profiles)), "")


def _inventory(
    device: model.Device,
    name: str,
    total: int,
    reserved: Mapping[str, int],
    limit: int | None,
) -> providers.Inventory:
    if limit is not None and name == device.resource_class:
        total = min(total, limit)
    total = min(total, providers.MAX_TOTAL)
    return providers.Inventory(total=total, max_unit=total).reserving(
        reserved.get(name, 0)
    )


def _slots(
    root: providers.ProviderRoot,
    device: model.Device,
    inventories: Mapping[str, providers.Inventory],
    claims: Collection[model.Claim],
    occupied: frozenset[str],
) -> dict[str, frozenset[str]]:
    """Return every identifier that Nova may hand out, or has.

    Placement counts how many may be handed out; the identifiers only have
    to suffice, and one that a claim holds must not vanish. A slot whose
    partition exists without a claim can't be handed out, nor a function
    that a guest has without a claim.
    """
    held = tuple(claim for claim in claims if claim.is_backed)
    occupied |= {claim.slot for claim in claims if not claim.is_backed}
    if device.resource_class not in inventories and not held:
        return {}
    booked = {claim.handle for claim in held}
    foreign = {
        taken
        for partition in device.partitions
        if partition.handle not in booked
        for taken in (partition.parent, partition.handle)
    }
    provider = names.provider_uuid(root.uuid, device.address)
    return {
        device.resource_class: (
            frozenset(
                slot
                for slot in device.slots
                if slot not in foreign
                and matching.handle_of(device, provider, slot) not in foreign
            )
            - occupied
            - frozenset(given_away(device, occupied))
        )
        | {claim.slot for claim in held}
    }
