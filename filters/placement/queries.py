# SPDX-License-Identifier: Apache-2.0
"""Paths, queries and errors of requests to Placement."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import flavors
from placement_sync.client import provider_records

# The version Nova itself asks with in releases 32 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). From 1.29 the
# summaries hold every provider of a tree, full ones too; 1.36 allows
# groups without resources.
MICROVERSION = "1.36"

# Takes a path with query, returns the decoded answer, raises FactsError.
Get = Callable[[str], Any]
T = TypeVar("T")


class QueryError(errors.AcceleratorError):
    """Placement did not answer, or not as its API says.

    :param path: what was asked.
    :param reason: what came instead.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"GET {path} of Placement: {reason}; scheduling goes on without"
            " it; see Placement's log and [placement] in nova.conf"
        )
        self.path = path
        self.reason = reason

    @property
    def is_answer(self) -> bool:
        """Return whether Placement did say something: what to ask next."""
        return self.reason.startswith("HTTP ")


Problems = list[QueryError]


def each(
    keys: Iterable[str], fetch: Callable[[str], T], problems: Problems
) -> Iterator[tuple[str, T]]:
    """Yield what is fetched for each key, until Placement is silent.

    :param problems: takes the errors.
    """
    for key in keys:
        try:
            found = fetch(key)
        except QueryError as error:
            problems.append(error)
            if not error.is_answer:
                return
        else:
            yield key, found


# Placement's HTTP 400 for a name that nobody ever reported; it refuses
# Nova's own query with the same words (placement/exception.py,
# TraitNotFound and ResourceClassNotFound).
UNHEARD_OF = re.compile(
    r"HTTP 400: .*No such (?:trait\(s\):|resource class) ([\w, ]*\w)", re.S
)


def candidates_path(group: flavors.RequestGroup, **params: str) -> str:
    """Return the query for one group alone, as Nova would ask for it."""
    return with_query("/allocation_candidates", group_query(group) | params)


def provider_path(uuid: str) -> str:
    """Return where a provider is asked for."""
    return f"/resource_providers/{parse.quote(uuid, safe='')}"


def group_query(group: flavors.RequestGroup) -> dict[str, str]:
    """Return what a group asks for, as parameters with its suffix."""
    traits = sorted(group.required) + sorted(f"!{t}" for t in group.forbidden)
    query = {
        f"resources{group.suffix}": ",".join(
            f"{name}:{n}" for name, n in sorted(group.resources.items()) if n
        ),
        f"required{group.suffix}": ",".join(traits),
    }
    return {name: value for name, value in query.items() if value}


def with_query(path: str, query: Mapping[str, str]) -> str:
    """Return a path with its parameters, as Placement writes them."""
    return f"{path}?{parse.urlencode(query, safe=',:!')}"


def read(get: Get, path: str, take: Callable[[Any], T]) -> T:
    """Return what is taken from an answer.

    :raises FactsError: there was none, or of another form.
    """
    answer = get(path)
    try:
        return take(answer)
    except provider_records.MALFORMED as error:
        raise QueryError(
            path, f"not the answer its API promises ({error!r})"
        ) from error


def read_known(
    get: Get, path: str, take: Callable[[Any], dict[str, T]]
) -> dict[str, T]:
    """Read; nothing where a name was never reported to this cloud.

    :raises FactsError: there was no answer, or of another form.
    """
    try:
        return read(get, path, take)
    except QueryError as error:
        if UNHEARD_OF.search(error.reason):
            return {}
        raise
