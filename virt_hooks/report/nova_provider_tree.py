# SPDX-License-Identifier: Apache-2.0
"""Planned provider calls, applied to nova.compute.provider_tree."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from nova import objects

from nova_accel import model
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff

LOG = logging.getLogger(__name__)


def read_tree(
    nova_tree: Any, desired: providers.ProviderTree
) -> providers.ProviderTree:
    """Return the owned providers of Nova's tree.

    Owned providers have our owner trait, or the uuid of a desired
    provider: a service that ended between creating a provider and setting
    its traits left it without the trait.

    :param nova_tree: a ``nova.compute.provider_tree.ProviderTree``.
    """
    nodes = [
        read_node(nova_tree.data(u)) for u in owned_uuids(nova_tree, desired)
    ]
    return providers.ProviderTree(
        root=desired.root,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
    )


def owned_uuids(
    nova_tree: Any, desired: providers.ProviderTree
) -> frozenset[str]:
    """Return the uuids of the owned providers in Nova's tree.

    Without the compute node, and without undesired providers of another
    host in the same tree; with desired ones that an operator moved to
    another tree that Nova has read. ``data`` copies a provider with all its
    slots, so it is called for undesired providers only.
    """
    root = desired.root
    expected = {node.uuid for node in desired.nodes}
    owned = {uuid for uuid in expected if nova_tree.exists(uuid)}
    for uuid in nova_tree.get_provider_uuids(root.name):
        if uuid in expected or uuid == root.uuid:
            continue
        data = nova_tree.data(uuid)
        if names.OWNER_TRAIT in data.traits:
            if not names.is_of_other_host(root.name, data.name):
                owned.add(uuid)
    return frozenset(owned)


def update_tree(
    nova_tree: Any,
    desired: providers.ProviderTree,
    guard: diff.Guard,
    startup_slots: Iterable[model.Slot] = (),
) -> list[calls.ProviderCall]:
    """Update Nova's tree to the desired one, and return the changes.

    Nova flushes the tree to Placement. Providers that are not owned are
    not changed, nor is a tree that has no difference.

    :param startup_slots: slots that servers had when the service started.
        Nova's check of assigned resources fails for a slot that its
        provider does not have, also if the device is gone.
    """
    planned = plan(nova_tree, desired, guard)
    apply(nova_tree, planned)
    for call in planned:
        LOG.info("%s", call)
    _set_all_slots(nova_tree, desired, startup_slots)
    return planned


def _set_all_slots(
    nova_tree: Any,
    desired: providers.ProviderTree,
    startup_slots: Iterable[model.Slot],
) -> None:
    slots = {node.uuid: dict(node.slots) for node in desired.nodes}
    for slot in startup_slots:
        if nova_tree.exists(slot.provider):
            by_class = slots.setdefault(slot.provider, {})
            identifiers = by_class.get(slot.resource_class, frozenset())
            by_class[slot.resource_class] = identifiers | {slot.identifier}
    for uuid, by_class in slots.items():
        _set_slots(nova_tree, uuid, by_class)


def reserve_all(
    nova_tree: Any, node: str, startup_slots: Iterable[model.Slot]
) -> None:
    """Reserve all units of the owned providers in Nova's tree.

    They get the trait of faulted devices. None of them is removed, and an
    update from a reading of the host ends the reservation.

    :param node: name of the compute node's provider.
    :param startup_slots: see ``update_tree``.
    """
    data = nova_tree.data(node)
    root = providers.ProviderRoot(name=data.name, uuid=data.uuid)
    no_devices = providers.ProviderTree(root=root, nodes=())
    owned = owned_uuids(nova_tree, no_devices)
    unreadable = diff.Guard(unreadable=owned)
    apply(nova_tree, plan(nova_tree, no_devices, unreadable))
    _set_all_slots(nova_tree, no_devices, startup_slots)


def add_new_slots(nova_tree: Any, desired: providers.ProviderTree) -> None:
    """Add slots to the tree that Nova's resource tracker assigns from.

    Call it before a device is offered in Placement: the tracker assigns
    no slot of a provider that is not in its tree. No slot is removed.
    """
    for node in desired.nodes:
        if not nova_tree.exists(node.uuid):
            if not nova_tree.exists(node.parent):
                continue  # Nova's periodic task adds it, with its parent
            nova_tree.new_child(node.name, node.parent, uuid=node.uuid)
            # Nova may be about to flush this tree: an empty provider would
            # remove the inventories in Placement.
            nova_tree.update_inventory(
                node.uuid, providers.as_dicts(node.inventories)
            )
            nova_tree.add_traits(node.uuid, *sorted(node.traits))
        resources = nova_tree.data(node.uuid).resources
        present = {
            name: frozenset(slot.identifier for slot in slots)
            for name, slots in resources.items()
        }
        merged = {
            name: present.get(name, frozenset())
            | node.slots.get(name, frozenset())
            for name in present.keys() | node.slots.keys()
        }
        if merged != present:
            _set_slots(nova_tree, node.uuid, merged)


def plan(
    nova_tree: Any, desired: providers.ProviderTree, guard: diff.Guard
) -> list[calls.ProviderCall]:
    """Return the calls that update Nova's tree to the desired one."""
    planned = diff.plan(read_tree(nova_tree, desired), desired, guard)
    return [call for call in planned if not isinstance(call, calls.Name)]


def find_shrinkable(
    nova_tree: Any,
    desired: providers.ProviderTree,
    host: model.HostState,
    is_allocated: Callable[[str], bool],
) -> frozenset[str]:
    """Return the providers without allocations that would shrink.

    :param host: the last reading.
    :param is_allocated: returns whether a provider has allocations in
        Placement; it sends a request, and is called for providers that
        would shrink only.
    """
    shrinking = diff.find_shrinking(
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
    """Return the guard for an update of the tree.

    Every provider counts as allocated unless it is known to be free.

    :param free: result of find_shrinkable.
    :param host: the last reading. Devices that it could not read stay,
        reserved; while it is incomplete no device is known to be gone.
    """
    actual = read_tree(nova_tree, desired)
    allocated = {node.uuid for node in actual.nodes} - free
    return diff.build_guard(actual, desired, host, allocated)


def read_node(data: Any) -> providers.ProviderNode:
    """Return a provider of Nova's tree, without its slots.

    :param data: a ``nova.compute.provider_tree.ProviderData``.
    """
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


def apply(nova_tree: Any, plan: Iterable[calls.ProviderCall]) -> None:
    """Make the calls of a plan in Nova's tree; Placement is not used."""
    for call in plan:
        _apply(nova_tree, call)


def _apply(nova_tree: Any, call: calls.ProviderCall) -> None:
    match call:
        case calls.CreateProvider(uuid=uuid, name=name, parent=parent):
            nova_tree.new_child(name, parent, uuid=uuid)
        case calls.SetInventories(uuid=uuid, inventories=inventories):
            nova_tree.update_inventory(uuid, providers.as_dicts(inventories))
        case calls.ChangeTraits(uuid=uuid, added=added, removed=removed):
            nova_tree.add_traits(uuid, *sorted(added))
            nova_tree.remove_traits(uuid, *sorted(removed))
        case calls.DeleteProvider(uuid=uuid):
            nova_tree.remove(uuid)


class _SharedSlots(set[Any]):
    """Slots of one class of a provider, as ``nova.objects.Resource``.

    Copies of a tree share them. Nova copies the resources of each provider
    several times in an update, under the lock of its claims, and never
    changes them: it assigns slots from differences of such sets.
    """

    def __deepcopy__(self, memo: Any) -> Self:
        return self


# More classes than a host's providers have together.
@functools.lru_cache(maxsize=1024)
def _build_slots(
    provider: str, resource_class: str, identifiers: frozenset[str]
) -> _SharedSlots:
    return _SharedSlots(
        objects.Resource(
            provider_uuid=provider,
            resource_class=resource_class,
            identifier=identifier,
        )
        for identifier in identifiers
    )


def _set_slots(
    nova_tree: Any, uuid: str, slots: Mapping[str, frozenset[str]]
) -> None:
    """Set the resources of a provider, by class and identifier."""
    nova_tree.update_resources(
        uuid,
        {
            name: _build_slots(uuid, name, identifiers)
            for name, identifiers in slots.items()
        },
    )
