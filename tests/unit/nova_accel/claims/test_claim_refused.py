# SPDX-License-Identifier: Apache-2.0
"""Impossible claims are refused with the reason and a hint."""

import dataclasses
import time
from collections.abc import Iterable

import pytest

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.model import flavors, names
from tests.support import strategies
from tests.support.hosts import shapes
from tests.support.strategies import card

CONSUMER = "5c1d5a2e-7f2c-4f6e-9d4e-2b6f5a0c9d11"
ROOT = strategies.ROOT
A, B = "0000:3b:00.0", "0000:af:00.0"


def refusal(
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    *devices: model.Device,
) -> str:
    host = model.HostState(devices=devices)
    with pytest.raises(errors.ClaimError) as caught:
        claim_plan.plan(CONSUMER, groups, slots, ROOT, host)
    assert caught.value.consumer == CONSUMER
    assert CONSUMER in str(caught.value)
    return str(caught.value)


def test_a_slot_of_no_device_is_refused() -> None:
    device = card(A, 4)
    message = refusal(
        [strategies.group("_G", device, device.profiles[0])],
        strategies.slots_of(device)[:1],
        card(B, 4),
    )
    provider = names.provider_uuid(ROOT.uuid, A)
    assert f"slot-0 belongs to resource provider {provider}" in message
    assert "nova-accel inspect" in message


def test_slots_that_no_group_requested_are_refused() -> None:
    device = card(A, 4, 4)
    message = refusal(
        [strategies.group("_G", device, device.profiles[1], 1)],
        strategies.slots_of(device)[:2],
        device,
    )
    assert "group _G wants 1 VGPU with CUSTOM_VGPU_TEST_P_2" in message
    assert f"2 slots of {A} (P-1, P-2)" in message
    assert "trait_GROUP:<profile trait>=required" in message


def test_a_group_that_names_no_profile_of_several_is_refused() -> None:
    device = card(A, 4, 4)
    group = flavors.RequestGroup(suffix="", resources={"VGPU": 1})
    message = refusal([group], strategies.slots_of(device)[:1], device)
    assert "group (unsuffixed) wants 1 VGPU with any profile" in message


def test_a_group_that_names_no_profile_gets_the_only_one() -> None:
    device = card(A, 4)
    group = flavors.RequestGroup(suffix="", resources={"VGPU": 1})
    (claim,) = claim_plan.plan(
        CONSUMER,
        [group],
        strategies.slots_of(device)[:1],
        ROOT,
        model.HostState(devices=(device,)),
    )
    assert claim.profile == "P-1"


def test_a_profile_of_another_card_is_refused() -> None:
    device, other = card(A, 4, 4), card(B, 4)
    refusal(
        [strategies.group("_G", device, device.profiles[1])],
        strategies.slots_of(other)[:1],
        device,
        other,
    )


def test_a_group_whose_slot_nova_did_not_claim_is_refused() -> None:
    """Nova had an old view of one of two providers."""
    device = card(A, 4)
    whole = shapes.whole_card(B)
    message = refusal(
        [
            strategies.group("_A", device, device.profiles[0]),
            strategies.group("_B", whole, whole.profiles[0]),
        ],
        strategies.slots_of(device)[:1],
        device,
        whole,
    )
    assert "group _B wants 1 PGPU" in message


def test_a_full_device_is_refused_before_anything_is_made() -> None:
    device = card(A, 1)
    message = refusal(
        [strategies.group("_G", device, device.profiles[0], 2)],
        strategies.slots_of(device)[:2],
        device,
    )
    assert f"{A} can make no more P-1" in message


def test_a_partition_that_is_made_needs_no_room() -> None:
    device = card(A, 0, cut=2)
    claims = claim_plan.plan(
        CONSUMER,
        [strategies.group("_G", device, device.profiles[0], 2)],
        strategies.slots_of(device)[:2],
        ROOT,
        model.HostState(devices=(device,)),
    )
    assert {c.state for c in claims} == {model.ClaimState.MADE}


def test_sixteen_equal_groups_are_refused_within_seconds() -> None:
    """Sixteen full cards: a search of all 16! ways would never end."""
    cards = [card(f"0000:{bus:02x}:00.0", 0) for bus in range(16)]
    started = time.monotonic()
    refusal(
        [
            strategies.group(f"_{n:02}", device, device.profiles[0])
            for n, device in enumerate(cards)
        ],
        [strategies.slots_of(device)[0] for device in cards],
        *cards,
    )
    assert time.monotonic() - started < 5


def test_a_slot_that_cannot_make_the_profile_is_refused_by_name() -> None:
    """A VF whose types can't be read offers none of the card's profiles."""
    slots = ("0000:3b:00.4", "0000:3b:00.5")
    device = dataclasses.replace(
        card(A, 2),
        slots=slots,
        profiles=(
            model.Profile(
                name="P-1",
                trait=strategies.profile_trait("P-1"),
                charges={"VGPU": 1},
                available=1,
                handles={slots[1]: "test-1"},
            ),
        ),
    )
    message = refusal(
        [strategies.group("_G", device, device.profiles[0])],
        strategies.slots_of(device)[:1],
        device,
    )
    assert f"{slots[0]} can't make P-1" in message
