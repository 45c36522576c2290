# SPDX-License-Identifier: Apache-2.0
"""List of the audit's checks, run on collected evidence.

Unknown is not absent: a comparison of which one side is not known is not
made, and the report says so.
"""

import dataclasses
from collections.abc import Callable, Iterable

from placement_sync.audit import (
    collected_state,
    device_checks,
    placement_checks,
)
from placement_sync.audit.collected_state import Source
from placement_sync.audit.findings import Finding, Gap, Kind, Report


def compare(known: collected_state.Evidence) -> Report:
    """Return everything that is wrong, as far as it can be told."""
    world = collected_state.World(known)
    findings: set[Finding] = set()
    gaps = []
    for check in _CHECKS:
        gaps += [
            Gap(
                check=check.what,
                source=source.value,
                reason=known.unasked.get(source, "nobody was asked"),
            )
            for source in check.needs
            if not known.has(source) or source in known.unasked
        ]
        if all(known.has(source) for source in check.needs):
            findings |= set(check.find(world))
    return Report(
        findings=tuple(sorted(findings, key=_rank)), gaps=tuple(gaps)
    )


_KINDS = tuple(Kind)


def _rank(finding: Finding) -> tuple[object, ...]:
    return (_KINDS.index(finding.kind), *finding.key)


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    """One comparison: in words, whom it needs, and what makes it."""

    what: str
    needs: tuple[Source, ...]
    find: Callable[[collected_state.World], Iterable[Finding]]


_CHECKS = (
    _Check(
        "allocations that nobody has",
        (
            Source.ALLOCATIONS,
            Source.SERVERS,
            Source.MIGRATIONS,
            Source.CLAIMS,
            Source.DOMAINS,
        ),
        placement_checks.leaked,
    ),
    _Check(
        "claims without allocations",
        (
            Source.CLAIMS,
            Source.ALLOCATIONS,
            Source.PROVIDERS,
            Source.KERNEL,
            Source.SERVERS,
            Source.MIGRATIONS,
        ),
        placement_checks.unallocated,
    ),
    _Check(
        "allocations of moves that ended",
        (
            Source.ALLOCATIONS,
            Source.MIGRATIONS,
            Source.CLAIMS,
            Source.DOMAINS,
            Source.KERNEL,
        ),
        placement_checks.ended,
    ),
    _Check(
        "claims that the kernel has nothing of",
        (Source.CLAIMS, Source.KERNEL),
        device_checks.unmade,
    ),
    _Check(
        "allocations of devices that are gone",
        (Source.ALLOCATIONS, Source.PROVIDERS, Source.KERNEL),
        placement_checks.unbacked,
    ),
    _Check(
        "claims that a running guest does not have",
        (Source.CLAIMS, Source.DOMAINS, Source.MIGRATIONS),
        device_checks.ungiven,
    ),
    _Check(
        "allocations that a running guest has nothing for",
        (
            Source.ALLOCATIONS,
            Source.CLAIMS,
            Source.DOMAINS,
            Source.KERNEL,
            Source.MIGRATIONS,
        ),
        device_checks.unclaimed,
    ),
    _Check(
        "devices in guests that nobody gave them to",
        (
            Source.DOMAINS,
            Source.KERNEL,
            Source.CLAIMS,
            Source.ALLOCATIONS,
            Source.MIGRATIONS,
        ),
        device_checks.foreign,
    ),
    _Check(
        "partitions that nobody has",
        (
            Source.KERNEL,
            Source.DOMAINS,
            Source.CLAIMS,
            Source.ALLOCATIONS,
        ),
        device_checks.orphans,
    ),
    _Check(
        "providers of hosts that are gone",
        (Source.EVERYWHERE, Source.HYPERVISORS),
        placement_checks.gone,
    ),
    _Check(
        "providers that stand for one device",
        (Source.PROVIDERS, Source.KERNEL),
        placement_checks.twice_provided,
    ),
    _Check(
        "partitions that two servers have claims on",
        (Source.CLAIMS,),
        device_checks.twice_claimed,
    ),
    _Check(
        "devices that are in two domains",
        (Source.DOMAINS, Source.KERNEL),
        device_checks.twice_given,
    ),
    _Check(
        "allocations of servers that are elsewhere",
        (Source.ALLOCATIONS, Source.SERVERS, Source.MIGRATIONS),
        placement_checks.elsewhere,
    ),
)
