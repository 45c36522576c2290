# SPDX-License-Identifier: Apache-2.0
"""Reader of bare-metal nodes, as Nova's Ironic driver reports them.

The providers are the nodes themselves, found by the traits that Ironic's
inspection has set. They are only read: all of them is Nova's.
"""

from collections.abc import Iterator, Sequence

from nova_accel.inventory import node_counts
from nova_accel.model import names, providers
from placement_sync.client import cloud_client, provider_records, rest
from placement_sync.fleet.flavors import offered_devices

_TRAITS = "/traits?name=startswith:CUSTOM_&associated=true"
# Traits of one query: the path stays below 8 KiB, the limit of web servers.
_MAX_TRAITS = 50


def read_nodes(
    client: rest.RestClient,
) -> list[offered_devices.OfferedDevice]:
    """Return the nodes with accelerators, by name; nodes in use included.

    One request without such nodes; with them one more for 50 models, and
    three for each node.

    :raises ServiceError: Placement can't be read.
    """
    traits = client.read(_TRAITS, provider_records.parse_traits)
    counts = sorted(filter(node_counts.parse_count, traits))
    nodes: dict[str, providers.Provider] = {}
    for first in range(0, len(counts), _MAX_TRAITS):
        chunk = counts[first : first + _MAX_TRAITS]
        listed = provider_records.list_providers(
            client.fetch, {"required": f"in:{','.join(chunk)}"}
        )
        nodes |= {node.uuid: node for node in listed if not node.parent}
    return list(_read_details(client, sorted(nodes.values(), key=_get_name)))


def _get_name(node: providers.Provider) -> str:
    return node.name


def _read_details(
    client: rest.RestClient, nodes: Sequence[providers.Provider]
) -> Iterator[offered_devices.OfferedDevice]:
    """Yield the nodes that still exist."""
    for node in cloud_client.find_each(
        client, nodes, provider_records.fetch_used_provider
    ):
        if node is None:
            continue
        models = [t for t in node.traits if t.startswith(names.MODEL_PREFIX)]
        yield offered_devices.OfferedDevice(
            uuid=node.uuid,
            name=node.name,
            host=node.name,
            root=node.root,
            card=node.uuid,
            model=models[0] if len(models) == 1 else "",
            traits=node.traits,
            capacities=node.capacities,
            counts=tuple(
                filter(None, map(node_counts.parse_count, sorted(node.traits)))
            ),
        )
