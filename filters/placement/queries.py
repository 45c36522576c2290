# SPDX-License-Identifier: Apache-2.0
"""Paths, parameters and errors of queries to Placement."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib import parse

from nova_accel import errors
from nova_accel.model import flavors
from placement_sync.client import provider_records

# The microversion of Nova's own queries in releases 32 to 34
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
    r"HTTP 400: .*No such (?:trait\(s\):|resource class) ([\w, ]*\w)", re.S
)


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
        match = _UNKNOWN_NAME.search(self.reason)
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


def candidates_path(group: flavors.RequestGroup, **params: str) -> str:
    """Return the path of the allocation candidates of one group alone."""
    return build_path("/allocation_candidates", group_query(group) | params)


def provider_path(uuid: str) -> str:
    """Return the path of a provider."""
    return f"/resource_providers/{parse.quote(uuid, safe='')}"


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


def read(get: Get, path: str, parse_body: Callable[[Any], T]) -> T:
    """Return a parsed response.

    :raises QueryError: no response, or a malformed one.
    """
    body = get(path)
    try:
        return parse_body(body)
    except provider_records.MALFORMED as error:
        raise QueryError(
            path, f"not the answer its API promises ({error!r})"
        ) from error


def read_or_empty(
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
