# SPDX-License-Identifier: Apache-2.0
"""Checks of the audit, each with the sources that it needs.

Unknown is not absent: a check with an unread source is skipped, and the
report has a gap for it.
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


def compare(state: collected_state.CollectedState) -> AuditReport:
    """Return the findings of all checks that can be made, and the gaps."""
    index = collected_state.StateIndex(state)
    findings: set[AuditFinding] = set()
    gaps = []
    for check in _CHECKS:
        gaps += [
            Gap(
                check=check.title,
                source=source.value,
                reason=state.unread.get(source, "it was not read"),
            )
            for source in check.sources
            if not state.has(source) or source in state.unread
        ]
        if all(state.has(source) for source in check.sources):
            findings |= set(check.find(index))
    return AuditReport(
        findings=tuple(sorted(findings, key=_rank)), gaps=tuple(gaps)
    )


_KINDS = tuple(FindingKind)


def _rank(finding: AuditFinding) -> tuple[object, ...]:
    return (_KINDS.index(finding.kind), *finding.key)


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    """Title, required sources and function of a check."""

    title: str
    sources: tuple[StateSource, ...]
    find: Callable[[collected_state.StateIndex], Iterable[AuditFinding]]


_CHECKS = (
    _Check(
        "allocations without a consumer",
        (
            StateSource.ALLOCATIONS,
            StateSource.SERVERS,
            StateSource.MIGRATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
        ),
        placement_checks.find_leaked,
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
        placement_checks.find_unallocated,
    ),
    _Check(
        "allocations of migrations that ended",
        (
            StateSource.ALLOCATIONS,
            StateSource.MIGRATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
            StateSource.KERNEL,
        ),
        placement_checks.find_ended_moves,
    ),
    _Check(
        "allocations of migrations that failed, of servers on this host",
        (
            StateSource.ALLOCATIONS,
            StateSource.SERVERS,
            StateSource.MIGRATIONS,
            StateSource.CLAIMS,
        ),
        placement_checks.find_unreverted,
    ),
    _Check(
        "claims without a partition in the kernel",
        (StateSource.CLAIMS, StateSource.KERNEL),
        device_checks.find_missing_partitions,
    ),
    _Check(
        "allocations of devices that are gone",
        (StateSource.ALLOCATIONS, StateSource.PROVIDERS, StateSource.KERNEL),
        placement_checks.find_absent_devices,
    ),
    _Check(
        "claims without a device in the running guest",
        (StateSource.CLAIMS, StateSource.DOMAINS, StateSource.MIGRATIONS),
        device_checks.find_claims_without_hostdev,
    ),
    _Check(
        "allocations without a device in the running guest",
        (
            StateSource.ALLOCATIONS,
            StateSource.CLAIMS,
            StateSource.DOMAINS,
            StateSource.KERNEL,
            StateSource.MIGRATIONS,
        ),
        device_checks.find_guests_without_device,
    ),
    _Check(
        "devices in guests without a claim or an allocation",
        (
            StateSource.DOMAINS,
            StateSource.KERNEL,
            StateSource.CLAIMS,
            StateSource.ALLOCATIONS,
            StateSource.MIGRATIONS,
        ),
        device_checks.find_foreign_devices,
    ),
    _Check(
        "partitions without a claim, a guest or an allocation",
        (
            StateSource.KERNEL,
            StateSource.DOMAINS,
            StateSource.CLAIMS,
            StateSource.ALLOCATIONS,
        ),
        device_checks.find_orphans,
    ),
    _Check(
        "providers of hosts that are gone",
        (StateSource.EVERYWHERE, StateSource.HYPERVISORS),
        placement_checks.find_removed_hosts,
    ),
    _Check(
        "several providers of one device",
        (StateSource.PROVIDERS, StateSource.KERNEL),
        placement_checks.find_duplicate_providers,
    ),
    _Check(
        "partitions that two servers have claims on",
        (StateSource.CLAIMS,),
        device_checks.find_duplicate_claims,
    ),
    _Check(
        "devices that are in two domains",
        (StateSource.DOMAINS, StateSource.KERNEL),
        device_checks.find_shared_devices,
    ),
    _Check(
        "allocations of servers on another host",
        (StateSource.ALLOCATIONS, StateSource.SERVERS, StateSource.MIGRATIONS),
        placement_checks.find_moved_servers,
    ),
    _Check(
        "open providers of a host whose nova-compute runs without nova-accel",
        (StateSource.PROVIDERS, StateSource.SERVICE),
        placement_checks.find_unserved,
    ),
)
