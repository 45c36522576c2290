# SPDX-License-Identifier: Apache-2.0
"""A match that agrees with the allocations is preferred."""

import dataclasses
import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.claims import claim_plan
from nova_accel.model import names
from tests.support import strategies

CONSUMER = "5c1d5a2e-7f2c-4f6e-9d4e-2b6f5a0c9d11"
ROOT = strategies.ROOT
A, B = "0000:3b:00.0", "0000:af:00.0"
MEMORY = names.GPU_MEMORY_CLASS
SIZES = (4096, 8192)


def gpu(address: str) -> model.Device:
    """Return a card that can make one of 4 GiB and one of 8 GiB."""
    device = strategies.card(address, 1, 1)
    return dataclasses.replace(
        device,
        counters={"VGPU": 4, MEMORY: 16384},
        profiles=tuple(
            dataclasses.replace(profile, charges={"VGPU": 1, MEMORY: size})
            for profile, size in zip(device.profiles, SIZES, strict=True)
        ),
    )


HOST = model.HostState(devices=(gpu(A), gpu(B)))
SLOTS = tuple(strategies.slots_of(d)[0] for d in HOST.devices)
GROUPS = tuple(
    strategies.group(suffix, HOST.devices[0], profile)
    for suffix, profile in zip(
        ("_S", "_L"), HOST.devices[0].profiles, strict=True
    )
)


def allocate(sizes: dict[str, int]) -> model.Allocations:
    """Return allocations of so much memory on each card."""
    return {
        names.provider_uuid(ROOT.uuid, address): {"VGPU": 1, MEMORY: size}
        for address, size in sizes.items()
    } | {ROOT.uuid: {"VCPU": 1, "MEMORY_MB": 64}}


@pytest.mark.parametrize(
    "sizes",
    [dict(zip((A, B), p, strict=True)) for p in itertools.permutations(SIZES)],
)
def test_each_card_makes_the_allocated_profile(sizes: dict[str, int]) -> None:
    claims = claim_plan.plan(
        CONSUMER, GROUPS, SLOTS, ROOT, HOST, allocate(sizes)
    )
    made = {claim.device: charge(claim, claim.device) for claim in claims}
    assert made == sizes


@pytest.mark.parametrize(
    "sizes",
    [dict(zip((A, B), p, strict=True)) for p in itertools.permutations(SIZES)],
)
def test_a_card_need_not_cover_classes_that_it_lacks(
    sizes: dict[str, int],
) -> None:
    groups = tuple(
        dataclasses.replace(
            group, resources={**group.resources, "CUSTOM_LICENCE": 1}
        )
        for group in GROUPS
    )
    claims = claim_plan.plan(
        CONSUMER, groups, SLOTS, ROOT, HOST, allocate(sizes)
    )
    assert {c.device: charge(c, c.device) for c in claims} == sizes


def charge(claim: model.Claim, address: str) -> int:
    """Return the memory that a claim's profile takes."""
    device = HOST.device(address)
    profile = device.profile(claim.profile) if device else None
    assert profile is not None
    return profile.charges[MEMORY]


@pytest.mark.parametrize("both", [A, B])
def test_the_allocation_of_a_card_covers_the_sum_of_its_groups(
    both: str,
) -> None:
    host = model.HostState(
        devices=tuple(
            dataclasses.replace(
                device,
                profiles=tuple(
                    dataclasses.replace(p, available=2)
                    for p in device.profiles
                ),
            )
            for device in HOST.devices
        )
    )
    small, large = GROUPS
    groups = (small, large, dataclasses.replace(large, suffix="_M"))
    slots = [
        slot
        for device in host.devices
        for slot in strategies.slots_of(device)[: 1 + (device.address == both)]
    ]
    sizes = {A: 8192, B: 8192} | {both: 4096 + 8192}
    allocated = {
        names.provider_uuid(ROOT.uuid, address): {
            "VGPU": 1 + (address == both),
            MEMORY: size,
        }
        for address, size in sizes.items()
    }

    claims = claim_plan.plan(CONSUMER, groups, slots, ROOT, host, allocated)

    made = dict.fromkeys(sizes, 0)
    for claim in claims:
        made[claim.device] += charge(claim, claim.device)
    assert made == sizes


def test_allocations_that_agree_with_no_match_are_ignored() -> None:
    """The flavor was edited after the server was scheduled."""
    small = allocate({A: 1, B: 1})
    claims = claim_plan.plan(CONSUMER, GROUPS, SLOTS, ROOT, HOST, small)
    assert claims == claim_plan.plan(CONSUMER, GROUPS, SLOTS, ROOT, HOST)


# -- claims without an allocation -----------------------------------------

SERVERS = ("server-1", "server-2", "server-3")
CHARGES = {"VGPU": 1, MEMORY: 4096}


def claims_of(*consumers: str) -> list[model.Claim]:
    """Return one claim for each consumer, each in a slot of its own."""
    return [
        model.Claim(
            consumer=consumer,
            provider="card",
            device="0000:3b:00.0",
            profile="P",
            slot=f"slot-{number}",
            parent="0000:3b:00.0",
            handle=f"handle-{number}",
            technology="mdev",
        )
        for number, consumer in enumerate(consumers)
    ]


def missing_classes(
    allocated: Mapping[str, Mapping[str, int]], *consumers: str
) -> list[tuple[str, str, str]]:
    """Return consumer, slot and class of each missing allocation."""
    claimed = claims_of(*consumers)
    unallocated = claim_plan.find_unallocated(
        claimed, {c.key: CHARGES for c in claimed}, {"card": allocated}
    )
    return sorted(
        (consumer, slot, name) for consumer, _, slot, name in unallocated
    )


def missing(
    allocated: dict[str, int], *consumers: str
) -> list[tuple[str, str]]:
    """Return consumer and slot, with as much allocated of each class."""
    missing_by_class = missing_classes(
        {
            consumer: {name: n * amount for name, amount in CHARGES.items()}
            for consumer, n in allocated.items()
        },
        *consumers,
    )
    slots = sorted(
        {(consumer, slot) for consumer, slot, _ in missing_by_class}
    )
    assert len(missing_by_class) == len(slots) * len(CHARGES)
    return slots


def test_a_claim_without_an_allocation_is_found() -> None:
    assert missing({"server-1": 1}, *SERVERS[:2]) == [("server-2", "slot-1")]
    twice = ("server-1", "server-1")
    assert missing({"server-1": 1}, *twice) == [("server-1", "slot-1")]
    assert missing({"server-1": 2}, *twice) == []
    assert missing({"server-2": 1}, *SERVERS[:2]) == [("server-1", "slot-0")]


@pytest.mark.parametrize("name", CHARGES)
def test_each_class_is_compared(name: str) -> None:
    rest = {other: n for other, n in CHARGES.items() if other != name}
    allocated = {"server-1": CHARGES, "server-2": rest}
    assert missing_classes(allocated, *SERVERS[:2]) == [
        ("server-2", "slot-1", name)
    ]


def test_the_missing_amount_is_charge_minus_allocation() -> None:
    (claim,) = claims_of("server-1")
    allocated = {"card": {"server-1": {"VGPU": 1, MEMORY: 1024}}}
    assert claim_plan.find_unallocated(
        [claim], {claim.key: CHARGES}, allocated
    ) == {(*claim.key, MEMORY): CHARGES[MEMORY] - 1024}


def test_an_allocation_of_a_migration_counts_for_its_server() -> None:
    """The server of a consumer without claims is unknown."""
    assert missing({"migration": 1}, "server-1") == []
    assert missing({"migration": 1}, *SERVERS[:2]) == [("server-2", "slot-1")]


def test_a_provider_with_unknown_allocations_is_ignored() -> None:
    (claim,) = claims_of("server-1")
    charges = {claim.key: CHARGES}
    assert claim_plan.find_unallocated([claim], charges, {}) == {}


def test_only_classes_that_a_device_counts_are_charged() -> None:
    device = gpu(A)
    claim = dataclasses.replace(
        claims_of("server-1")[0], profile=device.profiles[1].name
    )
    assert claim_plan.claim_charges(device, claim) == {"VGPU": 1, MEMORY: 8192}
    uncounted = dataclasses.replace(device, counters={"VGPU": 4})
    assert claim_plan.claim_charges(uncounted, claim) == {"VGPU": 1}


@given(st.lists(st.sampled_from(SERVERS)), st.data())
def test_claims_minus_allocations_are_unallocated(
    consumers: list[str], data: st.DataObject
) -> None:
    amounts = st.dictionaries(
        st.sampled_from((*SERVERS, "migration")), st.integers(0, 4)
    )
    allocated = data.draw(amounts)
    gap = len(consumers) - sum(allocated.values())
    assert len(missing(allocated, *consumers)) == max(0, gap)
