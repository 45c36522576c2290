# SPDX-License-Identifier: Apache-2.0
"""From the tree that is to the tree that should be, as a list of calls."""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel import names, providers
from placement_sync import calls


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What must not be taken away.

    ``held`` are the providers that have, or may have, allocations: they
    and their resource classes stay, reserved whole. ``unknown`` are the
    providers of devices that could not be read: they stay as they are, and
    so does what nests in them. Whatever such a provider nests in stays
    with it.
    """

    held: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


def plan(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: Guard,
) -> list[calls.Call]:
    """Return the calls that turn the actual tree into the desired one.

    Traits that are unread in the desired tree stay as they are. The calls
    come in an order Placement accepts: providers are created first,
    parents before children, and deleted last, children before parents. An
    equal tree needs no call. A provider that should go but is held keeps its
    classes, reserved whole, and is marked as missing.

    :param actual: our providers as the service has them; whatever is not
        ours must not be in it.
    """
    before = {node.uuid: node for node in actual.nodes}
    after = {node.uuid: node for node in desired.nodes}
    unknown = _with_parts(guard.unknown, before)
    kept = _with_parents(guard.held | unknown, before)
    found: list[calls.Call] = [
        calls.CreateProvider(
            uuid=node.uuid, name=node.name, parent=node.parent
        )
        for node in _top_down(after)
        if node.uuid not in before
    ]
    for node in desired.nodes:
        if node.uuid not in unknown or node.uuid not in before:
            found += _changes(before.get(node.uuid), node, guard)
    for node in reversed(_top_down(before)):
        if node.uuid in after or node.uuid in unknown:
            continue
        if node.uuid in kept:
            found += _changes(node, shelved(node), guard)
        else:
            found.append(
                calls.DeleteProvider(uuid=node.uuid, name=node.name)
            )
    return sorted(found, key=_rank)


def _with_parents(
    uuids: Iterable[str], nodes: Mapping[str, providers.ProviderNode]
) -> set[str]:
    """Return some providers and all that they nest in."""
    found: set[str] = set()
    todo = [uuid for uuid in uuids if uuid in nodes]
    while todo:
        uuid = todo.pop()
        found.add(uuid)
        if nodes[uuid].parent in nodes:
            todo.append(nodes[uuid].parent)
    return found


def _with_parts(
    uuids: Iterable[str], nodes: Mapping[str, providers.ProviderNode]
) -> frozenset[str]:
    """Return some providers and all that nests in them."""
    found = set(uuids)
    for node in _top_down(nodes):
        if node.parent in found:
            found.add(node.uuid)
    return frozenset(found)


def _top_down(
    nodes: Mapping[str, providers.ProviderNode],
) -> list[providers.ProviderNode]:
    """Return providers, each behind what it nests in."""

    def depth(node: providers.ProviderNode) -> int:
        parent = nodes.get(node.parent)
        return depth(parent) + 1 if parent else 0

    return sorted(nodes.values(), key=depth)


def shelved(node: providers.ProviderNode) -> providers.ProviderNode:
    """Return a provider as it is kept while its device is missing."""
    return dataclasses.replace(
        node,
        inventories=_reserve_all(node.inventories),
        traits=frozenset(t for t in node.traits if not _is_profile(t))
        | {names.MISSING_TRAIT},
    )


def apply(
    actual: providers.ProviderTree, plan: Iterable[calls.Call]
) -> providers.ProviderTree:
    """Return the tree that a plan leads to, on paper."""
    nodes = {node.uuid: node for node in actual.nodes}
    for call in plan:
        match call:
            case calls.CreateProvider(uuid=uuid, name=name, parent=parent):
                nodes[uuid] = providers.ProviderNode(
                    name=name,
                    uuid=uuid,
                    parent=parent,
                    inventories={},
                    traits=frozenset(),
                )
            case calls.DeleteProvider(uuid=uuid):
                del nodes[uuid]
            case _:
                nodes[call.uuid] = _applied(nodes[call.uuid], call)
    return dataclasses.replace(
        actual,
        nodes=tuple(sorted(nodes.values(), key=lambda node: node.name)),
    )


def _applied(
    node: providers.ProviderNode,
    call: calls.SetInventories | calls.AddTraits | calls.RemoveTraits,
) -> providers.ProviderNode:
    match call:
        case calls.SetInventories(inventories=inventories):
            return dataclasses.replace(node, inventories=inventories)
        case calls.AddTraits(traits=traits):
            return dataclasses.replace(node, traits=node.traits | traits)
        case calls.RemoveTraits(traits=traits):
            return dataclasses.replace(node, traits=node.traits - traits)


def _changes(
    before: providers.ProviderNode | None,
    after: providers.ProviderNode,
    guard: Guard,
) -> Iterable[calls.Call]:
    old = before.inventories if before else {}
    new = dict(after.inventories)
    if after.uuid in guard.held:
        gone = {k: v for k, v in old.items() if k not in new}
        new |= _reserve_all(gone)
    if new != dict(old):
        yield calls.SetInventories(
            uuid=after.uuid, name=after.name, inventories=new
        )
    traits = before.traits if before else frozenset()
    if added := after.traits - traits:
        yield calls.AddTraits(uuid=after.uuid, name=after.name, traits=added)
    stale = frozenset(
        trait
        for trait in traits - after.traits
        if names.is_ours(trait) and not trait.startswith(after.unread)
    )
    if stale:
        yield calls.RemoveTraits(
            uuid=after.uuid, name=after.name, traits=stale
        )


def _reserve_all(
    inventories: Mapping[str, providers.Inventory],
) -> dict[str, providers.Inventory]:
    return {
        name: dataclasses.replace(inventory, reserved=inventory.total)
        for name, inventory in inventories.items()
    }


def _is_profile(trait: str) -> bool:
    return trait.startswith(names.PROFILE_PREFIXES)


_ORDER = (
    calls.CreateProvider,
    calls.SetInventories,
    calls.AddTraits,
    calls.RemoveTraits,
    calls.DeleteProvider,
)


def _rank(call: calls.Call) -> int:
    return _ORDER.index(type(call))
