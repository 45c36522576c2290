# SPDX-License-Identifier: Apache-2.0
"""Difference of two provider trees, as an ordered list of calls."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import reserved


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What must not be taken away.

    ``held`` are the providers that have, or may have, allocations: they
    and their resource classes stay, reserved whole. ``unknown`` are
    providers of which nothing can be told: they stay as they are, and so
    does what nests in them. ``unreadable`` are those of devices that are
    there and can't be read: they stay too, reserved whole and labelled as
    faulted. Whatever such a provider nests in stays with it.
    """

    held: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()


NOTHING = Guard()
# Standard traits of GPUs. An operator may set some too: they go only with
# the card that they were set for.
_STANDARD = "HW_GPU_"


def plan(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: Guard = NOTHING,
    known: Collection[str] | None = None,
) -> list[calls.Call]:
    """Return the calls that turn the actual tree into the desired one.

    What an operator has set stays: ``reserved``, as the least of it,
    ``allocation_ratio``, and traits that are not ours to set. Traits that
    are unread in the desired tree stay as they are. The calls come in an
    order Placement accepts: names first, then providers are created,
    parents before children, and deleted last, children before parents. An
    equal tree needs no call. A provider that should go but is held keeps
    its classes, reserved whole, and is marked as missing.

    :param actual: our providers as the service has them; whatever is not
        ours must not be in it.
    :param known: the custom resource classes and traits that Placement
        knows; None where somebody else makes them.
    """
    before = {node.uuid: node for node in actual.nodes}
    after = {node.uuid: node for node in desired.nodes}
    left, aside = _apart(before, after, guard)
    kept = _with_parents(guard.held | left | aside, before)
    found: list[calls.ProviderCall] = []
    for node in _top_down(after):
        if node.uuid not in before:
            found.append(
                calls.CreateProvider(
                    uuid=node.uuid, name=node.name, parent=node.parent
                )
            )
        if node.uuid not in (left | aside) & before.keys():
            found += _changes(before.get(node.uuid), node, guard)
    for node in reversed(_top_down(before)):
        if node.uuid in aside:
            found += _changes(node, set_aside(node), guard)
        elif node.uuid in after or node.uuid in left:
            continue
        elif node.uuid in kept:
            found += _changes(node, shelved(node), guard)
        else:
            found.append(calls.DeleteProvider(uuid=node.uuid, name=node.name))
    ordered = sorted(found, key=lambda call: _rank(call, before))
    return [*_names(ordered, known), *ordered]


def shrinking(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: Guard = NOTHING,
) -> frozenset[str]:
    """Return the providers that would lose a class, or go altogether.

    Whether anything is allocated from them must be known before a plan is
    made; of the others it does not matter.
    """
    before = {node.uuid: node for node in actual.nodes}
    wanted = {node.uuid: node.inventories.keys() for node in desired.nodes}
    left, aside = _apart(before, wanted, guard)
    return frozenset(
        node.uuid
        for node in actual.nodes
        if node.uuid not in left | aside
        and (
            node.uuid not in wanted
            or node.inventories.keys() - wanted[node.uuid]
        )
    )


def unreadable(
    actual: providers.ProviderTree, addresses: Iterable[str]
) -> frozenset[str]:
    """Return the providers of devices that can't be read, and their parts'.

    A part is known by its name too: who moved its provider elsewhere has
    not moved the part.

    :param addresses: of the devices.
    """
    root = actual.root
    found = frozenset(addresses)
    parts = tuple(
        f"{names.provider_name(root.name, address)}_region_"
        for address in found
    )
    return frozenset(
        names.provider_uuid(root.uuid, address) for address in found
    ) | frozenset(n.uuid for n in actual.nodes if n.name.startswith(parts))


def _apart(
    nodes: Mapping[str, providers.ProviderNode],
    described: Collection[str],
    guard: Guard,
) -> tuple[frozenset[str], frozenset[str]]:
    """Return which providers are left as they are, and which set aside.

    Who is described has been read, whatever it nests in.
    """
    left = _with_parts(guard.unknown, nodes)
    aside = _with_parts(guard.unreadable, nodes) & nodes.keys()
    return left, aside - left - frozenset(described)


def _names(
    plan: Iterable[calls.ProviderCall], known: Collection[str] | None
) -> list[calls.Call]:
    """Return the calls that make the names known which a plan needs."""
    if known is None:
        return []
    classes: set[str] = set()
    traits: set[str] = set()
    for call in plan:
        if isinstance(call, calls.SetInventories):
            classes |= call.inventories.keys()
        elif isinstance(call, calls.ChangeTraits):
            traits |= call.added
    return [
        *(calls.CreateClass(name=n) for n in _custom(classes, known)),
        *(calls.CreateTrait(name=n) for n in _custom(traits, known)),
    ]


def _custom(wanted: Iterable[str], known: Collection[str]) -> list[str]:
    return sorted(
        name
        for name in wanted
        if name.startswith(names.CUSTOM) and name not in known
    )


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
        | {names.OWNER_TRAIT, names.MISSING_TRAIT},
    )


def set_aside(node: providers.ProviderNode) -> providers.ProviderNode:
    """Return a provider as it is kept while its device can't be read."""
    return dataclasses.replace(
        node,
        inventories=_reserve_all(node.inventories),
        traits=node.traits | {names.OWNER_TRAIT, names.FAULTED_TRAIT},
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
            case calls.CreateClass() | calls.CreateTrait():
                continue
            case _:
                nodes[call.uuid] = _applied(nodes[call.uuid], call)
    return dataclasses.replace(
        actual,
        nodes=tuple(sorted(nodes.values(), key=lambda node: node.name)),
    )


def _applied(
    node: providers.ProviderNode,
    call: calls.UpdateProvider | calls.SetInventories | calls.ChangeTraits,
) -> providers.ProviderNode:
    match call:
        case calls.SetInventories(inventories=inventories):
            return dataclasses.replace(node, inventories=inventories)
        case calls.ChangeTraits(added=added, removed=removed):
            return dataclasses.replace(
                node, traits=(node.traits | added) - removed
            )
        case calls.UpdateProvider(name=name, parent=parent):
            return dataclasses.replace(node, name=name, parent=parent)


def _changes(
    before: providers.ProviderNode | None,
    after: providers.ProviderNode,
    guard: Guard,
) -> Iterable[calls.ProviderCall]:
    old = before.inventories if before else {}
    traits = before.traits if before else frozenset()
    wanted = dict(after.inventories)
    if after.uuid in guard.held:
        gone = {k: v for k, v in old.items() if k not in wanted}
        wanted |= _reserve_all(gone)
    new, memory = reserved.join(old, traits, wanted)
    if before and (before.name, before.parent) != (after.name, after.parent):
        yield calls.UpdateProvider(
            uuid=after.uuid, name=after.name, parent=after.parent
        )
    if new != dict(old):
        yield calls.SetInventories(
            uuid=after.uuid, name=after.name, inventories=new
        )
    added = (_lasting(after.traits) | memory) - traits
    stale = frozenset(
        trait
        for trait in traits - after.traits - memory
        if names.is_ours(trait)
        and trait != names.NOVA_OWNER_TRAIT
        and not trait.startswith(after.unread)
    ) | frozenset(t for t in traits - memory if _is_memory(t))
    if _is_another(traits, after.traits):
        stale |= {t for t in traits - after.traits if t.startswith(_STANDARD)}
    if added or stale:
        yield calls.ChangeTraits(
            uuid=after.uuid, name=after.name, added=added, removed=stale
        )


def _reserve_all(
    inventories: Mapping[str, providers.Inventory],
) -> dict[str, providers.Inventory]:
    return {
        name: inventory.reserving(inventory.total)
        for name, inventory in inventories.items()
    }


def _is_profile(trait: str) -> bool:
    return trait.startswith(names.PROFILE_PREFIXES)


def _is_another(before: frozenset[str], after: frozenset[str]) -> bool:
    """Return whether another product stands where one did."""
    was, now = (
        {t for t in traits if t.startswith(names.DEVICE_PREFIX)}
        for traits in (before, after)
    )
    return bool(was) and bool(now) and was.isdisjoint(now)


def _is_memory(trait: str) -> bool:
    return trait.startswith(names.RESERVED_PREFIX)


def _lasting(traits: frozenset[str]) -> frozenset[str]:
    """Return a provider's traits but those that its records decide."""
    return frozenset(trait for trait in traits if not _is_memory(trait))


_ORDER = (
    calls.CreateProvider,
    calls.UpdateProvider,
    calls.ChangeTraits,
    calls.SetInventories,
    calls.ChangeTraits,
    calls.DeleteProvider,
)
_LATE = 4


def _rank(
    call: calls.ProviderCall, before: Mapping[str, providers.ProviderNode]
) -> int:
    """Return when a call has its turn.

    Traits come after the records: what is reserved first and labelled
    then is offered at no time. But a provider is offered only once it is
    labelled, and what an operator had set is remembered before it is
    hidden.
    """
    if isinstance(call, calls.ChangeTraits):
        is_early = call.uuid not in before or any(
            _is_memory(trait) for trait in call.added
        )
        return _ORDER.index(calls.ChangeTraits) if is_early else _LATE
    return _ORDER.index(type(call))
