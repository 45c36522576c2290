# SPDX-License-Identifier: Apache-2.0
"""A group with a slot gets that slot, and other groups don't."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.model import flavors, names
from tests.support import strategies
from tests.unit.nova_accel.claims import test_claim_plan

ROOT = strategies.ROOT


def plan(claim_input: strategies.ClaimInput) -> tuple[model.Claim, ...]:
    return claim_plan.plan(
        test_claim_plan.CONSUMER,
        claim_input.groups,
        claim_input.slots,
        ROOT,
        claim_input.host,
    )


@st.composite
def pinned_inputs(
    draw: st.DrawFn,
) -> tuple[strategies.ClaimInput, strategies.ClaimInput]:
    """Return groups and slots on an empty host, without and with a
    pinned group.
    """
    claim_input = test_claim_plan.on_empty_host(
        draw(strategies.claim_inputs())
    )
    devices = [d for d in claim_input.host.devices if d.profiles]
    assume(devices)
    device = draw(st.sampled_from(devices))
    assume(device.region is None)
    profile = draw(st.sampled_from(device.profiles))
    provider = names.provider_uuid(ROOT.uuid, device.address)
    taken = {s.identifier for s in claim_input.slots if s.provider == provider}
    free = sorted(set(device.slots) - taken)
    assume(free and len(profile.handles.keys() & set(free)) in (0, len(free)))
    identifier = draw(st.sampled_from(free))
    group = flavors.RequestGroup(
        suffix="_ATTACHED1",
        resources=dict(profile.charges),
        required=frozenset({profile.trait}),
        slot=(provider, identifier),
    )
    assume(matching.find_profile(group, device) == profile)
    slot = model.Slot(
        provider=provider,
        resource_class=device.resource_class,
        identifier=identifier,
    )
    extended = dataclasses.replace(
        claim_input,
        groups=(*claim_input.groups, group),
        slots=(*claim_input.slots, slot),
    )
    return claim_input, extended


@given(pinned_inputs())
def test_each_claim_is_of_its_group(
    both: tuple[strategies.ClaimInput, strategies.ClaimInput],
) -> None:
    _, claim_input = both
    try:
        pairs = claim_plan.plan_by_group(
            test_claim_plan.CONSUMER,
            claim_input.groups,
            claim_input.slots,
            ROOT,
            claim_input.host,
        )
    except errors.ClaimError:
        assume(False)
    devices = {d.address: d for d in claim_input.host.devices}
    for group, claim in pairs:
        profile = matching.find_profile(group, devices[claim.device])
        assert profile is not None and profile.name == claim.profile
    assert plan(claim_input) == tuple(claim for _, claim in pairs)


@given(pinned_inputs())
def test_a_pinned_group_gets_its_slot_and_the_others_keep_theirs(
    both: tuple[strategies.ClaimInput, strategies.ClaimInput],
) -> None:
    claim_input, extended = both
    before = plan(claim_input)
    try:
        after = plan(extended)
    except errors.ClaimError:
        assume(False)
    (claim,) = [c for c in after if c not in before and _is_of(c, extended)]
    assert claim.profile in {
        p.name
        for device in extended.host.devices
        for p in device.profiles
        if p.trait in extended.groups[-1].required
    }
    assert {(c.provider, c.slot, c.profile) for c in after} == {
        (c.provider, c.slot, c.profile) for c in (*before, claim)
    }


@given(pinned_inputs())
def test_claims_of_a_pinned_group_are_planned_again(
    both: tuple[strategies.ClaimInput, strategies.ClaimInput],
) -> None:
    """No partition is ever in the slot of another one."""
    _, extended = both
    try:
        first = plan(extended)
    except errors.ClaimError:
        assume(False)
    again = plan(
        dataclasses.replace(
            extended, host=test_claim_plan.made(extended.host, first)
        )
    )
    assert {(c.handle, c.profile) for c in again} == {
        (c.handle, c.profile) for c in first
    }
    assert all(
        c.state is model.ClaimState.MADE
        for c in again
        if c.technology not in model.UNDIVIDED
    )


def _is_of(claim: model.Claim, claim_input: strategies.ClaimInput) -> bool:
    return (claim.provider, claim.slot) == claim_input.groups[-1].slot


@given(pinned_inputs())
def test_a_lost_slot_is_named(
    both: tuple[strategies.ClaimInput, strategies.ClaimInput],
) -> None:
    claim_input, extended = both
    lost = dataclasses.replace(extended, slots=claim_input.slots)
    with pytest.raises(errors.ClaimError) as caught:
        plan(lost)
    assert "lost its slot" in str(caught.value)
