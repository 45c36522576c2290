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
from placement_sync.audit.collected_state import StateSource
from placement_sync.audit.findings import (
    AuditFinding,
    AuditReport,
    FindingKind,
    Gap,
)


def compare(known: collected_state.CollectedState) -> AuditReport:
    """Return everything that is wrong, as far as it can be told."""
    world = collected_state.StateIndex(known)
    findings: set[AuditFinding] = set()
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
    return AuditReport(
        findings=tuple(sorted(findings, key=_rank)), gaps=tuple(gaps)
    )


_KINDS = tuple(FindingKind)


def _rank(finding: AuditFinding) -> tuple[object, ...]:
    return (_KINDS.index(finding.kind), *finding.key)


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    """One comparison: in words, whom it needs, and what makes it."""

    what: str
    needs: tuple[StateSource, ...]
    find: Callable[[collected_state.StateIndex], Iterable[AuditFinding]]


_CHECKS = (
    _Check(
        "allocations that nobody has",
        (
            StateSource.ALLOCATIONS,
            StateSource.SERVERS,
            StateSource.MIGRATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
        ),
        placement_checks.leaked,
    ),
    _Check(
        "claims without allocations",
        (
            StateSource.CLAIMS,
            StateSource.ALLOCATIONS,
            StateSource.PROVIDERS,
            StateSource.KERNEL,
            StateSource.SERVERS,
            StateSource.MIGRATIONS,
        ),
        placement_checks.unallocated,
    ),
    _Check(
        "allocations of moves that ended",
        (
            StateSource.ALLOCATIONS,
            StateSource.MIGRATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
            StateSource.KERNEL,
        ),
        placement_checks.ended,
    ),
    _Check(
        "claims that the kernel has nothing of",
        (StateSource.CLAIMS, StateSource.KERNEL),
        device_checks.unmade,
    ),
    _Check(
        "allocations of devices that are gone",
        (StateSource.ALLOCATIONS, StateSource.PROVIDERS, StateSource.KERNEL),
        placement_checks.unbacked,
    ),
    _Check(
        "claims that a running guest does not have",
        (StateSource.CLAIMS, StateSource.DOMAINS, StateSource.MIGRATIONS),
        device_checks.ungiven,
    ),
    _Check(
        "allocations that a running guest has nothing for",
        (
            StateSource.ALLOCATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
            StateSource.KERNEL,
            StateSource.MIGRATIONS,
        ),
        device_checks.unclaimed,
    ),
    _Check(
        "devices in guests that nobody gave them to",
        (
            StateSource.DOMAINS,
            StateSource.KERNEL,
            StateSource.CLAIMS,
            StateSource.ALLOCATIONS,
            StateSource.MIGRATIONS,
        ),
        device_checks.foreign,
    ),
    _Check(
        "partitions that nobody has",
        (
            StateSource.KERNEL,
            StateSource.DOMAINS,
            StateSource.CLAIMS,
            StateSource.ALLOCATIONS,
        ),
        device_checks.orphans,
    ),
    _Check(
        "providers of hosts that are gone",
        (StateSource.EVERYWHERE, StateSource.HYPERVISORS),
        placement_checks.gone,
    ),
    _Check(
        "providers that stand for one device",
        (StateSource.PROVIDERS, StateSource.KERNEL),
        placement_checks.twice_provided,
    ),
    _Check(
        "partitions that two servers have claims on",
        (StateSource.CLAIMS,),
        device_checks.twice_claimed,
    ),
    _Check(
        "devices that are in two domains",
        (StateSource.DOMAINS, StateSource.KERNEL),
        device_checks.twice_given,
    ),
    _Check(
        "allocations of servers that are elsewhere",
        (StateSource.ALLOCATIONS, StateSource.SERVERS, StateSource.MIGRATIONS),
        placement_checks.elsewhere,
    ),
)
