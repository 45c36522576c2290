# SPDX-License-Identifier: Apache-2.0
"""Slots are matched to groups, and a retry plans the same claims."""

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names
from tests.support import strategies

A, B = "0000:3b:00.0", "0000:af:00.0"
CONSUMER = "5c1d5a2e-7f2c-4f6e-9d4e-2b6f5a0c9d11"
ROOT = strategies.ROOT


def plan(claim_input: strategies.ClaimInput) -> tuple[model.Claim, ...]:
    return claim_plan.plan(
        CONSUMER, claim_input.groups, claim_input.slots, ROOT, claim_input.host
    )


def try_plan(
    claim_input: strategies.ClaimInput,
) -> tuple[model.Claim, ...] | None:
    try:
        return plan(claim_input)
    except errors.ClaimError:
        return None


def on_empty_host(claim_input: strategies.ClaimInput) -> strategies.ClaimInput:
    return dataclasses.replace(
        claim_input, host=strategies.roomy(claim_input.host)
    )


def made(
    host: model.HostState, claims: Iterable[model.Claim]
) -> model.HostState:
    """Return the host once the claims' partitions are made."""
    by_device = collections.defaultdict(list)
    for claim in claims:
        if claim.state is model.ClaimState.PLANNED:
            by_device[claim.device].append(claim)
    return dataclasses.replace(
        host,
        devices=tuple(
            _with(device, by_device[device.address]) for device in host.devices
        ),
    )


def _with(device: model.Device, new: list[model.Claim]) -> model.Device:
    remaining = device_capacity.remaining(
        device, [claim.profile for claim in new]
    )
    handles = {claim.handle for claim in new}
    partitions = tuple(p for p in device.partitions if p.handle not in handles)
    cut = tuple(
        model.Partition(
            profile=claim.profile, parent=claim.parent, handle=claim.handle
        )
        for claim in new
    )
    return dataclasses.replace(
        device,
        partitions=partitions + cut,
        profiles=tuple(
            dataclasses.replace(p, available=remaining[p.name])
            for p in device.profiles
        ),
    )


# -- laws ------------------------------------------------------------------


@given(strategies.claim_inputs(), st.randoms(use_true_random=False))
def test_the_order_of_inputs_does_not_matter(
    claim_input: strategies.ClaimInput, rng: random.Random
) -> None:
    devices = claim_input.host.devices
    other = strategies.ClaimInput(
        host=dataclasses.replace(
            claim_input.host, devices=tuple(rng.sample(devices, len(devices)))
        ),
        groups=tuple(rng.sample(claim_input.groups, len(claim_input.groups))),
        slots=tuple(rng.sample(claim_input.slots, len(claim_input.slots))),
    )
    assert try_plan(other) == try_plan(claim_input)


@given(strategies.claim_inputs())
def test_every_slot_is_used_once_and_every_group_served_by_one_device(
    claim_input: strategies.ClaimInput,
) -> None:
    claim_input = on_empty_host(claim_input)
    claims = plan(claim_input)
    assert sorted((c.provider, c.slot) for c in claims) == sorted(
        (s.provider, s.identifier) for s in claim_input.slots
    )
    assert len({c.handle for c in claims}) == len(claims)
    served = collections.Counter((c.provider, c.profile) for c in claims)
    # Groups of one trait may share a device; they are counted together.
    for trait in {t for g in claim_input.groups for t in g.required}:
        amount = sum(
            g.resources.get("VGPU", 0) + g.resources.get("PGPU", 0)
            for g in claim_input.groups
            if trait in g.required
        )
        claimed = sum(
            count
            for (provider, profile), count in served.items()
            if _trait(claim_input.host, provider, profile) == trait
        )
        assert amount == claimed


def _trait(host: model.HostState, provider: str, name: str) -> str:
    for device in host.devices:
        if names.provider_uuid(ROOT.uuid, device.address) == provider:
            profile = device.profile(name)
            assert profile is not None
            return profile.trait
    raise AssertionError(f"{provider} is no provider of the host")


@given(strategies.claim_inputs())
def test_a_claim_has_the_facts_of_its_device(
    claim_input: strategies.ClaimInput,
) -> None:
    for claim in plan(on_empty_host(claim_input)):
        device = claim_input.host.device(claim.device)
        assert device is not None
        assert claim.state is model.ClaimState.PLANNED
        assert claim.technology == device.technology
        assert claim.plugin == device.plugin
        if claim.technology == "mdev":
            profile = device.profile(claim.profile)
            assert profile is not None
            assert claim.type_id == profile.handles[claim.parent]
            assert claim.handle == names.mdev_uuid(claim.provider, claim.slot)
        else:
            assert claim.handle == claim.slot
            assert claim.members == device.members


@given(strategies.claim_inputs())
def test_a_second_plan_equals_the_first(
    claim_input: strategies.ClaimInput,
) -> None:
    first = try_plan(claim_input)
    assume(first)
    assert first is not None
    after = dataclasses.replace(
        claim_input, host=made(claim_input.host, first)
    )
    second = plan(after)
    assert {c.state for c in second} == {model.ClaimState.MADE}
    assert second == tuple(
        dataclasses.replace(c, state=model.ClaimState.MADE) for c in first
    )


def test_claims_are_in_the_order_of_their_providers() -> None:
    """One of two cards had the partition already when both were claimed."""
    first, second = strategies.card(A, 4), strategies.card(B, 4)
    for cut in ((0, 1), (1, 0), (0, 0), (1, 1)):
        cards = (
            strategies.card(A, 4, cut=cut[0]),
            strategies.card(B, 4, cut=cut[1]),
        )
        claims = plan(
            strategies.ClaimInput(
                host=model.HostState(devices=cards),
                groups=(
                    strategies.group("_A", first, first.profiles[0]),
                    strategies.group("_B", second, second.profiles[0]),
                ),
                slots=tuple(
                    strategies.slots_of(c)[0] for c in (first, second)
                ),
            )
        )
        providers = [claim.provider for claim in claims]
        assert providers == sorted(providers)


@pytest.mark.parametrize("cut", [(0, 1), (1, 0)])
def test_a_match_is_planned_again_once_it_is_made(
    cut: tuple[int, int],
) -> None:
    """Two matches are equally good; making one changes nothing."""
    cards = (
        strategies.card(A, 4, cut=cut[0]),
        strategies.card(B, 4, cut=cut[1]),
    )
    claim_input = strategies.ClaimInput(
        host=model.HostState(devices=cards),
        groups=tuple(
            strategies.group(f"_{n}", cards[0], cards[0].profiles[0], count)
            for n, count in enumerate((1, 1, 2))
        ),
        slots=tuple(s for c in cards for s in strategies.slots_of(c)[:2]),
    )
    first = plan(claim_input)
    host = made(claim_input.host, first)
    again = plan(dataclasses.replace(claim_input, host=host))
    assert [c.handle for c in again] == [c.handle for c in first]


@given(strategies.claim_inputs())
def test_existing_claims_equal_the_planned_ones(
    claim_input: strategies.ClaimInput,
) -> None:
    claims = try_plan(claim_input)
    assume(claims)
    assert claims is not None
    host = made(claim_input.host, claims)
    again = claim_plan.find_existing(CONSUMER, claim_input.slots, ROOT, host)
    assert sorted(c.handle for c in again) == sorted(c.handle for c in claims)
    by_handle = {c.handle: c for c in claims}
    for claim in again:
        assert claim == dataclasses.replace(
            by_handle[claim.handle], state=model.ClaimState.MADE
        )


@given(strategies.hosts())
def test_existing_claims_are_in_the_given_slots(
    host: model.HostState,
) -> None:
    slots = [s for d in host.devices for s in strategies.slots_of(d)]
    for slot in slots:
        for claim in claim_plan.find_existing(CONSUMER, [slot], ROOT, host):
            assert (claim.provider, claim.slot) == (
                slot.provider,
                slot.identifier,
            )
            device = host.device(claim.device)
            assert device is not None
            assert claim.handle in {p.handle for p in device.partitions}
    foreign = model.Slot(
        provider=ROOT.uuid, resource_class="VGPU", identifier="slot-0"
    )
    assert claim_plan.find_existing(CONSUMER, [foreign], ROOT, host) == ()


# -- compared with brute force ---------------------------------------------


def solutions(claim_input: strategies.ClaimInput) -> bool:
    """Return whether slots can be dealt to the groups, all of them.

    Every order of the slots is tried. A group's slots are of one provider,
    of the class that it requests, and of a device with its profile.
    """
    devices = {
        names.provider_uuid(ROOT.uuid, d.address): d
        for d in claim_input.host.devices
    }
    classes = {devices[s.provider].resource_class for s in claim_input.slots}
    pairs = [
        (group, name)
        for group in claim_input.groups
        for name in (classes | _named(group, claim_input.host))
        & group.resources.keys()
    ]
    sizes = [group.resources[name] for group, name in pairs]
    if sum(sizes) != len(claim_input.slots):
        return False
    for order in itertools.permutations(claim_input.slots):
        rest = iter(order)
        dealt = [list(itertools.islice(rest, size)) for size in sizes]
        if all(
            len({s.provider for s in hand}) == 1
            and devices[hand[0].provider].resource_class == name
            and any(
                p.trait in group.required
                for p in devices[hand[0].provider].profiles
            )
            for (group, name), hand in zip(pairs, dealt, strict=True)
        ):
            return True
    return not pairs


def _named(group: flavors.RequestGroup, host: model.HostState) -> set[str]:
    return {
        d.resource_class
        for d in host.devices
        for p in d.profiles
        if p.trait in group.required
    }


@st.composite
def any_inputs(draw: st.DrawFn) -> strategies.ClaimInput:
    """Draw groups and slots that need not fit together."""
    host = strategies.roomy(draw(strategies.hosts()))
    assume(host.devices)
    offered = [s for d in host.devices for s in strategies.slots_of(d)]
    slots = draw(
        st.lists(st.sampled_from(offered), min_size=1, max_size=5, unique=True)
    )
    offers = [(d, p) for d in host.devices for p in d.profiles]
    chosen = draw(
        st.lists(
            st.tuples(st.sampled_from(offers), st.integers(1, 3)),
            min_size=1,
            max_size=3,
        )
    )
    return strategies.ClaimInput(
        host=host,
        groups=tuple(
            strategies.group(f"G{n}", device, profile, count)
            for n, ((device, profile), count) in enumerate(chosen)
        ),
        slots=tuple(slots),
    )


@given(any_inputs())
def test_a_match_is_found_if_and_only_if_there_is_one(
    claim_input: strategies.ClaimInput,
) -> None:
    assert (try_plan(claim_input) is not None) == solutions(claim_input)


@pytest.mark.parametrize("first", [(1, 0), (0, 1)])
def test_the_match_that_has_room_is_planned_again(
    first: tuple[int, int],
) -> None:
    """Both cards know both profiles, each can make only one of them."""
    first_card, second_card = (
        strategies.card(A, *first),
        strategies.card(B, *reversed(first)),
    )
    claim_input = strategies.ClaimInput(
        host=model.HostState(devices=(first_card, second_card)),
        groups=(
            strategies.group("_A", first_card, first_card.profiles[0]),
            strategies.group("_B", first_card, first_card.profiles[1]),
        ),
        slots=(
            *strategies.slots_of(first_card)[:1],
            *strategies.slots_of(second_card)[:1],
        ),
    )
    claims = plan(claim_input)
    expected = {A: "P-1", B: "P-2"} if first[0] else {A: "P-2", B: "P-1"}
    assert {c.device: c.profile for c in claims} == expected
    # Later the other servers are gone and both cards can make both.
    later = made(claim_input.host, claims)
    later = dataclasses.replace(
        later,
        devices=tuple(
            dataclasses.replace(
                device,
                profiles=tuple(
                    dataclasses.replace(p, available=3)
                    for p in device.profiles
                ),
            )
            for device in later.devices
        ),
    )
    again = plan(dataclasses.replace(claim_input, host=later))
    assert {c.device: c.profile for c in again} == expected
    assert {c.state for c in again} == {model.ClaimState.MADE}
