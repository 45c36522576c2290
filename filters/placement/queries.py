# SPDX-License-Identifier: Apache-2.0
"""Queries for the providers that may serve groups of a request."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records
from placement_sync.client.provider_records import Get

# Candidates of a sample: as many hosts at most, of 9 KB with eight cards.
_MAX_SAMPLED = 32


def has_candidate(get: Get, group: flavors.RequestGroup) -> bool:
    """Return whether any host has a candidate for this group alone."""
    query = {**provider_records.group_query(group), "limit": "1"}
    path = provider_records.build_path("/allocation_candidates", query)
    return provider_records.read(
        get, path, lambda body: bool(body["allocation_requests"])
    )


def fetch_summaries(
    get: Get, group: flavors.RequestGroup
) -> Mapping[str, Any]:
    """Return ``provider_summaries`` of every host where a group fits.

    One query for any number of hosts. Full providers are included if
    another provider of their tree has room.
    """
    query = provider_records.group_query(_require_owner(group))
    path = provider_records.build_path("/allocation_candidates", query)
    try:
        return provider_records.read(
            get, path, lambda body: dict(body["provider_summaries"])
        )
    except errors.ServiceError as error:
        if provider_records.unknown_names(error):
            return {}
        raise


def fetch_allocations(
    get: Get, provider: providers.Provider
) -> providers.Provider:
    """Return a provider with its allocations; as it was if it is gone.

    :raises ServiceError: Placement did not respond.
    """
    allocations = provider_records.fetch_allocations(get, provider.uuid)
    if allocations is None:
        return dataclasses.replace(provider, allocations=())
    return provider_records.with_allocations(provider, allocations[1])


def fetch_sample(
    get: Get, group: flavors.RequestGroup
) -> tuple[dict[str, providers.Provider], bool]:
    """Return providers of some hosts with accelerators, and whether of all.

    One query of less than 1 MB. Full providers are included; hosts without
    a MB of free memory are not: no server could start there.

    :param group: at least one provider of each host has its traits.
    """
    plain = dataclasses.replace(group, resources={})
    query = {
        "resources_HOST": "MEMORY_MB:1",
        **provider_records.group_query(_require_owner(plain)),
        "same_subtree": "_HOST,_ACCEL",
        "group_policy": "none",
        "limit": str(_MAX_SAMPLED),
    }
    return provider_records.read(
        get,
        provider_records.build_path("/allocation_candidates", query),
        lambda body: (
            provider_records.parse_summaries(body),
            len(body["allocation_requests"]) < _MAX_SAMPLED,
        ),
    )


def _require_owner(
    group: flavors.RequestGroup,
) -> flavors.RequestGroup:
    """Return a group that only this library's providers serve."""
    return dataclasses.replace(
        group, suffix="_ACCEL", required=group.required | {names.OWNER_TRAIT}
    )
