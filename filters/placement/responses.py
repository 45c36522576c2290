# SPDX-License-Identifier: Apache-2.0
"""Queries to Placement, and the parsers of their answers."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any
from urllib import parse

from filters import provider_facts
from filters.placement.queries import (
    Get,
    candidates_path,
    group_query,
    provider_path,
    read,
    read_known,
    with_query,
)
from nova_accel.model import flavors, names
from placement_sync.client import provider_records

# What each consumer has of a provider: units by class.
Held = tuple[Mapping[str, int], ...]


def fetch_any(get: Get, group: flavors.RequestGroup) -> bool:
    """Return whether any host has a candidate for this group alone.

    :raises FactsError: Placement did not answer.
    """
    path = candidates_path(group, limit="1")
    return read(get, path, lambda a: bool(a["allocation_requests"]))


def fetch_offers(
    get: Get, group: flavors.RequestGroup, tree: str = ""
) -> dict[str, provider_facts.ProviderFacts]:
    """Return the providers of every host where a device of ours fits.

    One call, whatever the number of hosts. Full providers are there too,
    as long as a neighbour in their tree has room. Generations and names
    are not.

    :param tree: any provider's uuid, to ask for its host alone.
    :raises FactsError: Placement did not answer.
    """
    path = candidates_path(
        _ours(group, "_ACCEL"), **({"in_tree_ACCEL": tree} if tree else {})
    )
    return read_known(get, path, _summaries)


def fetch_everything(get: Get) -> dict[str, provider_facts.ProviderFacts]:
    """Return all providers of every host that has a device of ours.

    One call. Hosts without one MB of memory left are not in it: nothing
    could be started there.

    :raises FactsError: Placement did not answer.
    """
    path = with_query(
        "/allocation_candidates",
        {
            "resources_HOST": "MEMORY_MB:1",
            "required_ACCEL": names.OWNER_TRAIT,
            "same_subtree": "_HOST,_ACCEL",
            "group_policy": "none",
        },
    )
    return read(get, path, _summaries)


def fetch_listing(
    get: Get, groups: Sequence[flavors.RequestGroup], tree: str = ""
) -> dict[str, provider_facts.ProviderFacts]:
    """Return who the devices of ours are that may serve any of the groups.

    One call. Of each there are name, parent, root and generation, but no
    stock and no traits. Left out are those without what all groups ask
    for; a full provider, for example.

    :param tree: any provider's uuid, to list its tree alone.
    :raises FactsError: Placement did not answer.
    """
    common = functools.reduce(_common, map(_of_one, groups))
    query = group_query(_ours(common, ""))
    if tree:
        query["in_tree"] = tree
    return read_known(
        get,
        with_query("/resource_providers", query),
        lambda a: {p["uuid"]: _who(p) for p in a["resource_providers"]},
    )


def fetch_names(get: Get) -> dict[str, str]:
    """Return the names of this library's providers, by uuid.

    :raises FactsError: Placement did not answer.
    """
    path = with_query("/resource_providers", {"required": names.OWNER_TRAIT})
    return read(
        get,
        path,
        lambda a: {p["uuid"]: p["name"] for p in a["resource_providers"]},
    )


def fetch_taken(get: Get, consumer: str) -> dict[str, Mapping[str, int]]:
    """Return what a server holds: units by class, by provider's uuid.

    :raises FactsError: Placement did not answer.
    """
    path = f"/allocations/{parse.quote(consumer, safe='')}"
    return read(
        get,
        path,
        lambda a: {
            u: _amounts(x["resources"]) for u, x in a["allocations"].items()
        },
    )


def fetch_who(get: Get, uuid: str) -> provider_facts.ProviderFacts:
    """Return a provider's name, parent, root and generation.

    :raises FactsError: Placement did not answer.
    """
    return read(get, provider_path(uuid), _who)


def fetch_provider(
    get: Get, who: provider_facts.ProviderFacts
) -> provider_facts.ProviderFacts:
    """Return a provider as it is at this moment, in three calls.

    It is not exact when the provider changed between the first and the
    last; it then is at least as new as its generation.

    :param who: whose name, parent and root are known.
    :raises FactsError: Placement did not answer.
    """
    path = provider_path(who.uuid)
    capacity, before = read(get, f"{path}/inventories", _capacities)
    traits = read(get, f"{path}/traits", provider_records.parse_traits)
    held, after = fetch_held(get, who.uuid)
    found = dataclasses.replace(
        who,
        stock={
            name: provider_facts.ClassCapacity(capacity=units, used=0)
            for name, units in capacity.items()
        },
        traits=traits,
        generation=before,
        exact=before == after,
        read_at=None,
    )
    return holding(found, held)


def fetch_held(get: Get, uuid: str) -> tuple[Held, int]:
    """Return what each consumer has of a provider, and the generation.

    :raises FactsError: Placement did not answer.
    """
    return read(
        get,
        f"{provider_path(uuid)}/allocations",
        lambda a: (
            tuple(_amounts(x["resources"]) for x in a["allocations"].values()),
            int(a["resource_provider_generation"]),
        ),
    )


def holding(
    provider: provider_facts.ProviderFacts, held: Held
) -> provider_facts.ProviderFacts:
    """Return a provider's facts with what its consumers have of it."""
    return dataclasses.replace(
        provider,
        held=held,
        stock={
            name: provider_facts.ClassCapacity(
                capacity=stock.capacity,
                used=sum(each.get(name, 0) for each in held),
            )
            for name, stock in provider.stock.items()
        },
    )


def _ours(group: flavors.RequestGroup, suffix: str) -> flavors.RequestGroup:
    """Return what a group asks of a provider of ours, by that suffix."""
    return dataclasses.replace(
        group, suffix=suffix, required=group.required | {names.OWNER_TRAIT}
    )


def _of_one(group: flavors.RequestGroup) -> flavors.RequestGroup:
    """Return what one provider gives of a group.

    Without a suffix each class may come from another one.
    """
    if group.suffix or len(group.resources) == 1:
        return group
    return dataclasses.replace(group, resources={})


def _common(
    one: flavors.RequestGroup, other: flavors.RequestGroup
) -> flavors.RequestGroup:
    """Return the group that every provider for either of two serves."""
    return flavors.RequestGroup(
        suffix="",
        resources={
            name: min(amount, other.resources[name])
            for name, amount in one.resources.items()
            if name in other.resources
        },
        required=one.required & other.required,
        forbidden=one.forbidden & other.forbidden,
    )


def _amounts(resources: Any) -> dict[str, int]:
    return {str(name): int(amount) for name, amount in resources.items()}


def _capacities(answer: Any) -> tuple[dict[str, int], int]:
    """Return units by class as Placement computes them, and generation.

    The arithmetic is Inventory.capacity of placement/objects/inventory.py.
    """
    return {
        name: int((i["total"] - i["reserved"]) * i["allocation_ratio"])
        for name, i in answer["inventories"].items()
    }, int(answer["resource_provider_generation"])


def _who(answer: Any) -> provider_facts.ProviderFacts:
    return provider_facts.ProviderFacts(
        uuid=answer["uuid"],
        stock={},
        name=answer["name"],
        parent=answer["parent_provider_uuid"] or "",
        root=answer["root_provider_uuid"],
        generation=int(answer["generation"]),
    )


def _summaries(answer: Any) -> dict[str, provider_facts.ProviderFacts]:
    return {
        uuid: _summary(uuid, summary)
        for uuid, summary in answer["provider_summaries"].items()
    }


def _summary(uuid: str, summary: Any) -> provider_facts.ProviderFacts:
    """Return what one call for all tells; of an unused one all is told."""
    stock = {
        name: provider_facts.ClassCapacity(
            capacity=int(s["capacity"]), used=int(s["used"])
        )
        for name, s in summary["resources"].items()
    }
    return provider_facts.ProviderFacts(
        uuid=uuid,
        stock=stock,
        traits=provider_records.parse_traits(summary),
        parent=summary["parent_provider_uuid"] or "",
        root=summary["root_provider_uuid"],
        held=None if any(s.used for s in stock.values()) else (),
    )
