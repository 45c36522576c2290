# SPDX-License-Identifier: Apache-2.0
"""Provider tree of a host, computed from its devices and claims.

``build_tree`` is a pure function of its arguments: the same host, policy and
claims give the same tree.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.claims import matching
from nova_accel.config import policy
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.inventory import health
from nova_accel.model import names, providers

# Traits of a region that can't be read while a guest has the card.
FPGA_TRAITS = (
    names.FUNCTION_PREFIX,
    names.INTERFACE_PREFIX,
    names.PROGRAMMABLE_TRAIT,
)
OWNER_TRAITS = frozenset({names.OWNER_TRAIT, names.NOVA_OWNER_TRAIT})


def build_tree(
    root: providers.ProviderRoot,
    host: model.HostState,
    rules: policy.DeviceRules,
    claims: Iterable[model.Claim] = (),
    owner_traits: frozenset[str] = OWNER_TRAITS,
    occupied: frozenset[str] = frozenset(),
) -> providers.ProviderTree:
    """Return the library's providers below a compute node.

    Each device has one provider; that of a part is below that of its card.
    The totals are the capacity in the present state; ``reserved`` is the
    usage without an allocation, or all of a faulted or drained device. The
    profile traits are those of profiles that can be made now and are
    offered by the policy; others have the places of partitions. Claims that
    are not made yet count as made.

    :param claims: the claims of this host's servers. Claims without an
        allocation are reserved, as Placement would allocate their resources
        again. Slots of claims that are not backed are not assignable.
    :param owner_traits: traits that mark the library's providers.
    :param occupied: addresses of the functions that guests have; whole
        functions among them without a claim are reserved.
    """
    claims = tuple(claims)
    nodes = [
        _build_node(
            root,
            device,
            rules,
            tuple(c for c in claims if c.device == device.address),
            owner_traits,
            occupied,
        )
        for device in host.devices
    ]
    nodes.sort(key=lambda node: node.name)
    return providers.ProviderTree(
        root=root, nodes=tuple(_share_driver_traits(nodes))
    )


def _share_driver_traits(
    nodes: Iterable[providers.ProviderNode],
) -> Iterator[providers.ProviderNode]:
    """Yield nodes; the version of a driver is a trait of the first only."""
    versions: set[str] = set()
    for node in nodes:
        drivers = {t for t in node.traits if t.startswith(names.DRIVER_PREFIX)}
        yield dataclasses.replace(node, traits=node.traits - versions)
        versions |= drivers


def _drop_implied(traits: frozenset[str]) -> frozenset[str]:
    """Return a device's traits without those that follow from others."""
    prefixes: tuple[str, ...] = names.IMPLIED_PREFIXES
    if names.NVLINK_SWITCH in traits:
        prefixes = (*prefixes, names.NVLINK_PREFIX)
    return frozenset(
        trait
        for trait in traits
        if trait == names.NVLINK_SWITCH or not trait.startswith(prefixes)
    )


def _build_node(
    root: providers.ProviderRoot,
    device: model.Device,
    rules: policy.DeviceRules,
    claims: tuple[model.Claim, ...],
    owner_traits: frozenset[str],
    occupied: frozenset[str],
) -> providers.ProviderNode:
    rule = rules.of(device)
    device = device_capacity.reserve_claims(device, claims)
    available = available_traits(device, rule, claims)
    reserved = (
        dict(device.counters)
        if device.is_closed
        else count_unallocated(device, claims, occupied)
    )
    inventories = {
        name: _build_inventory(device, name, total, reserved, rule.max_slots)
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
        traits=_drop_implied(device.traits)
        | owner_traits
        | available
        | _supported_traits(device, rule, available)
        | _condition_traits(device)
        | _layout_traits(device)
        | occupancy.build_traits(
            device, {c.handle for c in claims if c.is_allocated}
        ),
        slots=_list_slots(root, device, inventories, claims, occupied),
        unread_traits=_list_unread_traits(device, claims, occupied),
        former_traits=device.traits - _drop_implied(device.traits),
    )


def _condition_traits(device: model.Device) -> frozenset[str]:
    """Return the traits of a device's fault and drain marks."""
    traits = {
        *health.build_cause_traits(device.fault),
        *health.build_cause_traits(device.unnoted),
    }
    if device.drain:
        traits.add(names.DRAINED_TRAIT)
    if device.marks_unknown:
        traits.add(names.UNKNOWN_TRAIT)
    return frozenset(traits)


def _layout_traits(device: model.Device) -> frozenset[str]:
    layout = device.geometry.layout
    if layout is model.Layout.ANY:
        return frozenset()
    return frozenset({names.layout_trait(layout.value)})


def _list_unread_traits(
    device: model.Device,
    claims: Collection[model.Claim],
    occupied: frozenset[str],
) -> tuple[str, ...]:
    """Return the prefixes of traits that could not be read.

    Only the host's driver shows the function of a region; it is not bound
    while a guest has the card.
    """
    region = device.region
    if region is None or region.function is not None:
        return device.unread_traits
    if claims or occupied.intersection((*device.slots, *device.members)):
        return (*device.unread_traits, *FPGA_TRAITS)
    return device.unread_traits


def available_traits(
    device: model.Device,
    rule: policy.Rule,
    claims: Iterable[model.Claim] = (),
) -> frozenset[str]:
    """Return the traits of the profiles that a device offers now.

    It offers profiles that it can make and that the rule includes, up to
    the rule's limits. These count all existing partitions and the claims
    that are not made yet.
    """
    if device.is_closed:
        return frozenset()
    existing = {p.handle: p.profile for p in device.partitions}
    claimed = {c.handle: c.profile for c in claims}
    used_profiles = list((claimed | existing).values())
    if rule.max_slots is not None and len(used_profiles) >= rule.max_slots:
        return frozenset()
    return frozenset(
        profile.trait
        for profile in device.profiles
        if profile.available > 0
        and rule.offers(profile.name)
        and all(
            used_profiles.count(profile.name) < limit
            for pattern, limit in rule.max_instances.items()
            if fnmatch.fnmatchcase(profile.name, pattern)
        )
    )


def _supported_traits(
    device: model.Device, rule: policy.Rule, available: frozenset[str]
) -> frozenset[str]:
    """Return the traits of offered profiles that can't be made now.

    Those of the catalog of vGPU types are left out: it has them for each
    model.
    """
    unavailable = {
        profile.trait
        for profile in device.profiles
        if profile.trait.startswith(names.PROFILE_PREFIXES)
        and rule.offers(profile.name)
    }
    supported = unavailable - available - _read_catalog_traits()
    traits = map(names.supported_trait, supported)
    return frozenset(trait for trait in traits if len(trait) <= names.MAX_NAME)


@functools.cache
def _read_catalog_traits() -> frozenset[str]:
    return frozenset(loader.load().by_trait())


def count_unallocated(
    device: model.Device,
    claims: Iterable[model.Claim],
    occupied: frozenset[str] = frozenset(),
) -> Mapping[str, int]:
    """Return the usage without an allocation, by resource class.

    It is charged by partitions without an allocated claim, by whole
    functions that guests have without one, and by claims that are not
    allocated.

    :param occupied: addresses of the functions that guests have.
    """
    claims = tuple(claims)
    allocated = {claim.handle for claim in claims if claim.is_allocated}
    occupied |= {claim.slot for claim in claims if not claim.is_allocated}
    missing = {c.handle: c.unallocated for c in claims if c.unallocated}
    usage: dict[str, int] = {}
    foreign = [p for p in device.partitions if p.handle not in allocated]
    for handle, name in [(p.handle, p.profile) for p in foreign] + [
        (slot, _profile_of_slot(device, slot))
        for slot in find_assigned_slots(device, occupied)
        if slot not in allocated | {p.handle for p in foreign}
    ]:
        charges = missing.get(handle, device.charges(name))
        for counter, amount in charges.items():
            usage[counter] = usage.get(counter, 0) + amount
    return usage


def find_assigned_slots(
    device: model.Device, occupied: frozenset[str]
) -> tuple[str, ...]:
    """Return the slots of whole functions that guests have.

    A guest with any function of a card, or of a region, has all of it.
    """
    if device.technology not in model.UNDIVIDED:
        return ()
    is_whole = device.address in device.slots or device.region is not None
    if is_whole and occupied & {*device.members}:
        return device.slots
    return tuple(slot for slot in device.slots if slot in occupied)


def _profile_of_slot(device: model.Device, slot: str) -> str:
    """Return the name of the profile of a whole function."""
    profiles = [p for p in device.profiles if slot in p.handles]
    return next((p.name for p in (*profiles, *device.profiles)), "")


def _build_inventory(
    device: model.Device,
    name: str,
    total: int,
    reserved: Mapping[str, int],
    limit: int | None,
) -> providers.Inventory:
    if limit is not None and name == device.resource_class:
        total = min(total, limit)
    total = min(total, providers.MAX_TOTAL)
    return providers.Inventory(total=total, max_unit=total).with_own_reserved(
        reserved.get(name, 0)
    )


def _list_slots(
    root: providers.ProviderRoot,
    device: model.Device,
    inventories: Mapping[str, providers.Inventory],
    claims: Collection[model.Claim],
    occupied: frozenset[str],
) -> dict[str, frozenset[str]]:
    """Return the identifiers that Nova may assign, or has assigned.

    Placement limits the number of assigned slots, so there may be more
    identifiers than free slots; those of claims must remain. Slots are left
    out whose partition exists, or whose function a guest has, without a
    claim.
    """
    backed = tuple(claim for claim in claims if claim.is_backed)
    occupied |= {claim.slot for claim in claims if not claim.is_backed}
    if device.resource_class not in inventories and not backed:
        return {}
    claimed = {claim.handle for claim in backed}
    foreign = {
        identifier
        for partition in device.partitions
        if partition.handle not in claimed
        for identifier in (partition.parent, partition.handle)
    }
    provider = names.provider_uuid(root.uuid, device.address)
    return {
        device.resource_class: (
            frozenset(
                slot
                for slot in device.slots
                if slot not in foreign
                and matching.slot_handle(device, provider, slot) not in foreign
            )
            - occupied
            - frozenset(find_assigned_slots(device, occupied))
        )
        | {claim.slot for claim in backed}
    }
