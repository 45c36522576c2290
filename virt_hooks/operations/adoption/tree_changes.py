# SPDX-License-Identifier: Apache-2.0
"""Nova's provider tree and allocations of a host, read and changed."""

from collections.abc import Mapping
from typing import Any

from nova_accel.inventory.adoption import records, reshape
from nova_accel.model import names, providers
from virt_hooks.report import nova_provider_tree


def read(nova_tree: Any, node: str, allocations: Any) -> reshape.Stored:
    """Return the providers and allocations of a host.

    :param nova_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param node: name of the compute node.
    :param allocations: as Nova gives them to ``update_provider_tree``.
    """
    stored = {}
    for uuid in nova_tree.get_provider_uuids(node):
        data = nova_tree.data(uuid)
        provider = nova_provider_tree.read_node(data)
        stored[str(uuid)] = reshape.StoredProvider(
            name=provider.name,
            parent=provider.parent,
            inventories=provider.inventories,
            traits=provider.traits,
            aggregates=frozenset(map(str, data.aggregates)),
        )
    return reshape.Stored(
        providers=stored,
        allocations={
            str(consumer): {
                str(uuid): dict(amounts["resources"])
                for uuid, amounts in record["allocations"].items()
            }
            for consumer, record in allocations.items()
        },
    )


def list_own(stored: reshape.Stored, root: str) -> frozenset[str]:
    """Return the uuids of this library's providers.

    An adoption that failed may have created some without traits.

    :param root: name of the compute node's provider.
    """
    return frozenset(
        uuid
        for uuid, provider in stored.providers.items()
        if names.OWNER_TRAIT in provider.traits
        or (
            provider.name.startswith(f"{root}{names.PROVIDER_MARK}")
            and not provider.inventories
        )
    )


def write(
    nova_tree: Any,
    node: str,
    allocations: Any,
    before: reshape.Stored,
    after: reshape.Stored,
) -> None:
    """Change Nova's tree and allocations where two states differ."""
    for uuid in before.providers.keys() - after.providers.keys():
        nova_tree.remove(uuid)
    for uuid, provider in after.providers.items():
        if not nova_tree.exists(uuid):
            nova_tree.new_child(provider.name, node, uuid=uuid)
        if provider != before.providers.get(uuid):
            _set_provider(nova_tree, uuid, provider)
    for consumer, amounts in after.allocations.items():
        if amounts != before.allocations[consumer]:
            _set_allocations(allocations[consumer]["allocations"], amounts)


def _set_provider(
    nova_tree: Any, uuid: str, provider: reshape.StoredProvider
) -> None:
    nova_tree.update_inventory(uuid, providers.as_dicts(provider.inventories))
    nova_tree.update_traits(uuid, provider.traits)
    nova_tree.update_aggregates(uuid, provider.aggregates)


def _set_allocations(
    allocated: Any, amounts: Mapping[str, records.Amounts]
) -> None:
    """Set the amounts of one consumer; unchanged ones stay as they are."""
    for uuid in [*allocated]:
        if uuid not in amounts:
            del allocated[uuid]
    for uuid, resources in amounts.items():
        if uuid not in allocated or allocated[uuid]["resources"] != resources:
            allocated[uuid] = {"resources": dict(resources)}
