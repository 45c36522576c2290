# SPDX-License-Identifier: Apache-2.0
"""Parsed answers of Placement, and their paths."""

import dataclasses
import uuid as uuids
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import providers

T = TypeVar("T")
# By provider and resource class.
Amounts = Mapping[str, Mapping[str, int]]

#: Raised by code that takes values out of a malformed answer.
MALFORMED = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,  # int() of an infinite number, float() of a huge one
    RecursionError,  # str() of deeply nested lists
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord:
    """What a provider had at a generation.

    A stale one is read again before anything is planned with it; its
    generation is that of what was planned with so far, so a write with it
    can't undo what others did.
    """

    generation: int
    inventories: Mapping[str, providers.Inventory] = dataclasses.field(
        default_factory=dict
    )
    traits: frozenset[str] = frozenset()
    host: str = ""
    is_stale: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedProvider:
    """A provider as Placement lists it; a root has no parent."""

    uuid: str
    name: str
    parent: str
    generation: int


def provider_path(uuid: str, part: str = "") -> str:
    """Return the path of a provider, or of a part of it.

    :raises MalformedError: this is not a uuid.
    """
    return "/".join(
        (f"/resource_providers/{checked(uuid)}", *([part] if part else []))
    )


def checked(uuid: str) -> str:
    """Return a uuid that may stand in a path.

    :raises MalformedError: this is not one.
    """
    try:
        return str(uuids.UUID(uuid))
    except ValueError:
        raise errors.MalformedError(
            "resource provider's uuid", uuid, "a uuid"
        ) from None


def quoted(name: str) -> str:
    """Return a name as a path or a query has it."""
    return parse.quote(name, safe="")


def parsed(
    method: str, path: str, body: Any, parse_body: Callable[[Any], T]
) -> T:
    """Return an answer as a value.

    :raises ServiceError: it is not as the service's API says.
    """
    try:
        return parse_body(body)
    except MALFORMED as error:
        raise errors.ServiceError(
            method,
            path,
            None,
            f"the answer is malformed: {type(error).__name__} {error};"
            " check which service answers at this address",
            is_lasting=True,
        ) from error


def parse_provider(body: Any) -> ListedProvider | None:
    """Return one provider, None where there is none."""
    if body is None:
        return None
    return ListedProvider(
        uuid=str(body["uuid"]),
        name=str(body["name"]),
        parent=str(body.get("parent_provider_uuid") or ""),
        generation=int(body["generation"]),
    )


def parse_list(body: Any) -> list[ListedProvider]:
    """Return the providers of a list."""
    found = (parse_provider(each) for each in body["resource_providers"])
    return [each for each in found if each]


def parse_inventories(
    body: Any,
) -> tuple[int, Mapping[str, providers.Inventory]] | None:
    """Return a provider's generation and inventories by class."""
    if body is None:
        return None
    found = {
        str(name): providers.Inventory(
            total=int(each["total"]),
            reserved=int(each["reserved"]),
            min_unit=int(each["min_unit"]),
            max_unit=int(each["max_unit"]),
            step_size=int(each["step_size"]),
            allocation_ratio=float(each["allocation_ratio"]),
        )
        for name, each in body["inventories"].items()
    }
    return _generation(body), found


def parse_provider_traits(body: Any) -> tuple[int, frozenset[str]] | None:
    """Return a provider's generation and traits."""
    if body is None:
        return None
    return _generation(body), parse_traits(body)


def parse_traits(body: Any) -> frozenset[str]:
    """Return the traits of a list."""
    return frozenset(map(str, body["traits"]))


def parse_classes(body: Any) -> frozenset[str]:
    """Return the names of resource classes."""
    return frozenset(str(each["name"]) for each in body["resource_classes"])


def parse_allocations(
    body: Any,
) -> tuple[int, Mapping[str, Mapping[str, int]]] | None:
    """Return a provider's generation, and amounts by class by consumer."""
    if body is None:
        return None
    found = {
        str(consumer): {str(k): int(v) for k, v in each["resources"].items()}
        for consumer, each in body["allocations"].items()
    }
    return _generation(body), found


def parse_consumer(
    body: Any,
) -> tuple[Amounts, dict[str, object], str | None]:
    """Return a consumer's allocations, its other fields, and its type.

    The fields are those to send back with a change of the allocations;
    there are none for a consumer that has no allocations.
    """
    allocations = {
        str(uuid): {str(k): int(v) for k, v in each["resources"].items()}
        for uuid, each in (body or {"allocations": {}})["allocations"].items()
    }
    fields = ("project_id", "user_id", "consumer_generation")
    known = {name: body[name] for name in fields} if allocations else {}
    kind = body.get("consumer_type") if allocations else None
    return allocations, known, kind


def _generation(body: Any) -> int:
    return int(body["resource_provider_generation"])
