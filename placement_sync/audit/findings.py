# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit, and sources that could not be read."""

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TypeVar

_One = TypeVar("_One")


class FindingKind(enum.Enum):
    """What can be wrong; the values are those of the JSON report."""

    LEAKED = "leaked-allocation"
    UNALLOCATED = "missing-allocation"
    MISSING = "missing-device"
    FOREIGN = "foreign-device"
    ORPHAN = "orphan-mdev"
    TYPED = "typed-function"
    GONE = "gone-host"
    DUPLICATE = "duplicate"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Something that two sources contradict each other about.

    ``where`` is the device or the provider for people, ``provider`` the
    uuid for programs; ``consumer`` the uuid of whoever it is about, and
    ``handle`` the mdev or function, each empty where there is none.
    ``mend`` is what to do by hand. ``is_safe`` tells that it is proved
    that nobody uses it, so that it can be mended without asking.
    """

    kind: FindingKind
    where: str
    reason: str
    mend: str
    provider: str = ""
    consumer: str = ""
    handle: str = ""
    is_safe: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Return what tells it from others, whatever the words are."""
        return (
            self.kind.value,
            self.where,
            self.provider,
            self.consumer,
            self.handle,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A comparison that could not be made, or not of everything."""

    check: str
    source: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The findings of one look, and what it could not look at."""

    findings: tuple[AuditFinding, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def finding(self, key: tuple[str, ...]) -> AuditFinding | None:
        """Return the finding of that key, or None."""
        return next((f for f in self.findings if f.key == key), None)

    def both(self, earlier: "AuditReport") -> "AuditReport":
        """Return this report without what an earlier one did not have.

        What is told by one look only was on its way.
        """
        known = {finding.key for finding in earlier.findings}
        return dataclasses.replace(
            self,
            findings=tuple(f for f in self.findings if f.key in known),
        )


def grouped(
    ones: Iterable[_One], key: Callable[[_One], str]
) -> list[tuple[str, list[_One]]]:
    """Return those that share a key with others, by it."""
    found: dict[str, list[_One]] = collections.defaultdict(list)
    for one in ones:
        found[key(one)].append(one)
    return [(k, group) for k, group in sorted(found.items()) if len(group) > 1]
