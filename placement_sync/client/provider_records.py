# SPDX-License-Identifier: Apache-2.0
"""Parsed responses of Placement, and paths of its API."""

import uuid as uuids
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import flavors, providers

T = TypeVar("T")
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


def provider_path(uuid: str, part: str = "") -> str:
    """Return the path of a provider, or of ``part`` below it.

    :raises MalformedError: ``uuid`` is not a UUID.
    """
    return "/".join(
        (f"/resource_providers/{check_uuid(uuid)}", *([part] if part else []))
    )


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
        str(uuid): _parse_summary(str(uuid), summary)
        for uuid, summary in body["provider_summaries"].items()
    }


def _parse_summary(uuid: str, summary: Any) -> providers.Provider:
    """Return a provider; its allocations only if nothing is allocated."""
    capacities = {
        str(name): providers.ClassCapacity(
            capacity=int(resource["capacity"]), used=int(resource["used"])
        )
        for name, resource in summary["resources"].items()
    }
    is_used = any(capacity.used for capacity in capacities.values())
    return providers.Provider(
        uuid=uuid,
        capacities=capacities,
        traits=parse_traits(summary),
        parent=str(summary["parent_provider_uuid"] or ""),
        root=str(summary["root_provider_uuid"]),
        allocations=None if is_used else (),
    )


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
    return _generation(body), inventories


def parse_capacities(
    body: Any,
) -> tuple[int, dict[str, providers.ClassCapacity]]:
    """Return a provider's generation, and capacities by class."""
    generation, inventories = parse_inventories(body)
    return generation, providers.build_capacities(inventories)


def parse_provider_traits(body: Any) -> tuple[int, frozenset[str]]:
    """Return a provider's generation and traits."""
    return _generation(body), parse_traits(body)


def parse_traits(body: Any) -> frozenset[str]:
    return frozenset(map(str, body["traits"]))


def parse_classes(body: Any) -> frozenset[str]:
    return frozenset(str(row["name"]) for row in body["resource_classes"])


def parse_allocations(
    body: Any,
) -> tuple[int, Mapping[str, Mapping[str, int]]]:
    """Return a provider's generation, and amounts by class by consumer."""
    return _generation(body), parse_amounts(body)


def parse_consumer(
    body: Any,
) -> tuple[Amounts, dict[str, object], str | None]:
    """Return a consumer's allocations, its other fields, and its type.

    The fields are those that a change of the allocations must send back.
    A consumer without allocations has no fields and no type.
    """
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


def _generation(body: Any) -> int:
    return int(body["resource_provider_generation"])
