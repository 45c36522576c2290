# SPDX-License-Identifier: Apache-2.0
"""Queries to Placement, with their responses as values.

One function per query; each raises QueryError if Placement does not
respond or responds with a malformed body.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records

# The microversion of Nova's own queries in releases 31 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). From 1.29 the
# summaries include every provider of a tree, full ones too; 1.36 allows
# groups without resources.
MICROVERSION = "1.36"

# Takes a path with query, returns the decoded body, raises QueryError.
Get = Callable[[str], Any]
T = TypeVar("T")

_BAD_REQUEST = 400
# placement/errors.py, DEFAULT: the code of an error without its own code.
_UNDEFINED_CODE = "placement.undefined_code"
# Text of TraitNotFound and ResourceClassNotFound (placement/exception.py).
# Placement 16 raises both as HTTP 400 with the undefined code, so the text
# is the only place that names the trait or class.
_UNKNOWN_NAME = re.compile(
    r"No such (?:trait\(s\):|resource class) ([\w, ]*\w)"
)
# Units by class of each consumer of a provider.
Allocations = tuple[Mapping[str, int], ...]


class QueryError(errors.AcceleratorError):
    """Placement did not respond, or not as its API specifies.

    :param path: the path of the GET request.
    :param reason: the response, or the client's error.
    :param status: the HTTP status, None without a response.
    :param code: Placement's error code (microversion 1.23), empty without.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        status: int | None = None,
        code: str = "",
    ) -> None:
        super().__init__(
            f"GET {path} of Placement: {reason}; scheduling goes on without"
            " it; see Placement's log and [placement] in nova.conf"
        )
        self.path = path
        self.reason = reason
        self.status = status
        self.code = code

    @property
    def unknown_names(self) -> str:
        """Return the traits or classes that Placement has never stored.

        Comma-separated; empty if the error has another cause.
        """
        if self.status != _BAD_REQUEST or self.code not in (
            "",
            _UNDEFINED_CODE,
        ):
            return ""
        text = self.reason.partition("HTTP 400: ")[2]
        match = _UNKNOWN_NAME.search(text)
        return match[1] if match else ""


Problems = list[QueryError]


def fetch_each(
    keys: Iterable[str], fetch: Callable[[str], T], problems: Problems
) -> Iterator[tuple[str, T]]:
    """Yield each key with its fetched value.

    A key for which Placement returns an error status is skipped. Any other
    error (no response, a malformed one) ends the iteration.

    :param problems: the list that errors are appended to.
    """
    for key in keys:
        try:
            value = fetch(key)
        except QueryError as error:
            problems.append(error)
            if error.status is None:
                return
        else:
            yield key, value


def _candidates_path(group: flavors.RequestGroup, **params: str) -> str:
    """Return the path of the allocation candidates of one group alone."""
    return provider_records.build_path(
        "/allocation_candidates", provider_records.group_query(group) | params
    )


def _provider_path(uuid: str) -> str:
    """Return the path of a provider."""
    return f"/resource_providers/{parse.quote(uuid, safe='')}"


def read(get: Get, path: str, parse_body: Callable[[Any], T]) -> T:
    """Return a parsed response.

    :raises QueryError: no response, or a malformed one.
    """
    body = get(path)
    try:
        return parse_body(body)
    except provider_records.MALFORMED as error:
        raise QueryError(
            path, f"the response is malformed ({error!r})"
        ) from error


def _read_or_empty(
    get: Get, path: str, parse_body: Callable[[Any], dict[str, T]]
) -> dict[str, T]:
    """Return a parsed response, empty if Placement has not stored a name.

    :raises QueryError: no response, or a malformed one.
    """
    try:
        return read(get, path, parse_body)
    except QueryError as error:
        if error.unknown_names:
            return {}
        raise


def has_candidate(get: Get, group: flavors.RequestGroup) -> bool:
    """Return whether any host has a candidate for this group alone."""
    path = _candidates_path(group, limit="1")
    return read(get, path, lambda body: bool(body["allocation_requests"]))


def fetch_summaries(
    get: Get, group: flavors.RequestGroup, tree: str = ""
) -> dict[str, providers.Provider]:
    """Return the providers of every host where a group fits, by uuid.

    One query for any number of hosts. Full providers are included if
    another provider of their tree has room. Generations and names are not.

    :param tree: uuid of any provider of the only tree to query.
    """
    path = _candidates_path(
        _require_owner(group, "_ACCEL"),
        **({"in_tree_ACCEL": tree} if tree else {}),
    )
    return _read_or_empty(get, path, provider_records.parse_summaries)


def fetch_all_summaries(
    get: Get,
) -> dict[str, providers.Provider]:
    """Return all providers of every host with an accelerator, by uuid.

    One query. Hosts without a MB of free memory are not included: no
    server could start there.
    """
    path = provider_records.build_path(
        "/allocation_candidates",
        {
            "resources_HOST": "MEMORY_MB:1",
            "required_ACCEL": names.OWNER_TRAIT,
            "same_subtree": "_HOST,_ACCEL",
            "group_policy": "none",
        },
    )
    return read(get, path, provider_records.parse_summaries)


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
    return _read_or_empty(
        get,
        provider_records.build_path("/resource_providers", query),
        lambda body: {p.uuid: p for p in provider_records.parse_list(body)},
    )


def fetch_names(get: Get) -> dict[str, str]:
    """Return the names of all accelerators' providers, by uuid."""
    path = provider_records.build_path(
        "/resource_providers", {"required": names.OWNER_TRAIT}
    )
    return read(
        get,
        path,
        lambda body: {
            p.uuid: p.name for p in provider_records.parse_list(body)
        },
    )


def fetch_server_allocations(
    get: Get, server: str
) -> dict[str, dict[str, int]]:
    """Return a server's allocations: units by class, by provider uuid."""
    path = f"/allocations/{parse.quote(server, safe='')}"
    return read(get, path, provider_records.parse_amounts)


def fetch_identity(get: Get, uuid: str) -> providers.Provider:
    """Return a provider's name, parent, root and generation."""
    return read(get, _provider_path(uuid), provider_records.parse_provider)


def fetch_provider(
    get: Get, identity: providers.Provider
) -> providers.Provider:
    """Return a provider with capacities, traits and allocations.

    Three queries. The result is exact unless the generation changed between
    the first and the last one; it then is at least as new as its
    generation.

    :param identity: the provider with its name, parent and root.
    """
    path = _provider_path(identity.uuid)
    generation, capacities = read(
        get, f"{path}/inventories", provider_records.parse_capacities
    )
    traits = read(get, f"{path}/traits", provider_records.parse_traits)
    allocations, generation_after = fetch_allocations(get, identity.uuid)
    facts = dataclasses.replace(
        identity,
        capacities=capacities,
        traits=traits,
        generation=generation,
        is_exact=generation == generation_after,
        read_at=None,
    )
    return with_allocations(facts, allocations)


def fetch_allocations(get: Get, uuid: str) -> tuple[Allocations, int]:
    """Return a provider's allocations by consumer, and its generation."""
    generation, by_consumer = read(
        get,
        f"{_provider_path(uuid)}/allocations",
        provider_records.parse_allocations,
    )
    return tuple(by_consumer.values()), generation


def with_allocations(
    facts: providers.Provider, allocations: Allocations
) -> providers.Provider:
    """Return a provider's facts with allocations and the used units."""
    used: collections.Counter[str] = collections.Counter()
    for units in allocations:
        used.update(units)
    return dataclasses.replace(facts.with_used(used), allocations=allocations)


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
