# SPDX-License-Identifier: Apache-2.0
"""Queries for the providers that may serve groups of a request."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nova_accel import errors
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records
from placement_sync.client.provider_records import Get

T = TypeVar("T")
Problems = list[errors.ServiceError]


def fetch_each(
    keys: Iterable[str], fetch: Callable[[str], T | None], problems: Problems
) -> Iterator[tuple[str, T]]:
    """Yield each key with its fetched value.

    A key for which Placement returns an error status is skipped, as one
    that does not exist is. Any other error (no response, a malformed one)
    ends the iteration.

    :param problems: the list that errors are appended to.
    """
    for key in keys:
        try:
            value = fetch(key)
        except errors.ServiceError as error:
            problems.append(error)
            if error.status is None:
                return
        else:
            if value is not None:
                yield key, value


def has_candidate(get: Get, group: flavors.RequestGroup) -> bool:
    """Return whether any host has a candidate for this group alone."""
    query = {**provider_records.group_query(group), "limit": "1"}
    path = provider_records.build_path("/allocation_candidates", query)
    return provider_records.read(
        get, path, lambda body: bool(body["allocation_requests"])
    )


def fetch_summaries(
    get: Get, group: flavors.RequestGroup, tree: str = ""
) -> dict[str, providers.Provider]:
    """Return the providers of every host where a group fits, by uuid.

    One query for any number of hosts. Full providers are included if
    another provider of their tree has room. Generations and names are not.

    :param tree: uuid of any provider of the only tree to query.
    """
    query = provider_records.group_query(_require_owner(group, "_ACCEL"))
    if tree:
        query["in_tree_ACCEL"] = tree
    try:
        return provider_records.fetch_summaries(get, query)
    except errors.ServiceError as error:
        if provider_records.unknown_names(error):
            return {}
        raise


def fetch_all_summaries(get: Get) -> dict[str, providers.Provider]:
    """Return all providers of every host with an accelerator, by uuid.

    One query. Hosts without a MB of free memory are not included: no
    server could start there.
    """
    return provider_records.fetch_summaries(
        get,
        {
            "resources_HOST": "MEMORY_MB:1",
            "required_ACCEL": names.OWNER_TRAIT,
            "same_subtree": "_HOST,_ACCEL",
            "group_policy": "none",
        },
    )


def fetch_listing(
    get: Get, groups: Sequence[flavors.RequestGroup], tree: str = ""
) -> dict[str, providers.Provider]:
    """Return the accelerators that may serve any of the groups, by uuid.

    One query. Name, parent, root and generation are set; capacities and
    traits are not. Providers without the resources and traits common to all
    groups are not included; a full provider, for example.

    :param tree: uuid of any provider of the only tree to list.
    """
    common = functools.reduce(_intersect, map(_per_provider, groups))
    query = provider_records.group_query(_require_owner(common, ""))
    if tree:
        query["in_tree"] = tree
    listed = provider_records.list_providers(get, query)
    return {provider.uuid: provider for provider in listed}


def _require_owner(
    group: flavors.RequestGroup, suffix: str
) -> flavors.RequestGroup:
    """Return a group that only this library's providers serve."""
    return dataclasses.replace(
        group, suffix=suffix, required=group.required | {names.OWNER_TRAIT}
    )


def _per_provider(group: flavors.RequestGroup) -> flavors.RequestGroup:
    """Return the part of a group that one provider must serve alone.

    Without a suffix each class may come from another provider.
    """
    if group.suffix or len(group.resources) == 1:
        return group
    return dataclasses.replace(group, resources={})


def _intersect(
    first: flavors.RequestGroup, second: flavors.RequestGroup
) -> flavors.RequestGroup:
    """Return the group that every provider for either of two serves."""
    return flavors.RequestGroup(
        suffix="",
        resources={
            name: min(amount, second.resources[name])
            for name, amount in first.resources.items()
            if name in second.resources
        },
        required=first.required & second.required,
        forbidden=first.forbidden & second.forbidden,
    )
