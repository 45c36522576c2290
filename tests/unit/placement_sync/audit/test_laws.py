# SPDX-License-Identifier: Apache-2.0
"""Laws of the audit, on states with any contradictions."""

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from placement_sync.audit import checks, collected_state, findings
from placement_sync.audit.collected_state import StateSource
from placement_sync.audit.findings import FindingKind
from tests.support import examples
from tests.support.placement import audited

Keys = set[tuple[FindingKind, str, str, str]]
thorough = settings(deadline=None, max_examples=examples.examples(300))


def keys(report: findings.AuditReport) -> Keys:
    return {
        (f.kind, f.provider, f.consumer, f.handle) for f in report.findings
    }


def found(known: collected_state.CollectedState) -> Keys:
    return keys(checks.compare(known))


UNKNOWN = {
    StateSource.ALLOCATIONS: "allocations",
    StateSource.PROVIDERS: "providers",
    StateSource.EVERYWHERE: "everywhere",
    StateSource.CLAIMS: "claims",
    StateSource.SERVERS: "servers",
    StateSource.MIGRATIONS: "migrations",
    StateSource.HYPERVISORS: "gone",
    StateSource.DOMAINS: "domains",
    StateSource.KERNEL: "host",
}


@st.composite
def faulty(draw: st.DrawFn) -> collected_state.CollectedState:
    """Draw a world in which anything may be wrong, several times."""
    known = draw(audited.worlds())
    people = [audited.NOBODY, audited.OTHER, *(known.servers or {})]
    for _ in range(draw(st.integers(0, 5))):
        who = draw(st.sampled_from(people))
        address, slot = draw(st.sampled_from(audited.PLACES))
        handle = audited.handle(address, slot)
        match draw(st.integers(0, 5)):
            case 0:
                known = audited.grown(
                    known, allocations=[audited.allocation(who, address)]
                )
            case 1:
                known = audited.grown(known, servers=[(who, None)])
            case 2:
                known = audited.grown(
                    known, domains=[audited.domain(who, {handle})]
                )
            case 3:
                known = audited.grown(
                    known, claims=[audited.claim(who, address, slot)]
                )
            case 4:
                known = audited.without_partition(known, handle)
            case 5:
                known = audited.made(
                    audited.without_partition(known, handle), address, slot
                )
    return known


@given(faulty(), st.sets(st.sampled_from(list(StateSource)), min_size=1))
@thorough
def test_who_knows_less_finds_no_more(
    known: collected_state.CollectedState, silent: set[StateSource]
) -> None:
    unknown: dict[str, Any] = {UNKNOWN[source]: None for source in silent}
    less = dataclasses.replace(known, **unknown)
    assert found(less) <= found(known)
    gaps = {gap.source for gap in checks.compare(less).gaps}
    assert gaps == {source.value for source in silent}


@given(faulty())
@thorough
def test_what_is_in_use_is_never_safe_to_mend(
    known: collected_state.CollectedState,
) -> None:
    assert known.domains is not None
    assert known.claims is not None
    assert known.servers is not None
    assert known.migrations is not None
    for finding in checks.compare(known).findings:
        if not finding.is_safe:
            continue
        if finding.kind is FindingKind.LEAKED:
            who = finding.consumer
            assert known.servers[who] is None
            assert who not in {d.uuid for d in known.domains}
            assert who not in {c.consumer for c in known.claims}
            assert who not in {m.uuid for m in known.migrations}
        else:
            assert finding.kind is FindingKind.ORPHAN
            handle = finding.handle
            assert not any(handle in d.handles for d in known.domains)
            assert handle not in {c.handle for c in known.claims}


@given(faulty())
@thorough
def test_mended_is_mended(known: collected_state.CollectedState) -> None:
    """On paper: the audit after it finds the same less what was mended."""
    report = checks.compare(known)
    mended = [f for f in report.findings if f.is_safe]
    for finding in mended:
        if finding.kind is FindingKind.ORPHAN:
            known = audited.without_partition(known, finding.handle)
        else:
            known = dataclasses.replace(
                known,
                allocations=tuple(
                    a
                    for a in known.allocations or ()
                    if (a.provider, a.consumer)
                    != (finding.provider, finding.consumer)
                ),
            )
    left = found(known)
    assert left == keys(report) - keys(
        dataclasses.replace(report, findings=tuple(mended))
    )
