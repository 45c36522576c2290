# SPDX-License-Identifier: Apache-2.0
"""Results of the reads of kernel files, by path."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from nova_accel import errors

T = TypeVar("T")

_NOTHING = re.compile(r"(?!)")


@dataclasses.dataclass(slots=True)
class FileCache:
    """Results of reads by path; an errno where the read failed.

    ``modes`` are octal. ``late`` has the places that gave no answer in
    time, with the path that hangs.
    """

    links: dict[str, str | int | None] = dataclasses.field(
        default_factory=dict
    )
    names: dict[str, tuple[str, ...] | int] = dataclasses.field(
        default_factory=dict
    )
    texts: dict[str, str | int] = dataclasses.field(default_factory=dict)
    heads: dict[str, bytes | int] = dataclasses.field(default_factory=dict)
    modes: dict[str, str | int] = dataclasses.field(default_factory=dict)
    resolved: dict[str, str | int] = dataclasses.field(default_factory=dict)
    late: dict[str, str] = dataclasses.field(default_factory=dict)

    def copy(self) -> "FileCache":
        """Return a cache with the same results."""
        results = (getattr(self, field) for field in self.__slots__)
        return FileCache(*map(dict, results))


class Paths:
    """A set of paths; one that ends with a slash has all below it.

    :param excluded: matches the ends of paths that are not in the set.
    """

    def __init__(
        self, paths: Iterable[str], excluded: re.Pattern[str] = _NOTHING
    ) -> None:
        self._exact = frozenset(paths)
        self._below = tuple(path for path in self._exact if path[-1:] == "/")
        self._excluded = excluded

    def select(self, results: dict[str, T]) -> dict[str, T]:
        """Return the results whose path is among these."""
        return {
            path: result
            for path, result in results.items()
            if (path in self._exact or path.startswith(self._below))
            and not self._excluded.search(path)
        }


ALL = Paths(("/",))


def read_once(
    results: dict[str, T | int], place: str, read: Callable[[str], T | int]
) -> T:
    """Return the result of a read, which is made once.

    :raises UnreadableError: the read failed.
    """
    if place not in results:
        results[place] = read(place)
    result = results[place]
    if isinstance(result, int):
        raise errors.UnreadableError(place, result)
    return result


def read_again(
    results: dict[str, T], paths: Paths, read: Callable[[str], T]
) -> bool:
    """Read some results again; return whether one has changed."""
    before = paths.select(results)
    after = {place: read(place) for place in before}
    results |= after
    return after != before
