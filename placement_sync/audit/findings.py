# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit, and sources that could not be read."""

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


class FindingKind(enum.Enum):
    """Kind of a finding; the values are those of the JSON report."""

    LEAKED = "leaked-allocation"
    UNALLOCATED = "missing-allocation"
    UNREVERTED = "unreverted-move"
    MISSING = "missing-device"
    FOREIGN = "foreign-device"
    ORPHAN = "orphan-mdev"
    TYPED = "typed-function"
    GONE = "gone-host"
    DUPLICATE = "duplicate"
    UNSERVED = "unserved-provider"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """A contradiction between two sources.

    ``where`` names the device or the provider for people, ``provider`` is
    the provider's uuid. ``consumer`` is the uuid of the server or consumer,
    ``handle`` the mdev or function; each is empty if there is none.
    ``remedy`` is the repair by hand.
    ``is_safe`` is true if it is proved that the object is unused, so that
    ``--heal`` may repair it.
    """

    kind: FindingKind
    where: str
    reason: str
    remedy: str
    provider: str = ""
    consumer: str = ""
    handle: str = ""
    is_safe: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Return the identity of the finding, without its texts."""
        return (
            self.kind.value,
            self.where,
            self.provider,
            self.consumer,
            self.handle,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A check that was skipped or incomplete, and the unread source."""

    check: str
    source: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Findings and gaps of one comparison."""

    findings: tuple[AuditFinding, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def finding(self, key: tuple[str, ...]) -> AuditFinding | None:
        return next((f for f in self.findings if f.key == key), None)

    def intersect(self, earlier: "AuditReport") -> "AuditReport":
        """Return this report with only the findings of an earlier one, too.

        A finding of one report only was a change in progress.
        """
        keys = {finding.key for finding in earlier.findings}
        return dataclasses.replace(
            self,
            findings=tuple(f for f in self.findings if f.key in keys),
        )


def group_duplicates(
    values: Iterable[_T], key: Callable[[_T], str]
) -> list[tuple[str, list[_T]]]:
    """Return groups of two or more values with the same key, by key."""
    groups: dict[str, list[_T]] = collections.defaultdict(list)
    for value in values:
        groups[key(value)].append(value)
    return [
        (k, group) for k, group in sorted(groups.items()) if len(group) > 1
    ]
