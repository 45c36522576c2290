# SPDX-License-Identifier: Apache-2.0
"""Of several matches, the one that Placement booked."""

import dataclasses
import itertools

import pytest

from nova_accel import claims, model, names
from tests import strategies

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


def booked(sizes: dict[str, int]) -> model.Booked:
    """Return allocations of so much memory on each card."""
    return {
        names.provider_uuid(ROOT.uuid, address): {"VGPU": 1, MEMORY: size}
        for address, size in sizes.items()
    } | {ROOT.uuid: {"VCPU": 1, "MEMORY_MB": 64}}


@pytest.mark.parametrize(
    "sizes",
    [dict(zip((A, B), p, strict=True)) for p in itertools.permutations(SIZES)],
)
def test_each_card_makes_what_was_booked_on_it(sizes: dict[str, int]) -> None:
    found = claims.plan(CONSUMER, GROUPS, SLOTS, ROOT, HOST, booked(sizes))
    made = {claim.device: charge(claim, claim.device) for claim in found}
    assert made == sizes


def charge(claim: model.Claim, address: str) -> int:
    """Return the memory that a claim's profile takes."""
    device = HOST.device(address)
    profile = device.profile(claim.profile) if device else None
    assert profile is not None
    return profile.charges[MEMORY]


def test_a_flavor_edited_since_is_still_served() -> None:
    """What was booked agrees with no match: it decides nothing."""
    small = booked({A: 1, B: 1})
    found = claims.plan(CONSUMER, GROUPS, SLOTS, ROOT, HOST, small)
    assert found == claims.plan(CONSUMER, GROUPS, SLOTS, ROOT, HOST)
