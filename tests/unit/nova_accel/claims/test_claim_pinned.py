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


def plan(booking: strategies.Booking) -> tuple[model.Claim, ...]:
    return claim_plan.plan(
        test_claim_plan.CONSUMER,
        booking.groups,
        booking.slots,
        ROOT,
        booking.host,
    )


@st.composite
def attached_bookings(
    draw: st.DrawFn,
) -> tuple[strategies.Booking, strategies.Booking]:
    """Return groups and slots on an empty host, without and with a
    pinned group.
    """
    booking = test_claim_plan.on_empty_host(draw(strategies.bookings()))
    devices = [d for d in booking.host.devices if d.profiles]
    assume(devices)
    device = draw(st.sampled_from(devices))
    assume(device.region is None)
    profile = draw(st.sampled_from(device.profiles))
    provider = names.provider_uuid(ROOT.uuid, device.address)
    taken = {s.identifier for s in booking.slots if s.provider == provider}
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
        booking,
        groups=(*booking.groups, group),
        slots=(*booking.slots, slot),
    )
    return booking, extended


@given(attached_bookings())
def test_a_pinned_group_gets_its_slot_and_the_others_keep_theirs(
    both: tuple[strategies.Booking, strategies.Booking],
) -> None:
    booking, extended = both
    before = plan(booking)
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


@given(attached_bookings())
def test_claims_of_a_pinned_group_are_planned_again(
    both: tuple[strategies.Booking, strategies.Booking],
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


def _is_of(claim: model.Claim, booking: strategies.Booking) -> bool:
    return (claim.provider, claim.slot) == booking.groups[-1].slot


@given(attached_bookings())
def test_a_lost_slot_is_named(
    both: tuple[strategies.Booking, strategies.Booking],
) -> None:
    booking, extended = both
    lost = dataclasses.replace(extended, slots=booking.slots)
    with pytest.raises(errors.ClaimError) as caught:
        plan(lost)
    assert "lost its slot" in str(caught.value)
