# SPDX-License-Identifier: Apache-2.0
"""The reader of Placement: one function for each query, and the parsers.

A query takes a ``Get``, so that it is the same through openstacksdk
(``rest.RestClient.fetch``) and through Nova's own client
(``nova_client.NovaClient.fetch``). It returns values of
``nova_accel.model.providers``, None for an object that does not exist, and
raises ServiceError without a valid response.
"""

import collections
import dataclasses
import functools
import re
import uuid as uuids
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import flavors, providers

T = TypeVar("T")
#: Takes a path with its query; returns the decoded body of the response,
#: None for an object that does not exist. Raises ServiceError.
Get = Callable[[str], Any]
# Amounts by provider uuid and resource class.
Amounts = Mapping[str, Mapping[str, int]]

#: Errors that a parser raises for a malformed response.
MALFORMED = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,  # int() of an infinite number, float() of a huge one
    RecursionError,  # str() of deeply nested lists
)
_PROVIDERS = "/resource_providers"
# Shapes, sets of traits, and sets of capacities that are stored for other
# providers: 4 KB each of cards with 17 traits.
_MAX_SHARED = 8192
_BAD_REQUEST = 400
# placement/errors.py, DEFAULT: the code of an error without its own code.
_UNDEFINED_CODE = "placement.undefined_code"
# Text of TraitNotFound and ResourceClassNotFound (placement/exception.py).
# Placement 16 raises both as HTTP 400 with the undefined code, so the text
# is the only place that names the trait or class.
_UNKNOWN_NAME = re.compile(
    r"No such (?:trait\(s\):|resource class) ([\w, ]*\w)"
)


# -- queries ----------------------------------------------------------------


def read(get: Get, path: str, parse_body: Callable[[Any], T]) -> T:
    """Return a parsed response.

    :param parse_body: takes the body, None for an absent object.
    :raises ServiceError: no response, or a malformed one.
    """
    return parse_answer("GET", path, get(path), parse_body)


def find(get: Get, path: str, parse_body: Callable[[Any], T]) -> T | None:
    """Return a parsed response, None if the object does not exist.

    :raises ServiceError: as ``read``.
    """
    body = get(path)
    return (
        None if body is None else parse_answer("GET", path, body, parse_body)
    )


def unknown_names(error: errors.ServiceError) -> str:
    """Return the traits or classes that Placement has never stored.

    Comma-separated; empty if the error has another cause.
    """
    codes = ("", _UNDEFINED_CODE)
    if error.status != _BAD_REQUEST or error.code not in codes:
        return ""
    match = _UNKNOWN_NAME.search(error.reason)
    return match[1] if match else ""


def list_providers(
    get: Get, query: Mapping[str, str]
) -> list[providers.Provider]:
    """Return the identities of the providers that a query selects.

    None if the query names a trait or class that Placement never stored.
    """
    try:
        return read(get, build_path(_PROVIDERS, query), parse_list)
    except errors.ServiceError as error:
        if unknown_names(error):
            return []
        raise


def list_with_trait(
    get: Get, trait: str, tree: str = ""
) -> list[providers.Provider]:
    """Return the providers that have a trait.

    :param tree: uuid of any provider of the only tree to list.
    """
    query = {"in_tree": tree} if tree else {}
    return list_providers(get, {**query, "required": trait})


def fetch_summaries(
    get: Get, query: Mapping[str, str]
) -> dict[str, providers.Provider]:
    """Return all providers of each host with an allocation candidate.

    One request for any number of hosts. Without names, generations and
    reserved units; with allocations only if nothing is allocated.
    """
    return read(
        get, build_path("/allocation_candidates", query), parse_summaries
    )


def fetch_identity(get: Get, uuid: str) -> providers.Provider | None:
    """Return a provider's name, parent, root and generation."""
    return find(
        get, f"{_PROVIDERS}/{parse.quote(uuid, safe='')}", parse_provider
    )


def fetch_provider(
    get: Get, identity: providers.Provider
) -> providers.Provider | None:
    """Return a provider with inventories and traits, by two requests.

    Another client may write the provider between them: the result has the
    older generation, so that a write with it is a conflict.

    :param identity: the provider with its name, parent and root.
    """
    stored = fetch_inventories(get, identity.uuid)
    traits = fetch_traits(get, identity.uuid)
    if stored is None or traits is None:
        return None
    return dataclasses.replace(
        identity,
        generation=min(stored[0], traits[0]),
        inventories=stored[1],
        traits=traits[1],
        read_at=None,
    )


def fetch_used_provider(
    get: Get, identity: providers.Provider
) -> providers.Provider | None:
    """Return a provider with capacities and allocations, too, to print it.

    Three requests; see ``fetch_provider``.
    """
    provider = fetch_provider(get, identity)
    allocations = fetch_allocations(get, identity.uuid)
    if provider is None or allocations is None:
        return None
    capacities = providers.build_capacities(provider.inventories)
    return with_allocations(
        dataclasses.replace(provider, capacities=capacities), allocations[1]
    )


def fetch_inventories(
    get: Get, uuid: str
) -> tuple[int, Mapping[str, providers.Inventory]] | None:
    """Return a provider's generation, and its inventories by class."""
    path = f"{_PROVIDERS}/{parse.quote(uuid, safe='')}/inventories"
    return find(get, path, parse_inventories)


def fetch_traits(get: Get, uuid: str) -> tuple[int, frozenset[str]] | None:
    """Return a provider's generation and traits."""
    path = f"{_PROVIDERS}/{parse.quote(uuid, safe='')}/traits"
    return find(get, path, parse_provider_traits)


def fetch_allocations(get: Get, uuid: str) -> tuple[int, Amounts] | None:
    """Return a provider's generation, and amounts by class by consumer."""
    path = f"{_PROVIDERS}/{parse.quote(uuid, safe='')}/allocations"
    return find(get, path, _parse_allocations)


def list_allocations(get: Get, uuid: str) -> list[providers.Allocation]:
    """Return a provider's allocations by consumer; none if it is gone."""
    _, by_consumer = fetch_allocations(get, uuid) or (0, {})
    return [
        providers.Allocation(provider=uuid, consumer=consumer, amounts=amounts)
        for consumer, amounts in sorted(by_consumer.items())
    ]


def fetch_consumer(
    get: Get, uuid: str
) -> tuple[Amounts, dict[str, object], str | None]:
    """Return a consumer's allocations, its other fields, and its type.

    The amounts are by provider and class. The fields are those that a
    change of the allocations must send back. A consumer without allocations
    has no fields and no type.
    """
    return read(
        get, f"/allocations/{parse.quote(uuid, safe='')}", _parse_consumer
    )


def with_allocations(
    provider: providers.Provider, allocations: Amounts
) -> providers.Provider:
    """Return a provider with allocations and the used units.

    :param allocations: units by class, by consumer.
    """
    used: collections.Counter[str] = collections.Counter()
    for units in allocations.values():
        used.update(units)
    return dataclasses.replace(
        provider.with_used(used), allocations=tuple(allocations.values())
    )


# -- paths ------------------------------------------------------------------


def provider_path(uuid: str, part: str = "") -> str:
    """Return the path of a provider to write, or of ``part`` below it.

    :raises MalformedError: ``uuid`` is not a UUID.
    """
    path = f"{_PROVIDERS}/{check_uuid(uuid)}"
    return f"{path}/{part}" if part else path


def group_query(group: flavors.RequestGroup) -> dict[str, str]:
    """Return a group's ``resources`` and ``required`` with its suffix."""
    traits = sorted(group.required) + sorted(f"!{t}" for t in group.forbidden)
    query = {
        f"resources{group.suffix}": ",".join(
            f"{name}:{n}" for name, n in sorted(group.resources.items()) if n
        ),
        f"required{group.suffix}": ",".join(traits),
    }
    return {name: value for name, value in query.items() if value}


def build_path(path: str, query: Mapping[str, str]) -> str:
    """Return a path with a query string, quoted as Placement expects."""
    return f"{path}?{parse.urlencode(query, safe=',:!')}"


def check_uuid(uuid: str) -> str:
    """Return a UUID in its canonical form, for a path.

    :raises MalformedError: it is not a UUID.
    """
    try:
        return str(uuids.UUID(uuid))
    except ValueError:
        raise errors.MalformedError(
            "resource provider's uuid", uuid, "a uuid"
        ) from None


def quote_name(name: str) -> str:
    """Return a name percent-encoded for a path or a query."""
    return parse.quote(name, safe="")


# -- parsers ----------------------------------------------------------------


def parse_answer(
    method: str, path: str, body: Any, parse_body: Callable[[Any], T]
) -> T:
    """Return the parsed body of a response.

    :param method: of the request, for the error, as ``path`` is.
    :raises ServiceError: the body is malformed.
    """
    try:
        return parse_body(body)
    except MALFORMED as error:
        raise errors.ServiceError(
            method,
            path,
            None,
            f"the response is malformed: {type(error).__name__} {error};"
            " check which service runs at this address",
            is_lasting=True,
        ) from error


def parse_provider(body: Any) -> providers.Provider:
    """Return a provider's identity."""
    return providers.Provider(
        uuid=str(body["uuid"]),
        name=str(body["name"]),
        parent=str(body["parent_provider_uuid"] or ""),
        root=str(body["root_provider_uuid"]),
        generation=int(body["generation"]),
    )


def parse_list(body: Any) -> list[providers.Provider]:
    return [parse_provider(row) for row in body["resource_providers"]]


def parse_summaries(body: Any) -> dict[str, providers.Provider]:
    """Return the providers of allocation candidates, by uuid.

    Names, generations and reserved units are not in the response.
    """
    return {
        str(uuid): parse_summary(str(uuid), summary)
        for uuid, summary in body["provider_summaries"].items()
    }


def parse_summary(uuid: str, summary: Any) -> providers.Provider:
    """Return a provider; its allocations only if nothing is allocated."""
    shape = parse_shape(summary)
    return providers.Provider(
        uuid=uuid,
        capacities=shape.capacities,
        traits=shape.traits,
        parent=summary["parent_provider_uuid"] or "",
        root=summary["root_provider_uuid"],
        allocations=shape.allocations,
    )


def parse_shape(summary: Any) -> providers.Provider:
    """Return traits, capacities and allocations of a provider.

    A cloud has few different ones: equal ones are one object, as equal sets
    of traits and of capacities are.
    """
    return _share_shape(
        tuple(summary["traits"]),
        tuple(
            [
                (name, units["capacity"], units["used"])
                for name, units in summary["resources"].items()
            ]
        ),
    )


@functools.lru_cache(maxsize=_MAX_SHARED)
def _share_shape(
    traits: tuple[str, ...], amounts: tuple[tuple[str, int, int], ...]
) -> providers.Provider:
    capacities, is_used = _share_capacities(amounts)
    return providers.Provider(
        capacities=capacities,
        traits=_share_traits(traits),
        uuid="",
        allocations=None if is_used else (),
    )


@functools.lru_cache(maxsize=_MAX_SHARED)
def _share_traits(traits: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(str, traits))


@functools.lru_cache(maxsize=_MAX_SHARED)
def _share_capacities(
    amounts: tuple[tuple[str, int, int], ...],
) -> tuple[Mapping[str, providers.ClassCapacity], bool]:
    """Return capacities by class, and whether a unit is allocated."""
    capacities = {
        str(name): providers.ClassCapacity(
            capacity=int(capacity), used=int(used)
        )
        for name, capacity, used in amounts
    }
    return capacities, any(each.used for each in capacities.values())


def parse_inventories(
    body: Any,
) -> tuple[int, Mapping[str, providers.Inventory]]:
    """Return a provider's generation and inventories by class."""
    inventories = {
        str(name): providers.Inventory(
            total=int(fields["total"]),
            reserved=int(fields["reserved"]),
            min_unit=int(fields["min_unit"]),
            max_unit=int(fields["max_unit"]),
            step_size=int(fields["step_size"]),
            allocation_ratio=float(fields["allocation_ratio"]),
        )
        for name, fields in body["inventories"].items()
    }
    return int(body["resource_provider_generation"]), inventories


def parse_provider_traits(body: Any) -> tuple[int, frozenset[str]]:
    """Return a provider's generation and traits."""
    return int(body["resource_provider_generation"]), parse_traits(body)


def parse_traits(body: Any) -> frozenset[str]:
    return frozenset(map(str, body["traits"]))


def parse_classes(body: Any) -> frozenset[str]:
    return frozenset(str(row["name"]) for row in body["resource_classes"])


def _parse_allocations(body: Any) -> tuple[int, Amounts]:
    return int(body["resource_provider_generation"]), parse_amounts(body)


def _parse_consumer(
    body: Any,
) -> tuple[Amounts, dict[str, object], str | None]:
    allocations = parse_amounts(body or {"allocations": {}})
    keys = ("project_id", "user_id", "consumer_generation")
    fields = {key: body[key] for key in keys} if allocations else {}
    consumer_type = body.get("consumer_type") if allocations else None
    return allocations, fields, consumer_type


def parse_amounts(body: Any) -> dict[str, dict[str, int]]:
    """Return units by class, by the uuid of the consumer or provider."""
    return {
        str(uuid): {str(k): int(v) for k, v in row["resources"].items()}
        for uuid, row in body["allocations"].items()
    }
