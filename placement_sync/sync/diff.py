# SPDX-License-Identifier: Apache-2.0
"""Difference of two provider trees, as an ordered list of calls.

Pure: the same trees and guard give the same calls, and equal trees none.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.inventory import health
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import reserved

_ORDER = (
    calls.CreateProvider,
    calls.ChangeTraits,
    calls.SetInventories,
    calls.ChangeTraits,
    calls.DeleteProvider,
)
_LATE_TRAITS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Providers that a plan must not delete or shrink, by uuid.

    ``allocated`` have, or may have, allocations: they and their resource
    classes stay, with all units reserved. ``unknown`` could not be
    assessed: they and their descendants stay unchanged. ``unreadable``
    belong to devices that are present and can't be read: they stay, with
    all units reserved and the trait of faulted devices. The ancestors of
    all of these stay, too.
    """

    allocated: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()


NO_GUARD = Guard()


def build_guard(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    host: model.HostState,
    allocated: Iterable[str] = (),
) -> Guard:
    """Return the guard for the plan of a host's tree.

    :param host: the snapshot that the desired tree was built from.
    :param allocated: uuids of the providers that have allocations.
    """
    present = {node.uuid for node in desired.nodes}
    return Guard(
        allocated=frozenset(allocated),
        unknown=frozenset()
        if host.complete
        else frozenset(n.uuid for n in actual.nodes) - present,
        unreadable=find_unreadable(actual, host.unknown),
    )


def plan(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: Guard = NO_GUARD,
    existing_names: Collection[str] | None = None,
) -> list[calls.Call]:
    """Return the calls that turn the actual tree into the desired one.

    The operator's settings stay: ``reserved`` as the minimum,
    ``allocation_ratio``, and traits that this library does not set. Traits
    that are unread in the desired tree stay as they are. The calls are in an
    order that Placement accepts: names first, then providers are created,
    parents before children, and deleted last, children before parents.
    Equal trees need no call. A provider that is not desired but allocated
    keeps its classes, with all units reserved, and is marked as missing. A
    provider keeps the name and the parent that it has.

    :param actual: our providers in Placement, without any other provider.
    :param existing_names: the custom resource classes and traits that
        Placement has; None if the caller creates missing ones.
    """
    before = {node.uuid: node for node in actual.nodes}
    after = {node.uuid: node for node in desired.nodes}
    untouched, faulted = _split_guarded(before, after, guard)
    retained = _add_ancestors(guard.allocated | untouched | faulted, before)
    planned: list[calls.ProviderCall] = []
    for node in _sort_top_down(after):
        if node.uuid not in before:
            planned.append(
                calls.CreateProvider(
                    uuid=node.uuid, name=node.name, parent=node.parent
                )
            )
        if node.uuid not in (untouched | faulted) & before.keys():
            planned += _plan_changes(before.get(node.uuid), node, guard)
    for node in reversed(_sort_top_down(before)):
        if node.uuid in faulted:
            planned += _plan_changes(node, mark_faulted(node), guard)
        elif node.uuid in after or node.uuid in untouched:
            continue
        elif node.uuid in retained:
            planned += _plan_changes(node, mark_missing(node), guard)
        else:
            planned.append(
                calls.DeleteProvider(uuid=node.uuid, name=node.name)
            )
    ordered = sorted(planned, key=lambda call: _rank(call, before))
    return [*_plan_names(ordered, existing_names), *ordered]


def find_shrinking(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: Guard = NO_GUARD,
) -> frozenset[str]:
    """Return the uuids of providers that would lose a class, or be deleted.

    Only of these the caller must know the allocations before it plans.
    """
    before = {node.uuid: node for node in actual.nodes}
    classes = {node.uuid: node.inventories.keys() for node in desired.nodes}
    untouched, faulted = _split_guarded(before, classes, guard)
    return frozenset(
        node.uuid
        for node in actual.nodes
        if node.uuid not in untouched | faulted
        and (
            node.uuid not in classes
            or node.inventories.keys() - classes[node.uuid]
        )
    )


def find_unreadable(
    actual: providers.ProviderTree, addresses: Iterable[str]
) -> frozenset[str]:
    """Return the providers of unreadable devices and of their regions.

    A region's provider counts by its name too, because an operator may
    have moved it below another provider.

    :param addresses: of the devices.
    """
    root = actual.root
    devices = frozenset(addresses)
    prefixes = tuple(
        f"{names.provider_name(root.name, address)}_region_"
        for address in devices
    )
    return frozenset(
        names.provider_uuid(root.uuid, address) for address in devices
    ) | frozenset(n.uuid for n in actual.nodes if n.name.startswith(prefixes))


def _split_guarded(
    nodes: Mapping[str, providers.ProviderNode],
    described: Collection[str],
    guard: Guard,
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the providers to leave untouched, and those to mark faulted.

    :param described: uuids of the desired tree; their devices were read,
        so neither set has them.
    """
    untouched = _add_descendants(guard.unknown, nodes)
    faulted = _add_descendants(guard.unreadable, nodes) & nodes.keys()
    return untouched, faulted - untouched - frozenset(described)


def _plan_names(
    plan: Iterable[calls.ProviderCall], existing_names: Collection[str] | None
) -> list[calls.Call]:
    """Return the calls that create the classes and traits of a plan."""
    if existing_names is None:
        return []
    classes: set[str] = set()
    traits: set[str] = set()
    for call in plan:
        if isinstance(call, calls.SetInventories):
            classes |= call.inventories.keys()
        elif isinstance(call, calls.ChangeTraits):
            traits |= call.added
    return [
        *(
            calls.CreateClass(name=n)
            for n in _list_missing(classes, existing_names)
        ),
        *(
            calls.CreateTrait(name=n)
            for n in _list_missing(traits, existing_names)
        ),
    ]


def _list_missing(
    required: Iterable[str], existing_names: Collection[str]
) -> list[str]:
    return sorted(
        name
        for name in required
        if name.startswith(names.CUSTOM) and name not in existing_names
    )


def _add_ancestors(
    uuids: Iterable[str], nodes: Mapping[str, providers.ProviderNode]
) -> set[str]:
    lineage: set[str] = set()
    todo = [uuid for uuid in uuids if uuid in nodes]
    while todo:
        uuid = todo.pop()
        lineage.add(uuid)
        if nodes[uuid].parent in nodes:
            todo.append(nodes[uuid].parent)
    return lineage


def _add_descendants(
    uuids: Iterable[str], nodes: Mapping[str, providers.ProviderNode]
) -> frozenset[str]:
    family = set(uuids)
    for node in _sort_top_down(nodes):
        if node.parent in family:
            family.add(node.uuid)
    return frozenset(family)


def _sort_top_down(
    nodes: Mapping[str, providers.ProviderNode],
) -> list[providers.ProviderNode]:
    """Return providers, each behind its parent."""

    def depth(node: providers.ProviderNode) -> int:
        parent = nodes.get(node.parent)
        return depth(parent) + 1 if parent else 0

    return sorted(nodes.values(), key=depth)


def mark_missing(node: providers.ProviderNode) -> providers.ProviderNode:
    """Return a provider as it is retained while its device is missing."""
    return dataclasses.replace(
        node,
        inventories=_reserve_all(node.inventories),
        traits=frozenset(t for t in node.traits if not _is_profile(t))
        | {names.OWNER_TRAIT, names.MISSING_TRAIT},
    )


def mark_faulted(node: providers.ProviderNode) -> providers.ProviderNode:
    """Return a provider as it is retained while its device is unreadable."""
    return dataclasses.replace(
        node,
        inventories=_reserve_all(node.inventories),
        traits=node.traits | health.UNREAD_TRAITS | {names.OWNER_TRAIT},
    )


def close(tree: providers.ProviderTree) -> providers.ProviderTree:
    """Return a desired tree with all units reserved."""
    return dataclasses.replace(
        tree,
        nodes=tuple(
            dataclasses.replace(
                node, inventories=_reserve_all(node.inventories)
            )
            for node in tree.nodes
        ),
    )


def _plan_changes(
    before: providers.ProviderNode | None,
    after: providers.ProviderNode,
    guard: Guard,
) -> Iterable[calls.ProviderCall]:
    old = before.inventories if before else {}
    traits = before.traits if before else frozenset()
    desired = dict(after.inventories)
    if after.uuid in guard.allocated:
        dropped = {k: v for k, v in old.items() if k not in desired}
        desired |= _reserve_all(dropped)
    new, memory = reserved.merge(old, traits, desired)
    if new != dict(old):
        yield calls.SetInventories(
            uuid=after.uuid, name=after.name, inventories=new
        )
    stored = frozenset(filter(_is_reserved_trait, traits | after.traits))
    added = (after.traits - stored | memory) - traits
    stale = frozenset(
        trait
        for trait in traits - after.traits - memory
        if names.is_managed_trait(trait)
        and trait != names.NOVA_OWNER_TRAIT
        and not trait.startswith(after.unread_traits)
    ) | (traits & stored - memory)
    if any(t.startswith(names.VENDOR_PREFIX) for t in traits):
        # An earlier release set the traits that follow from the model.
        stale |= traits & after.former_traits
    if _is_other_product(traits, after.traits):
        # An operator may have set some too, for the former card.
        stale |= {
            t
            for t in traits - after.traits
            if t.startswith(names.GPU_TRAIT_PREFIX)
        }
    if added or stale:
        yield calls.ChangeTraits(
            uuid=after.uuid, name=after.name, added=added, removed=stale
        )


def _reserve_all(
    inventories: Mapping[str, providers.Inventory],
) -> dict[str, providers.Inventory]:
    return {
        name: inventory.with_own_reserved(inventory.total)
        for name, inventory in inventories.items()
    }


def _is_profile(trait: str) -> bool:
    return trait.startswith(names.PROFILE_PREFIXES)


def _is_other_product(before: frozenset[str], after: frozenset[str]) -> bool:
    """Return whether another product has replaced the device."""
    old, new = (
        {t for t in traits if t.startswith(names.DEVICE_PREFIX)}
        for traits in (before, after)
    )
    return bool(old) and bool(new) and old.isdisjoint(new)


def _is_reserved_trait(trait: str) -> bool:
    """Return whether a trait is one that reserved.merge returns."""
    return trait.startswith(names.RESERVED_PREFIX)


def _rank(
    call: calls.ProviderCall, before: Mapping[str, providers.ProviderNode]
) -> int:
    """Return the position of a call in a plan.

    Traits follow inventories, so that a device is reserved before its
    trait says why. But a new provider gets its traits before inventories,
    so that it is not offered without them, and so does a provider whose
    trait stores an operator's ``reserved`` that the inventory will hide.
    """
    if isinstance(call, calls.ChangeTraits):
        is_early = call.uuid not in before or any(
            _is_reserved_trait(trait) for trait in call.added
        )
        return _ORDER.index(calls.ChangeTraits) if is_early else _LATE_TRAITS
    return _ORDER.index(type(call))
