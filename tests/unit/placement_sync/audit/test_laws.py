# SPDX-License-Identifier: Apache-2.0
"""The audit is monotonic, safe and complete on random contradictions."""

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


def compare(state: collected_state.CollectedState) -> Keys:
    return keys(checks.compare(state))


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
    StateSource.SERVICE: "is_stock",
}


@st.composite
def faulty(draw: st.DrawFn) -> collected_state.CollectedState:
    """Draw a state with several contradictions."""
    state = draw(audited.worlds())
    consumers = [audited.NO_SERVER, audited.OTHER, *(state.servers or {})]
    for _ in range(draw(st.integers(0, 5))):
        consumer = draw(st.sampled_from(consumers))
        address, slot = draw(st.sampled_from(audited.PLACES))
        handle = audited.handle(address, slot)
        match draw(st.integers(0, 5)):
            case 0:
                state = audited.grown(
                    state, allocations=[audited.allocation(consumer, address)]
                )
            case 1:
                state = audited.grown(state, servers=[(consumer, None)])
            case 2:
                state = audited.grown(
                    state, domains=[audited.domain(consumer, {handle})]
                )
            case 3:
                state = audited.grown(
                    state, claims=[audited.claim(consumer, address, slot)]
                )
            case 4:
                state = audited.without_partition(state, handle)
            case 5:
                state = audited.made(
                    audited.without_partition(state, handle), address, slot
                )
    return state


@given(faulty(), st.sets(st.sampled_from(list(StateSource)), min_size=1))
@thorough
def test_fewer_sources_give_no_more_findings(
    state: collected_state.CollectedState, silent: set[StateSource]
) -> None:
    unknown: dict[str, Any] = {UNKNOWN[source]: None for source in silent}
    reduced = dataclasses.replace(state, **unknown)
    assert compare(reduced) <= compare(state)
    gaps = {gap.source for gap in checks.compare(reduced).gaps}
    assert gaps == {source.value for source in silent}


@given(faulty())
@thorough
def test_devices_in_use_are_never_safe_to_heal(
    state: collected_state.CollectedState,
) -> None:
    assert state.domains is not None
    assert state.claims is not None
    assert state.servers is not None
    assert state.migrations is not None
    for finding in checks.compare(state).findings:
        if not finding.is_safe:
            continue
        if finding.kind is FindingKind.LEAKED:
            consumer = finding.consumer
            assert state.servers[consumer] is None
            assert consumer not in {d.uuid for d in state.domains}
            assert consumer not in {c.consumer for c in state.claims}
            assert consumer not in {m.uuid for m in state.migrations}
        else:
            assert finding.kind is FindingKind.ORPHAN
            handle = finding.handle
            assert not any(handle in d.handles for d in state.domains)
            assert handle not in {c.handle for c in state.claims}


@given(faulty())
@thorough
def test_healed_findings_do_not_return(
    state: collected_state.CollectedState,
) -> None:
    """The next audit has the same findings without the healed ones."""
    report = checks.compare(state)
    healed = [f for f in report.findings if f.is_safe]
    for finding in healed:
        if finding.kind is FindingKind.ORPHAN:
            state = audited.without_partition(state, finding.handle)
        else:
            state = dataclasses.replace(
                state,
                allocations=tuple(
                    a
                    for a in state.allocations or ()
                    if (a.provider, a.consumer)
                    != (finding.provider, finding.consumer)
                ),
            )
    remaining = compare(state)
    assert remaining == keys(report) - keys(
        dataclasses.replace(report, findings=tuple(healed))
    )
