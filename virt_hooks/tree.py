# SPDX-License-Identifier: Apache-2.0
"""Our providers laid onto the ProviderTree that Nova hands round."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel import model, names, providers
from placement_sync import calls, diff

LOG = logging.getLogger(__name__)

MakeSlot = Callable[[model.Slot], Any]


def read_tree(
    nova_tree: Any, desired: providers.ProviderTree
) -> providers.ProviderTree:
    """Return what is ours in Nova's tree.

    Ours is what carries our owner trait, and what has the uuid of a
    provider of ours: a service that died between creating a provider and
    marking it left one without the trait.

    :param nova_tree: a ``nova.compute.provider_tree.ProviderTree``.
    """
    nodes = [_node(nova_tree.data(u)) for u in _our_uuids(nova_tree, desired)]
    return providers.ProviderTree(
        root=desired.root,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
    )


def _our_uuids(
    nova_tree: Any, desired: providers.ProviderTree
) -> frozenset[str]:
    """Return the uuids of what is ours in Nova's tree.

    The tree copies all it knows of a provider for whoever asks, each of
    its slots too: it is asked only about what is not expected.
    """
    expected = {node.uuid for node in desired.nodes}
    return frozenset(
        uuid
        for uuid in nova_tree.get_provider_uuids(desired.root.name)
        if uuid in expected
        or names.OWNER_TRAIT in nova_tree.data(uuid).traits
    )


def lay(
    nova_tree: Any,
    desired: providers.ProviderTree,
    guard: diff.Guard,
    make_slot: MakeSlot,
    held: Iterable[model.Slot] = (),
) -> list[calls.Call]:
    """Make Nova's tree say what ours says, and return what was changed.

    Nova flushes the tree to Placement. Providers that are not ours are
    not touched; a tree that agrees is not changed.

    :param held: slots that servers held when the service started. Nova's
        check then fails for one that its provider does not have, whatever
        has become of the device.
    """
    plan = diff.plan(read_tree(nova_tree, desired), desired, guard)
    for call in plan:
        _apply(nova_tree, call)
        LOG.info("%s", call)
    slots = {
        node.uuid: {name: set(ids) for name, ids in node.slots.items()}
        for node in desired.nodes
    }
    for slot in held:
        if nova_tree.exists(slot.provider):
            known = slots.setdefault(slot.provider, {})
            known.setdefault(slot.resource_class, set()).add(slot.identifier)
    for uuid, given in slots.items():
        _lay_slots(nova_tree, uuid, given, make_slot)
    return plan


def publish(
    client: Any,
    context: Any,
    desired: providers.ProviderTree,
    guard_for: Callable[[Any, providers.ProviderTree], diff.Guard],
) -> None:
    """Send what differs in providers that exist; Nova's pass does the rest.

    A provider's generation grows with each allocation, so what Nova's
    client remembers of it is old as soon as the scheduler has chosen it:
    what is to be changed is read anew first.

    :param client: Nova's ``SchedulerReportClient``.
    :param context: Nova's request context.
    :param guard_for: returns the guard for Nova's tree and ours.
    """

    def look() -> tuple[Any, list[calls.Call]]:
        nova_tree = client.get_provider_tree_and_ensure_root(
            context, desired.root.uuid, name=desired.root.name
        )
        plan = diff.plan(
            read_tree(nova_tree, desired),
            desired,
            guard_for(nova_tree, desired),
        )
        return nova_tree, [
            call
            for call in plan
            if nova_tree.exists(call.uuid)
            and not isinstance(call, calls.DeleteProvider)
        ]

    _, waiting = look()
    if not waiting:
        return
    for call in waiting:
        client.invalidate_resource_provider(call.uuid, cacheonly=True)
    nova_tree, waiting = look()
    for call in waiting:
        _apply(nova_tree, call)
        data = nova_tree.data(call.uuid)
        if isinstance(call, calls.SetInventories):
            client.set_inventory_for_provider(
                context, call.uuid, data.inventory
            )
        else:
            client.set_traits_for_provider(context, call.uuid, data.traits)
        LOG.info("%s", call)


def free_to_go(
    nova_tree: Any,
    desired: providers.ProviderTree,
    is_allocated: Callable[[str], bool],
) -> frozenset[str]:
    """Return the providers that may shrink: nothing is allocated there.

    Only those that would lose something are asked for.

    :param is_allocated: tells whether Placement has allocations from a
        provider; it is a request over the network.
    """
    actual = read_tree(nova_tree, desired)
    wanted = {node.uuid: node.inventories.keys() for node in desired.nodes}
    shrinking = [
        node.uuid
        for node in actual.nodes
        if node.uuid not in wanted
        or node.inventories.keys() - wanted[node.uuid]
    ]
    return frozenset(u for u in shrinking if not is_allocated(u))


def guard(
    nova_tree: Any,
    desired: providers.ProviderTree,
    free: frozenset[str],
    host: model.HostState,
) -> diff.Guard:
    """Return the guard under which a tree is laid.

    Everything counts as held but what is known to be free.

    :param free: what free_to_go found.
    :param host: the last reading; what it could not read is unknown.
    """
    ours = _our_uuids(nova_tree, desired)
    present = {node.uuid for node in desired.nodes}
    unknown = frozenset(
        names.provider_uuid(desired.root.uuid, address)
        for address in host.unknown
    )
    return diff.Guard(
        held=ours - free,
        unknown=unknown if host.complete else unknown | ours - present,
    )


def _node(data: Any) -> providers.ProviderNode:
    return providers.ProviderNode(
        name=data.name,
        uuid=data.uuid,
        parent=data.parent_uuid or "",
        inventories={
            name: _inventory(record)
            for name, record in data.inventory.items()
        },
        traits=frozenset(data.traits),
    )


_FIELDS = tuple(
    field.name for field in dataclasses.fields(providers.Inventory)
)


def _inventory(record: Mapping[str, Any]) -> providers.Inventory:
    return providers.Inventory(
        **{name: record[name] for name in _FIELDS if name in record}
    )


def _apply(nova_tree: Any, call: calls.Call) -> None:
    match call:
        case calls.CreateProvider(uuid=uuid, name=name, parent=parent):
            nova_tree.new_child(name, parent, uuid=uuid)
        case calls.SetInventories(uuid=uuid, inventories=inventories):
            nova_tree.update_inventory(uuid, as_dicts(inventories))
        case calls.AddTraits(uuid=uuid, traits=traits):
            nova_tree.add_traits(uuid, *sorted(traits))
        case calls.RemoveTraits(uuid=uuid, traits=traits):
            nova_tree.remove_traits(uuid, *sorted(traits))
        case calls.DeleteProvider(uuid=uuid):
            nova_tree.remove(uuid)


def as_dicts(
    inventories: Mapping[str, providers.Inventory],
) -> dict[str, dict[str, int | float]]:
    """Return inventories as Nova and Placement spell them."""
    return {
        name: inventory.as_dict() for name, inventory in inventories.items()
    }


def _lay_slots(
    nova_tree: Any,
    uuid: str,
    slots: Mapping[str, Iterable[str]],
    make_slot: MakeSlot,
) -> None:
    nova_tree.update_resources(
        uuid,
        {
            name: {
                make_slot(
                    model.Slot(
                        provider=uuid,
                        resource_class=name,
                        identifier=identifier,
                    )
                )
                for identifier in identifiers
            }
            for name, identifiers in slots.items()
        },
    )
