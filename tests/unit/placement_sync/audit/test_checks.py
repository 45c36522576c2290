# SPDX-License-Identifier: Apache-2.0
"""Each check of the audit finds its contradiction in random states."""

import dataclasses
import uuid

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.model import names, providers
from nova_accel.model.providers import Inventory, Provider
from placement_sync.audit import checks, collected_state, findings
from placement_sync.audit.collected_state import StateSource
from placement_sync.audit.findings import FindingKind
from placement_sync.client import nova_api
from tests.support import examples
from tests.support.placement import audited
from tests.support.placement.audited import (
    CARDS,
    FUNCTIONS,
    NO_SERVER,
    NVIDIA,
    OTHER,
    ROOT,
    WHOLE,
)

FREE = "slot-5"
fast = settings(deadline=None, max_examples=examples.examples(60))
steady_worlds = audited.worlds(("running", "stopped"))


def compare(
    state: collected_state.CollectedState,
) -> set[tuple[FindingKind, str, str, str]]:
    return {
        (f.kind, f.provider, f.consumer, f.handle)
        for f in checks.compare(state).findings
    }


def expect(
    kind: FindingKind, address: str, consumer: str = "", handle: str = ""
) -> set[tuple[FindingKind, str, str, str]]:
    return {(kind, audited.provider(address), consumer, handle)}


def listed(address: str) -> Provider:
    return Provider(
        uuid=audited.provider(address),
        name=names.provider_name(ROOT.name, address),
        parent=ROOT.uuid,
        root=ROOT.uuid,
    )


def without_card(host: model.HostState | None) -> model.HostState:
    assert host is not None
    devices = tuple(d for d in host.devices if d.address != WHOLE)
    return dataclasses.replace(host, devices=devices)


@given(audited.worlds())
@fast
def test_a_consistent_world_has_no_findings(
    state: collected_state.CollectedState,
) -> None:
    assert checks.compare(state) == findings.AuditReport()


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA, WHOLE]))
@fast
def test_an_allocation_without_consumer(
    state: collected_state.CollectedState, address: str
) -> None:
    state = audited.grown(
        state,
        allocations=[audited.allocation(NO_SERVER, address)],
        servers=[(NO_SERVER, None)],
    )
    assert compare(state) == expect(FindingKind.LEAKED, address, NO_SERVER)
    assert checks.compare(state).findings[0].is_safe


@given(audited.worlds(), st.sampled_from(["confirmed", "error", "completed"]))
@fast
def test_an_allocation_of_an_ended_move_is_not_safe(
    state: collected_state.CollectedState, status: str
) -> None:
    state = audited.grown(
        state,
        allocations=[audited.allocation(NO_SERVER, NVIDIA)],
        migrations=[
            nova_api.Migration(uuid=NO_SERVER, server=OTHER, status=status)
        ],
    )
    assert compare(state) == expect(FindingKind.LEAKED, NVIDIA, NO_SERVER)
    assert not checks.compare(state).findings[0].is_safe


@given(audited.worlds(), st.sampled_from(["error", "failed", "cancelled"]))
@fast
def test_a_failed_move_with_its_server_s_allocation(
    state: collected_state.CollectedState, status: str
) -> None:
    state = audited.lived(state, "leaving", OTHER, CARDS[0], FREE)
    *others, move = state.migrations or ()
    move = dataclasses.replace(move, status=status)
    state = dataclasses.replace(state, migrations=(*others, move))
    assert compare(state) == expect(
        FindingKind.UNREVERTED, CARDS[0], move.uuid
    )
    assert checks.compare(state).findings[0].is_safe
    elsewhere = dataclasses.replace(state, domains=())
    (unsafe,) = (
        finding
        for finding in checks.compare(elsewhere).findings
        if finding.kind is FindingKind.UNREVERTED
    )
    assert not unsafe.is_safe

    own = [audited.allocation(OTHER, CARDS[0])]
    assert compare(audited.grown(state, allocations=own)) == set()


@given(
    audited.worlds(),
    st.sampled_from([CARDS[0], NVIDIA, WHOLE]),
    st.sampled_from(["running", "stopped", "claimed", "made"]),
)
@fast
def test_a_claim_without_allocation(
    state: collected_state.CollectedState, address: str, life: str
) -> None:
    slot = {NVIDIA: FUNCTIONS[-1], WHOLE: WHOLE}.get(address, FREE)
    assume(all(c.slot != slot for c in state.claims or ()))
    before = state
    state = audited.lived(state, life, OTHER, address, slot)
    state = dataclasses.replace(
        state,
        allocations=before.allocations,
        consumers={
            claim.consumer: collected_state.ConsumerAllocations(
                allocations={ROOT.uuid: {"VCPU": 2}}, project="p", user="u"
            )
            for claim in state.claims or ()
        },
        providers=(listed(address),),
    )
    assert compare(state) == expect(FindingKind.UNALLOCATED, address, OTHER)
    silent = dataclasses.replace(state, consumers={})
    assert compare(silent) == set()


def with_server(
    state: collected_state.CollectedState,
    address: str = CARDS[0],
    slot: str = FREE,
) -> tuple[collected_state.CollectedState, str]:
    state = audited.lived(state, "running", OTHER, address, slot)
    return state, audited.handle(address, slot)


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA]))
@fast
def test_a_partition_that_the_kernel_has_lost(
    state: collected_state.CollectedState, address: str
) -> None:
    slot = FREE if address in CARDS else FUNCTIONS[-1]
    state, handle = with_server(state, address, slot)
    lost = audited.without_partition(state, handle)
    assert compare(state) == set()
    assert compare(lost) == expect(FindingKind.MISSING, address, OTHER, handle)


@given(steady_worlds)
@fast
def test_a_missing_card_of_a_server(
    state: collected_state.CollectedState,
) -> None:
    assume(all(c.device != WHOLE for c in state.claims or ()))
    state, handle = with_server(state, WHOLE, WHOLE)
    host = without_card(state.host)
    lost = dataclasses.replace(state, host=host)
    assert expect(FindingKind.MISSING, WHOLE, OTHER, handle) <= compare(lost)
    for unsure in (
        dataclasses.replace(host, unknown=frozenset({WHOLE})),
        dataclasses.replace(host, complete=False),
    ):
        assert compare(dataclasses.replace(state, host=unsure)) == set()


@given(steady_worlds)
@fast
def test_a_missing_card_of_a_server_without_other_sources(
    state: collected_state.CollectedState,
) -> None:
    """Placement and the kernel are sufficient sources."""
    state, _ = with_server(state, WHOLE, WHOLE)
    host = without_card(state.host)
    alone = collected_state.CollectedState(
        root=state.root,
        providers=(listed(WHOLE),),
        allocations=state.allocations,
        host=host,
    )
    assert expect(FindingKind.MISSING, WHOLE, OTHER) <= compare(alone)
    unsure = dataclasses.replace(host, unknown=frozenset({WHOLE}))
    assert not compare(dataclasses.replace(alone, host=unsure))


@given(audited.worlds())
@fast
def test_a_guest_without_its_claimed_partition(
    state: collected_state.CollectedState,
) -> None:
    state, handle = with_server(state)
    assert state.domains is not None
    bare = dataclasses.replace(
        state,
        domains=(*state.domains[:-1], audited.domain(OTHER, ())),
    )
    assert compare(bare) == expect(
        FindingKind.MISSING, CARDS[0], OTHER, handle
    )
    off = dataclasses.replace(
        state,
        domains=(*state.domains[:-1], audited.domain(OTHER, (), False)),
    )
    assert compare(off) == set()


@given(audited.worlds())
@fast
def test_a_guest_without_its_allocated_partition(
    state: collected_state.CollectedState,
) -> None:
    state = audited.grown(
        state,
        allocations=[audited.allocation(OTHER, CARDS[0])],
        servers=[(OTHER, nova_api.Server(uuid=OTHER, node=ROOT.name))],
        domains=[audited.domain(OTHER, ())],
    )
    assert compare(state) == expect(FindingKind.MISSING, CARDS[0], OTHER)


@given(
    audited.worlds(),
    st.sampled_from([(CARDS[1], FREE), (NVIDIA, FUNCTIONS[-1])]),
)
@fast
def test_an_unclaimed_device_in_a_guest(
    state: collected_state.CollectedState, place: tuple[str, str]
) -> None:
    handle = audited.handle(*place)
    state = audited.grown(
        audited.made(state, *place),
        domains=[audited.domain(NO_SERVER, {handle})],
    )
    assert compare(state) == expect(
        FindingKind.FOREIGN, place[0], NO_SERVER, handle
    )


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA]))
@fast
def test_a_partition_without_consumer(
    state: collected_state.CollectedState, address: str
) -> None:
    """A partition is no orphan if a consumer is about to claim it."""
    slot = FREE if address in CARDS else FUNCTIONS[-1]
    kind = FindingKind.ORPHAN if address in CARDS else FindingKind.TYPED
    handle = audited.handle(address, slot)
    orphaned = audited.made(state, address, slot)
    provider = audited.provider(address)
    if collected_state.StateIndex(state).is_pending(provider):
        assert compare(orphaned) == set()
    else:
        assert compare(orphaned) == expect(kind, address, "", handle)
        is_safe = checks.compare(orphaned).findings[0].is_safe
        assert is_safe == (kind is FindingKind.ORPHAN)
    coming = audited.grown(
        orphaned, allocations=[audited.allocation(OTHER, address)]
    )
    assert compare(coming) == set()


@given(audited.worlds(), st.booleans())
@fast
def test_a_foreign_mdev_is_no_finding(
    state: collected_state.CollectedState, is_used: bool
) -> None:
    foreign = model.Partition(
        profile="P-1", parent=CARDS[0], handle=str(uuid.uuid4())
    )
    state = audited.with_partitions(
        state, CARDS[0], lambda before: (*before, foreign)
    )
    assert compare(state) == set()


def lost(name: str, parent: str, root: str) -> Provider:
    return Provider(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        name=name,
        parent=parent,
        root=root,
    )


@given(audited.worlds(), st.booleans(), st.booleans())
@fast
def test_providers_of_a_deleted_host(
    state: collected_state.CollectedState,
    is_card_used: bool,
    is_part_used: bool,
) -> None:
    whole = lost("compute-9_accel_card", OTHER, OTHER)
    part = lost("compute-9_accel_card_region_0", whole.uuid, OTHER)
    alive = lost("compute-8_accel_card", NO_SERVER, NO_SERVER)
    used = {whole.uuid} if is_card_used else set()
    used |= {part.uuid} if is_part_used else set()
    state = dataclasses.replace(
        state,
        everywhere=(whole, part, alive),
        gone=frozenset({OTHER}),
        used=frozenset(used),
    )
    report = checks.compare(state)
    assert {f.kind for f in report.findings} == {FindingKind.GONE}
    assert {f.provider: f.is_safe for f in report.findings} == {
        whole.uuid: not is_card_used and not is_part_used,
        part.uuid: not is_part_used,
    }


@given(audited.worlds())
@fast
def test_two_providers_of_one_device(
    state: collected_state.CollectedState,
) -> None:
    first, other = map(listed, CARDS)
    again = dataclasses.replace(
        first, uuid=OTHER, name=names.provider_name("old-name", CARDS[0])
    )
    state = dataclasses.replace(state, providers=(again, first, other))
    assert compare(state) == {(FindingKind.DUPLICATE, OTHER, "", "")}


@given(audited.worlds())
@fast
def test_two_servers_that_claim_one_partition(
    state: collected_state.CollectedState,
) -> None:
    state, handle = with_server(state)
    twice = audited.grown(
        state, claims=[audited.claim(NO_SERVER, CARDS[0], FREE)]
    )
    second = max(NO_SERVER, OTHER)
    assert compare(twice) == expect(
        FindingKind.DUPLICATE, CARDS[0], second, handle
    )


@given(audited.worlds())
@fast
def test_two_guests_that_have_one_partition(
    state: collected_state.CollectedState,
) -> None:
    state, handle = with_server(state)
    twice = audited.grown(state, domains=[audited.domain(NO_SERVER, {handle})])
    second = max(NO_SERVER, OTHER)
    assert compare(twice) == expect(
        FindingKind.DUPLICATE, CARDS[0], second, handle
    ) | expect(FindingKind.FOREIGN, CARDS[0], NO_SERVER, handle)


@given(audited.worlds())
@fast
def test_an_allocation_of_a_server_on_another_host(
    state: collected_state.CollectedState,
) -> None:
    state = audited.grown(
        state,
        allocations=[audited.allocation(OTHER, WHOLE)],
        servers=[(OTHER, nova_api.Server(uuid=OTHER, node="compute-2"))],
    )
    assert compare(state) == expect(FindingKind.DUPLICATE, WHOLE, OTHER)


CHARGES = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 512}


def with_memory() -> collected_state.CollectedState:
    """Return the state of a card that counts memory, and of its provider."""
    card = dataclasses.replace(
        audited.card(CARDS[0]),
        counters={names.GPU_CLASS: 6, names.GPU_MEMORY_CLASS: 4096},
        profiles=(
            model.Profile(
                name=audited.PROFILE,
                trait="CUSTOM_VGPU_P_1",
                charges=CHARGES,
                available=5,
            ),
        ),
    )
    return dataclasses.replace(
        audited.EMPTY,
        host=model.HostState(devices=(card,)),
        providers=(listed(CARDS[0]),),
    )


@pytest.mark.parametrize("name", [*CHARGES, ""])
def test_each_class_of_a_claim_must_be_allocated(name: str) -> None:
    """All classes are allocated for the empty name."""
    uuid = audited.provider(CARDS[0])
    amounts = {other: n for other, n in CHARGES.items() if other != name}
    state = audited.lived(with_memory(), "running", OTHER, CARDS[0], FREE)
    state = dataclasses.replace(
        state,
        allocations=(
            providers.Allocation(
                provider=uuid, consumer=OTHER, amounts=amounts
            ),
        ),
        consumers={
            OTHER: collected_state.ConsumerAllocations(
                allocations={ROOT.uuid: {"VCPU": 1}, uuid: amounts},
                project="p",
                user="u",
            )
        },
    )
    if not name:
        assert compare(state) == set()
        return
    (finding,) = checks.compare(state).findings
    assert (finding.kind, finding.is_safe) == (FindingKind.UNALLOCATED, True)
    assert (
        f" --allocation rp={uuid},{names.GPU_MEMORY_CLASS}=512,VGPU=1 "
    ) in finding.remedy


def test_a_card_to_oneself_is_allocated_as_a_whole() -> None:
    uuid = audited.provider(CARDS[0])
    flavor = nova_api.ServerFlavor(
        vcpus=1,
        memory_mb=0,
        root_gb=0,
        other_gb=0,
        extra_specs={"accelerator:packing": "exclusive"},
    )
    server = nova_api.Server(uuid=OTHER, node=ROOT.name, flavor=flavor)
    state = dataclasses.replace(
        audited.lived(with_memory(), "running", OTHER, CARDS[0], FREE),
        allocations=(),
        servers={OTHER: server},
        consumers={
            OTHER: collected_state.ConsumerAllocations(
                allocations={ROOT.uuid: {"VCPU": 1}}
            )
        },
    )
    (finding,) = checks.compare(state).findings
    device = collected_state.StateIndex(state).device(uuid)
    assert device is not None
    total = device.counters[names.GPU_MEMORY_CLASS]
    assert total > CHARGES[names.GPU_MEMORY_CLASS]
    assert (
        f" --allocation rp={uuid},{names.GPU_MEMORY_CLASS}={total},VGPU=1 "
    ) in finding.remedy


def test_one_command_sets_the_allocations_of_all_devices() -> None:
    """A second command would replace the first one's allocations."""
    state = dataclasses.replace(
        audited.EMPTY,
        providers=tuple(map(listed, CARDS)),
        consumers={OTHER: collected_state.ConsumerAllocations(allocations={})},
        inventories={
            ROOT.uuid: {"VCPU": Inventory(total=8)},
            audited.provider(CARDS[1]): {
                "VGPU": Inventory(total=6, reserved=6, max_unit=12)
            },
        },
    )
    flavor = nova_api.ServerFlavor(
        vcpus=1, memory_mb=0, root_gb=0, other_gb=0, extra_specs={}
    )
    server = nova_api.Server(
        uuid=OTHER, node=ROOT.name, project="p", user="u", flavor=flavor
    )
    state = audited.grown(
        state,
        servers=[(OTHER, server)],
        claims=[audited.claim(OTHER, address, FREE) for address in CARDS],
    )
    both = [
        f
        for f in checks.compare(state).findings
        if f.kind is FindingKind.UNALLOCATED
    ]
    assert [f.is_safe for f in both] == [True, True]
    (command,) = {f.remedy for f in both}
    inventory, _, allocation = command.partition(" && ")
    assert inventory.endswith(
        f" --resource VGPU:reserved=5 {audited.provider(CARDS[1])}"
    )
    parts = {ROOT.uuid: "VCPU=1"} | {
        audited.provider(address): "VGPU=1" for address in CARDS
    }
    options = [f"--allocation rp={u},{parts[u]}" for u in sorted(parts)]
    assert allocation.endswith(
        f" --project-id p --user-id u {' '.join(options)} {OTHER}"
    )


def test_an_incomplete_source_is_a_gap() -> None:
    state = dataclasses.replace(
        audited.EMPTY,
        unread={StateSource.KERNEL: "0000:3b:00.0 can't be read"},
    )
    gaps = checks.compare(state).gaps
    assert {g.source for g in gaps} == {StateSource.KERNEL.value}
    assert {g.reason for g in gaps} == {"0000:3b:00.0 can't be read"}


@pytest.mark.parametrize("kind", list(FindingKind))
def test_finding_kinds_are_lower_case_words(kind: FindingKind) -> None:
    assert kind.value.replace("-", "").isalpha()
    assert kind.value.islower()


def test_two_audits_report_only_common_findings() -> None:
    def finding(where: str) -> findings.AuditFinding:
        return findings.AuditFinding(
            kind=FindingKind.TYPED, where=where, reason="r", remedy="m"
        )

    first = findings.AuditReport(findings=(finding("a"), finding("b")))
    second = findings.AuditReport(findings=(finding("b"), finding("c")))
    assert second.intersect(first).findings == (finding("b"),)


@given(audited.worlds(), st.booleans())
@fast
def test_open_providers_of_a_host_with_stock_nova(
    state: collected_state.CollectedState, is_closed: bool
) -> None:
    total = 4
    inventory = Inventory(total=total, reserved=total if is_closed else 0)
    uuids = {provider.uuid for provider in state.providers or ()}
    state = dataclasses.replace(
        state,
        is_stock=True,
        inventories={uuid: {"VGPU": inventory} for uuid in uuids},
    )
    report = checks.compare(state)
    unserved = [f for f in report.findings if f.kind is FindingKind.UNSERVED]
    assert {f.provider for f in unserved} == (set() if is_closed else uuids)
    for finding in unserved:
        assert finding.is_safe
        assert f"VGPU:reserved={total} {finding.provider}" in finding.remedy
