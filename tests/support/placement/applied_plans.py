# SPDX-License-Identifier: Apache-2.0
"""Result of a plan, as Placement stores it."""

import dataclasses
from collections.abc import Iterable

from nova_accel.model import providers
from placement_sync.client import calls


def apply(
    actual: providers.ProviderTree, plan: Iterable[calls.Call]
) -> providers.ProviderTree:
    """Return the tree that results from a plan; Placement is not used."""
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
                nodes[call.uuid] = _apply_to_node(nodes[call.uuid], call)
    return dataclasses.replace(
        actual,
        nodes=tuple(sorted(nodes.values(), key=lambda node: node.name)),
    )


def _apply_to_node(
    node: providers.ProviderNode,
    call: calls.SetInventories | calls.ChangeTraits,
) -> providers.ProviderNode:
    match call:
        case calls.SetInventories(inventories=inventories):
            return dataclasses.replace(node, inventories=inventories)
        case calls.ChangeTraits(added=added, removed=removed):
            return dataclasses.replace(
                node, traits=(node.traits | added) - removed
            )
