# SPDX-License-Identifier: Apache-2.0
"""Each check of the audit finds its contradiction in random states."""

import dataclasses
import uuid

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.model import names
from nova_accel.model.providers import Inventory
from placement_sync.audit import checks, collected_state, findings
from placement_sync.audit.collected_state import StateSource
from placement_sync.audit.findings import FindingKind
from placement_sync.client import nova_types
from tests.support import examples
from tests.support.placement import audited
from tests.support.placement.audited import (
    CARDS,
    FUNCTIONS,
    NOBODY,
    NVIDIA,
    OTHER,
    ROOT,
    WHOLE,
)

FREE = "slot-5"
fast = settings(deadline=None, max_examples=examples.examples(60))
settled = audited.worlds(("running", "stopped"))


def found(
    known: collected_state.CollectedState,
) -> set[tuple[FindingKind, str, str, str]]:
    return {
        (f.kind, f.provider, f.consumer, f.handle)
        for f in checks.compare(known).findings
    }


def one(
    kind: FindingKind, address: str, consumer: str = "", handle: str = ""
) -> set[tuple[FindingKind, str, str, str]]:
    return {(kind, audited.provider(address), consumer, handle)}


@given(audited.worlds())
@fast
def test_a_consistent_world_has_no_findings(
    known: collected_state.CollectedState,
) -> None:
    assert checks.compare(known) == findings.AuditReport()


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA, WHOLE]))
@fast
def test_an_allocation_that_nobody_has(
    known: collected_state.CollectedState, address: str
) -> None:
    known = audited.grown(
        known,
        allocations=[audited.allocation(NOBODY, address)],
        servers=[(NOBODY, None)],
    )
    assert found(known) == one(FindingKind.LEAKED, address, NOBODY)
    assert checks.compare(known).findings[0].is_safe


@given(audited.worlds(), st.sampled_from(["confirmed", "error", "completed"]))
@fast
def test_an_allocation_of_a_move_that_ended_is_left_to_people(
    known: collected_state.CollectedState, status: str
) -> None:
    known = audited.grown(
        known,
        allocations=[audited.allocation(NOBODY, NVIDIA)],
        migrations=[
            nova_types.Migration(uuid=NOBODY, server=OTHER, status=status)
        ],
    )
    assert found(known) == one(FindingKind.LEAKED, NVIDIA, NOBODY)
    assert not checks.compare(known).findings[0].is_safe


@given(
    audited.worlds(),
    st.sampled_from([CARDS[0], NVIDIA, WHOLE]),
    st.sampled_from(["running", "stopped", "claimed", "made"]),
)
@fast
def test_a_claim_that_placement_has_no_allocation_for(
    known: collected_state.CollectedState, address: str, life: str
) -> None:
    slot = {NVIDIA: FUNCTIONS[-1], WHOLE: WHOLE}.get(address, FREE)
    assume(all(c.slot != slot for c in known.claims or ()))
    before = known
    known = audited.lived(known, life, OTHER, address, slot)
    known = dataclasses.replace(
        known,
        allocations=before.allocations,
        consumers={
            claim.consumer: collected_state.ConsumerAllocations(
                allocations={ROOT.uuid: {"VCPU": 2}}, project="p", user="u"
            )
            for claim in known.claims or ()
        },
        providers=(
            collected_state.AuditedProvider(
                uuid=audited.provider(address),
                name=names.provider_name(ROOT.name, address),
                parent=ROOT.uuid,
                root=ROOT.uuid,
            ),
        ),
    )
    assert found(known) == one(FindingKind.UNALLOCATED, address, OTHER)
    silent = dataclasses.replace(known, consumers={})
    assert found(silent) == set()


def with_server(
    known: collected_state.CollectedState,
    address: str = CARDS[0],
    slot: str = FREE,
) -> tuple[collected_state.CollectedState, str]:
    known = audited.lived(known, "running", OTHER, address, slot)
    return known, audited.handle(address, slot)


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA]))
@fast
def test_a_partition_that_the_kernel_has_lost(
    known: collected_state.CollectedState, address: str
) -> None:
    slot = FREE if address in CARDS else FUNCTIONS[-1]
    known, handle = with_server(known, address, slot)
    lost = audited.without_partition(known, handle)
    assert found(known) == set()
    assert found(lost) == one(FindingKind.MISSING, address, OTHER, handle)


@given(settled)
@fast
def test_a_card_that_is_gone_while_a_server_has_it(
    known: collected_state.CollectedState,
) -> None:
    assume(all(c.device != WHOLE for c in known.claims or ()))
    known, handle = with_server(known, WHOLE, WHOLE)
    assert known.host is not None
    left = tuple(d for d in known.host.devices if d.address != WHOLE)
    host = dataclasses.replace(known.host, devices=left)
    lost = dataclasses.replace(known, host=host)
    assert one(FindingKind.MISSING, WHOLE, OTHER, handle) <= found(lost)
    for unsure in (
        dataclasses.replace(host, unknown=frozenset({WHOLE})),
        dataclasses.replace(host, complete=False),
    ):
        assert found(dataclasses.replace(known, host=unsure)) == set()


@given(settled)
@fast
def test_a_card_that_is_gone_is_missed_whoever_else_is_silent(
    known: collected_state.CollectedState,
) -> None:
    """Placement and the kernel are enough to tell."""
    known, _ = with_server(known, WHOLE, WHOLE)
    assert known.host is not None
    left = tuple(d for d in known.host.devices if d.address != WHOLE)
    host = dataclasses.replace(known.host, devices=left)
    alone = collected_state.CollectedState(
        root=known.root,
        providers=(
            collected_state.AuditedProvider(
                uuid=audited.provider(WHOLE),
                name=names.provider_name(ROOT.name, WHOLE),
                parent=ROOT.uuid,
                root=ROOT.uuid,
            ),
        ),
        allocations=known.allocations,
        host=host,
    )
    assert one(FindingKind.MISSING, WHOLE, OTHER) <= found(alone)
    unsure = dataclasses.replace(host, unknown=frozenset({WHOLE}))
    assert not found(dataclasses.replace(alone, host=unsure))


@given(audited.worlds())
@fast
def test_a_guest_that_runs_without_what_it_claims(
    known: collected_state.CollectedState,
) -> None:
    known, handle = with_server(known)
    assert known.domains is not None
    bare = dataclasses.replace(
        known,
        domains=(*known.domains[:-1], audited.domain(OTHER, ())),
    )
    assert found(bare) == one(FindingKind.MISSING, CARDS[0], OTHER, handle)
    off = dataclasses.replace(
        known,
        domains=(*known.domains[:-1], audited.domain(OTHER, (), False)),
    )
    assert found(off) == set()


@given(audited.worlds())
@fast
def test_a_guest_that_runs_without_what_it_is_charged_for(
    known: collected_state.CollectedState,
) -> None:
    known = audited.grown(
        known,
        allocations=[audited.allocation(OTHER, CARDS[0])],
        servers=[(OTHER, nova_types.Server(uuid=OTHER, node=ROOT.name))],
        domains=[audited.domain(OTHER, ())],
    )
    assert found(known) == one(FindingKind.MISSING, CARDS[0], OTHER)


@given(
    audited.worlds(),
    st.sampled_from([(CARDS[1], FREE), (NVIDIA, FUNCTIONS[-1])]),
)
@fast
def test_a_device_in_a_guest_that_nobody_gave_it_to(
    known: collected_state.CollectedState, place: tuple[str, str]
) -> None:
    handle = audited.handle(*place)
    known = audited.grown(
        audited.made(known, *place),
        domains=[audited.domain(NOBODY, {handle})],
    )
    assert found(known) == one(FindingKind.FOREIGN, place[0], NOBODY, handle)


@given(audited.worlds(), st.sampled_from([*CARDS, NVIDIA]))
@fast
def test_a_partition_that_nobody_has(
    known: collected_state.CollectedState, address: str
) -> None:
    """Nobody has it, unless somebody is about to."""
    slot = FREE if address in CARDS else FUNCTIONS[-1]
    kind = FindingKind.ORPHAN if address in CARDS else FindingKind.TYPED
    handle = audited.handle(address, slot)
    left = audited.made(known, address, slot)
    provider = audited.provider(address)
    if collected_state.StateIndex(known).is_pending(provider):
        assert found(left) == set()
    else:
        assert found(left) == one(kind, address, "", handle)
        is_ours = checks.compare(left).findings[0].is_safe
        assert is_ours == (kind is FindingKind.ORPHAN)
    coming = audited.grown(
        left, allocations=[audited.allocation(OTHER, address)]
    )
    assert found(coming) == set()


@given(audited.worlds(), st.booleans())
@fast
def test_an_mdev_that_is_not_ours_is_nobodys_business(
    known: collected_state.CollectedState, is_used: bool
) -> None:
    stranger = model.Partition(
        profile="P-1", parent=CARDS[0], handle=str(uuid.uuid4())
    )
    known = audited.with_partitions(
        known, CARDS[0], lambda before: (*before, stranger)
    )
    assert found(known) == set()


def lost(name: str, parent: str, root: str) -> collected_state.AuditedProvider:
    return collected_state.AuditedProvider(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        name=name,
        parent=parent,
        root=root,
    )


@given(audited.worlds(), st.booleans(), st.booleans())
@fast
def test_providers_of_a_host_that_is_gone(
    known: collected_state.CollectedState,
    is_card_used: bool,
    is_part_used: bool,
) -> None:
    whole = lost("compute-9_accel_card", OTHER, OTHER)
    part = lost("compute-9_accel_card_region_0", whole.uuid, OTHER)
    alive = lost("compute-8_accel_card", NOBODY, NOBODY)
    used = {whole.uuid} if is_card_used else set()
    used |= {part.uuid} if is_part_used else set()
    known = dataclasses.replace(
        known,
        everywhere=(whole, part, alive),
        gone=frozenset({OTHER}),
        used=frozenset(used),
    )
    report = checks.compare(known)
    assert {f.kind for f in report.findings} == {FindingKind.GONE}
    assert {f.provider: f.is_safe for f in report.findings} == {
        whole.uuid: not is_card_used and not is_part_used,
        part.uuid: not is_part_used,
    }


@given(audited.worlds())
@fast
def test_two_providers_of_one_device(
    known: collected_state.CollectedState,
) -> None:
    first = collected_state.AuditedProvider(
        uuid=audited.provider(CARDS[0]),
        name=names.provider_name(ROOT.name, CARDS[0]),
        parent=ROOT.uuid,
        root=ROOT.uuid,
    )
    again = dataclasses.replace(
        first, uuid=OTHER, name=names.provider_name("old-name", CARDS[0])
    )
    other = dataclasses.replace(
        first,
        uuid=audited.provider(CARDS[1]),
        name=names.provider_name(ROOT.name, CARDS[1]),
    )
    known = dataclasses.replace(known, providers=(again, first, other))
    assert found(known) == {(FindingKind.DUPLICATE, OTHER, "", "")}


@given(audited.worlds())
@fast
def test_two_servers_that_claim_one_partition(
    known: collected_state.CollectedState,
) -> None:
    known, handle = with_server(known)
    twice = audited.grown(
        known, claims=[audited.claim(NOBODY, CARDS[0], FREE)]
    )
    second = max(NOBODY, OTHER)
    assert found(twice) == one(FindingKind.DUPLICATE, CARDS[0], second, handle)


@given(audited.worlds())
@fast
def test_two_guests_that_have_one_partition(
    known: collected_state.CollectedState,
) -> None:
    known, handle = with_server(known)
    twice = audited.grown(known, domains=[audited.domain(NOBODY, {handle})])
    second = max(NOBODY, OTHER)
    assert found(twice) == one(
        FindingKind.DUPLICATE, CARDS[0], second, handle
    ) | one(FindingKind.FOREIGN, CARDS[0], NOBODY, handle)


@given(audited.worlds())
@fast
def test_an_allocation_of_a_server_that_is_elsewhere(
    known: collected_state.CollectedState,
) -> None:
    known = audited.grown(
        known,
        allocations=[audited.allocation(OTHER, WHOLE)],
        servers=[(OTHER, nova_types.Server(uuid=OTHER, node="compute-2"))],
    )
    assert found(known) == one(FindingKind.DUPLICATE, WHOLE, OTHER)


CHARGES = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 512}


def with_memory() -> collected_state.CollectedState:
    """Return evidence of a card that counts memory, and of its provider."""
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
    provider = collected_state.AuditedProvider(
        uuid=audited.provider(CARDS[0]),
        name=names.provider_name(ROOT.name, CARDS[0]),
        parent=ROOT.uuid,
        root=ROOT.uuid,
    )
    return dataclasses.replace(
        audited.EMPTY,
        host=model.HostState(devices=(card,)),
        providers=(provider,),
    )


@pytest.mark.parametrize("name", [*CHARGES, ""])
def test_each_class_that_a_claim_takes_has_to_be_allocated(name: str) -> None:
    """All classes are, for the empty name."""
    uuid = audited.provider(CARDS[0])
    amounts = {other: n for other, n in CHARGES.items() if other != name}
    known = audited.lived(with_memory(), "running", OTHER, CARDS[0], FREE)
    known = dataclasses.replace(
        known,
        allocations=(
            collected_state.Allocation(
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
        assert found(known) == set()
        return
    (finding,) = checks.compare(known).findings
    assert (finding.kind, finding.is_safe) == (FindingKind.UNALLOCATED, True)
    assert (
        f" --allocation rp={uuid},{names.GPU_MEMORY_CLASS}=512,VGPU=1 "
    ) in finding.remedy


def test_one_command_sets_the_allocations_of_all_devices() -> None:
    """Another one would take away again what the first has set."""
    cards = (CARDS[0], CARDS[1])
    known = dataclasses.replace(
        audited.EMPTY,
        providers=tuple(
            collected_state.AuditedProvider(
                uuid=audited.provider(address),
                name=names.provider_name(ROOT.name, address),
                parent=ROOT.uuid,
                root=ROOT.uuid,
            )
            for address in cards
        ),
        consumers={OTHER: collected_state.ConsumerAllocations(allocations={})},
        inventories={
            ROOT.uuid: {"VCPU": Inventory(total=8)},
            audited.provider(CARDS[1]): {
                "VGPU": Inventory(total=6, reserved=6, max_unit=12)
            },
        },
    )
    flavor = nova_types.ServerFlavor(
        vcpus=1, memory_mb=0, root_gb=0, other_gb=0, extra_specs={}
    )
    server = nova_types.Server(
        uuid=OTHER, node=ROOT.name, project="p", user="u", flavor=flavor
    )
    known = audited.grown(
        known,
        servers=[(OTHER, server)],
        claims=[audited.claim(OTHER, address, FREE) for address in cards],
    )
    both = [
        f
        for f in checks.compare(known).findings
        if f.kind is FindingKind.UNALLOCATED
    ]
    assert [f.is_safe for f in both] == [True, True]
    (command,) = {f.remedy for f in both}
    room, _, allocation = command.partition(" && ")
    assert room.endswith(
        f" --resource VGPU:reserved=5 {audited.provider(CARDS[1])}"
    )
    parts = {ROOT.uuid: "VCPU=1"} | {
        audited.provider(address): "VGPU=1" for address in cards
    }
    words = [f"--allocation rp={u},{parts[u]}" for u in sorted(parts)]
    assert allocation.endswith(
        f" --project-id p --user-id u {' '.join(words)} {OTHER}"
    )


def test_a_source_that_said_not_all_is_told_of() -> None:
    known = dataclasses.replace(
        audited.EMPTY,
        unread={StateSource.KERNEL: "0000:3b:00.0 can't be read"},
    )
    gaps = checks.compare(known).gaps
    assert {g.source for g in gaps} == {StateSource.KERNEL.value}
    assert {g.reason for g in gaps} == {"0000:3b:00.0 can't be read"}


@pytest.mark.parametrize("kind", list(FindingKind))
def test_words_for_programs_are_of_one_form(kind: FindingKind) -> None:
    assert kind.value.replace("-", "").isalpha()
    assert kind.value.islower()


def test_of_two_looks_only_what_both_have_is_told() -> None:
    def finding(where: str) -> findings.AuditFinding:
        return findings.AuditFinding(
            kind=FindingKind.TYPED, where=where, reason="r", remedy="m"
        )

    first = findings.AuditReport(findings=(finding("a"), finding("b")))
    second = findings.AuditReport(findings=(finding("b"), finding("c")))
    assert second.intersect(first).findings == (finding("b"),)
