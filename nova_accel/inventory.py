# SPDX-License-Identifier: Apache-2.0
"""The provider tree that a host's devices make on paper."""

from collections.abc import Iterable, Mapping

from nova_accel import model, names, policy, providers

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

    One provider per device. Its totals are what the device can hold in
    its present state; ``reserved`` is what partitions take that no claim
    has booked; its profile traits are those that can be made now.

    :param claims: the claims of this host's servers; what they hold is
        booked in Placement already.
    :param owner_traits: the traits that mark a provider as ours.
    :param occupied: addresses of functions that guests have; a device
        that is given away whole is reserved if a guest has it unbooked.
    """
    held = tuple(claims)
    nodes = (
        _node(
            root,
            device,
            rules,
            tuple(c for c in held if c.device == device.address),
            owner_traits,
            not occupied.isdisjoint((device.address, *device.members)),
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
    occupied: bool,
) -> providers.ProviderNode:
    uuid = names.provider_uuid(root.uuid, device.address)
    limit = rules.rule(
        device.address, device.vendor_id, device.product_id
    ).max_slots
    reserved = unbooked(device, mine)
    if occupied and not mine and device.technology == "passthrough":
        reserved = device.counters
    inventories = {
        name: _inventory(device, name, total, reserved, limit)
        for name, total in device.counters.items()
        if total > 0
    }
    return providers.ProviderNode(
        name=names.provider_name(root.name, device.address),
        uuid=uuid,
        parent=root.uuid,
        inventories=inventories,
        traits=device.traits | owner_traits | makeable(device),
        slots=_slots(device, inventories, mine),
    )


def makeable(device: model.Device) -> frozenset[str]:
    """Return the traits of the profiles that a device can make now."""
    return frozenset(p.trait for p in device.profiles if p.available > 0)


def unbooked(
    device: model.Device, claims: Iterable[model.Claim]
) -> Mapping[str, int]:
    """Return what partitions without a claim take, by resource class."""
    booked = {claim.handle for claim in claims}
    taken: dict[str, int] = {}
    for partition in device.partitions:
        if partition.handle in booked:
            continue
        profile = device.profile(partition.profile)
        charges = profile.charges if profile else {device.resource_class: 1}
        for name, amount in charges.items():
            taken[name] = taken.get(name, 0) + amount
    return taken


def _inventory(
    device: model.Device,
    name: str,
    total: int,
    reserved: Mapping[str, int],
    limit: int | None,
) -> providers.Inventory:
    if limit is not None and name == device.resource_class:
        total = min(total, limit)
    return providers.Inventory(
        total=total,
        reserved=min(total, reserved.get(name, 0)),
        max_unit=total,
    )


def _slots(
    device: model.Device,
    inventories: Mapping[str, providers.Inventory],
    claims: Iterable[model.Claim],
) -> dict[str, frozenset[str]]:
    """Return every identifier that Nova may hand out, or has.

    Placement counts how many may be handed out; the identifiers only have
    to suffice, and one that a claim holds must not vanish. A function that
    carries somebody else's partition can't be handed out.
    """
    held = tuple(claims)
    if device.resource_class not in inventories and not held:
        return {}
    booked = {claim.handle for claim in held}
    foreign = {
        partition.parent
        for partition in device.partitions
        if partition.handle not in booked
    }
    return {
        device.resource_class: (frozenset(device.slots) - foreign)
        | {claim.slot for claim in held}
    }
