# SPDX-License-Identifier: Apache-2.0
"""Planned calls, applied to nova.compute.provider_tree."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff

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
    nodes = [_node(nova_tree.data(u)) for u in our_uuids(nova_tree, desired)]
    return providers.ProviderTree(
        root=desired.root,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
    )


def our_uuids(
    nova_tree: Any, desired: providers.ProviderTree
) -> frozenset[str]:
    """Return the uuids of what is ours in Nova's tree.

    The compute node never is, nor what nests in others' providers and is
    not expected: that is of another host to which somebody gave a parent.
    The tree copies all it knows of a provider for whoever asks, each of
    its slots too: it is asked only about what is not expected.
    """
    expected = {node.uuid for node in desired.nodes}
    found: set[str] = set()
    # Parents come before what nests in them.
    for uuid in nova_tree.get_provider_uuids(desired.root.name):
        if uuid in expected:
            found.add(uuid)
            continue
        data = nova_tree.data(uuid)
        is_below = data.parent_uuid in found | {desired.root.uuid}
        if names.OWNER_TRAIT in data.traits and is_below:
            found.add(uuid)
    return frozenset(found - {desired.root.uuid})


def lay(
    nova_tree: Any,
    desired: providers.ProviderTree,
    guard: diff.Guard,
    make_slot: MakeSlot,
    held: Iterable[model.Slot] = (),
) -> list[calls.ProviderCall]:
    """Make Nova's tree say what ours says, and return what was changed.

    Nova flushes the tree to Placement. Providers that are not ours are
    not touched; a tree that agrees is not changed.

    :param held: slots that servers held when the service started. Nova's
        check then fails for one that its provider does not have, whatever
        has become of the device.
    """
    found = plan(nova_tree, desired, guard)
    for call in found:
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
    return found


def lay_new_slots(
    nova_tree: Any, desired: providers.ProviderTree, make_slot: MakeSlot
) -> None:
    """Let Nova hand out slots that a tree in use does not have yet.

    For a tree that Nova's resource tracker hands out slots of. Whoever
    offers a device in Placement must do this first: for a claim on a
    provider that the tracker does not know it hands out none. None is
    taken away.
    """
    for node in desired.nodes:
        if not nova_tree.exists(node.uuid):
            if not nova_tree.exists(node.parent):
                continue  # Nova's own pass lays it, with its parent
            nova_tree.new_child(node.name, node.parent, uuid=node.uuid)
            # Nova may be about to send this tree: an empty provider would
            # empty what Placement has.
            nova_tree.update_inventory(node.uuid, as_dicts(node.inventories))
            nova_tree.add_traits(node.uuid, *sorted(node.traits))
        published = nova_tree.data(node.uuid).resources
        slots = {
            name: {slot.identifier for slot in resources}
            for name, resources in published.items()
        }
        wanted = {
            name: slots.get(name, set()) | node.slots.get(name, frozenset())
            for name in slots.keys() | node.slots.keys()
        }
        if wanted != slots:
            _lay_slots(nova_tree, node.uuid, wanted, make_slot)


def publish(
    client: Any,
    context: Any,
    root: providers.ProviderRoot,
    plan_for: Callable[[Any], list[calls.ProviderCall]],
) -> None:
    """Send what differs in providers that exist; Nova's pass does the rest.

    A provider's generation grows with each allocation, so what Nova's
    client remembers of it is old as soon as the scheduler has chosen it:
    what is to be changed is read anew first.

    :param client: Nova's ``SchedulerReportClient``.
    :param context: Nova's request context.
    :param plan_for: returns the plan for Nova's tree. It is made after
        that was read: whoever changes a provider meanwhile has seen
        something newer, and then Placement refuses what is sent here.
    """

    def look() -> tuple[Any, list[calls.ProviderCall]]:
        nova_tree = client.get_provider_tree_and_ensure_root(
            context, root.uuid, name=root.name
        )
        return nova_tree, [
            call
            for call in plan_for(nova_tree)
            if nova_tree.exists(call.uuid)
            and not isinstance(call, calls.DeleteProvider)
        ]

    _, waiting = look()
    if not waiting:
        return
    for uuid in {call.uuid for call in waiting}:
        client.invalidate_resource_provider(uuid, cacheonly=True)
    nova_tree, waiting = look()
    for call in waiting:
        _apply(nova_tree, call)
        with contextlib.ExitStack() as failed:
            # The answer may be lost after Placement has made the change:
            # Nova's client must not take its own cache for the truth.
            failed.callback(
                client.invalidate_resource_provider, call.uuid, cacheonly=True
            )
            _send(client, context, call, nova_tree.data(call.uuid))
            failed.pop_all()
        LOG.info("%s", call)


def plan(
    nova_tree: Any, desired: providers.ProviderTree, guard: diff.Guard
) -> list[calls.ProviderCall]:
    """Return the calls that make Nova's tree say what ours says.

    Nova's tree can't rename a provider nor move it: the pass over
    Placement does that, and Nova reads it there.
    """
    found = diff.plan(read_tree(nova_tree, desired), desired, guard)
    return [
        call
        for call in found
        if not isinstance(call, calls.Name | calls.UpdateProvider)
    ]


def _send(
    client: Any, context: Any, call: calls.ProviderCall, data: Any
) -> None:
    if isinstance(call, calls.SetInventories):
        client.set_inventory_for_provider(context, call.uuid, data.inventory)
    else:
        client.set_traits_for_provider(context, call.uuid, data.traits)


def free_to_go(
    nova_tree: Any,
    desired: providers.ProviderTree,
    host: model.HostState,
    is_allocated: Callable[[str], bool],
) -> frozenset[str]:
    """Return the providers that may shrink: nothing is allocated there.

    Only those that would lose something are asked for.

    :param host: the last reading.
    :param is_allocated: tells whether Placement has allocations from a
        provider; it is a request over the network.
    """
    shrinking = diff.shrinking(
        read_tree(nova_tree, desired),
        desired,
        guard(nova_tree, desired, frozenset(), host),
    )
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
    :param host: the last reading. What it could not read stays, reserved;
        while it is not complete nothing is known to be gone.
    """
    ours = our_uuids(nova_tree, desired)
    present = {node.uuid for node in desired.nodes}
    return diff.Guard(
        held=ours - free,
        unknown=frozenset() if host.complete else ours - present,
        unreadable=diff.unreadable(read_tree(nova_tree, desired), host.unknown)
        if host.unknown
        else frozenset(),
    )


def _node(data: Any) -> providers.ProviderNode:
    return providers.ProviderNode(
        name=data.name,
        uuid=data.uuid,
        parent=data.parent_uuid or "",
        inventories={
            name: _inventory(record) for name, record in data.inventory.items()
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


def _apply(nova_tree: Any, call: calls.ProviderCall) -> None:
    match call:
        case calls.CreateProvider(uuid=uuid, name=name, parent=parent):
            nova_tree.new_child(name, parent, uuid=uuid)
        case calls.SetInventories(uuid=uuid, inventories=inventories):
            nova_tree.update_inventory(uuid, as_dicts(inventories))
        case calls.ChangeTraits(uuid=uuid, added=added, removed=removed):
            nova_tree.add_traits(uuid, *sorted(added))
            nova_tree.remove_traits(uuid, *sorted(removed))
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
