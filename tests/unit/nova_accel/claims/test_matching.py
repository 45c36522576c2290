# SPDX-License-Identifier: Apache-2.0
"""The search finds every match, in bounded time."""

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import assume, given

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.model import flavors, names
from tests.support import strategies
from tests.support.scheduler import scheduled
from tests.support.scheduler.judged_hosts import nvidia_card

CONSUMER = "5c1d5a2e-7f2c-4f6e-9d4e-2b6f5a0c9d11"
ROOT = strategies.ROOT
# Without a bound these take 20 s and more; a busy machine takes 0.1 s.
MOST_SECONDS = 2.0


# -- completeness -------------------------------------------------------------


@given(strategies.claim_inputs())
def test_a_server_is_refused_only_if_no_match_has_room(
    claim_input: strategies.ClaimInput,
) -> None:
    assume(len(claim_input.slots) <= 5)

    def is_possible(groups: Sequence[flavors.RequestGroup]) -> bool:
        try:
            claim_plan.plan(
                CONSUMER, groups, claim_input.slots, ROOT, claim_input.host
            )
        except errors.ClaimError:
            return False
        return True

    assert is_possible(claim_input.groups) == any(
        map(is_possible, ways_of(claim_input))
    )


def ways_of(
    claim_input: strategies.ClaimInput,
) -> Iterator[list[flavors.RequestGroup]]:
    """Yield the groups, split so that each names its slot.

    The slots of a device are dealt in their own order.
    """
    devices = {
        names.provider_uuid(ROOT.uuid, device.address): device
        for device in claim_input.host.devices
    }
    groups = sorted(claim_input.groups, key=lambda group: group.suffix)
    counts = [
        max(group.resources.get(name, 0) for name in names_of(claim_input))
        for group in groups
    ]
    for slots in itertools.permutations(claim_input.slots):
        ordered = sorted(slots, key=lambda slot: slot.provider)
        if any(
            slot.provider == other.provider
            and slot.identifier > other.identifier
            for slot, other in itertools.pairwise(ordered)
        ):
            continue
        rest = iter(slots)
        parts = [list(itertools.islice(rest, count)) for count in counts]
        if all(
            len({slot.provider for slot in part}) == 1
            and matching.find_profile(group, devices[part[0].provider])
            and group.resources.get(part[0].resource_class)
            for group, part in zip(groups, parts, strict=True)
        ):
            yield [
                dataclasses.replace(
                    group,
                    suffix=f"{number:02d}_{place}",
                    slot=(slot.provider, slot.identifier),
                )
                for number, (group, part) in enumerate(
                    zip(groups, parts, strict=True)
                )
                for place, slot in enumerate(part)
            ]


def names_of(claim_input: strategies.ClaimInput) -> set[str]:
    return {slot.resource_class for slot in claim_input.slots}


# -- in bounded time ----------------------------------------------------------

ALIKE = ("L40S-16Q",) * 8
ALTERNATING = ("L40S-16Q", "L40S-16A") * 4
DIFFERENT = tuple(f"L40S-{n}Q" for n in (1, 2, 3, 4, 6, 8, 12, 16))


@pytest.mark.parametrize("has_nodes", [False, True])
@pytest.mark.parametrize("is_allocated", [False, True])
@pytest.mark.parametrize("types", [ALIKE, ALTERNATING, DIFFERENT])
@pytest.mark.parametrize(
    ("full", "expected"), [(8, False), (1, False), (0, True)]
)
def test_eight_groups_on_eight_cards_are_matched_in_time(
    types: tuple[str, ...],
    full: int,
    expected: bool,
    is_allocated: bool,
    has_nodes: bool,
) -> None:
    groups = [
        dataclasses.replace(
            group,
            required=group.required
            | ({f"{names.NUMA_PREFIX}{number % 2}"} if has_nodes else set()),
        )
        for number, group in enumerate(
            flavors.parse_groups(scheduled.vgpus(*types))
        )
    ]
    devices = tuple(card(number, number >= 8 - full) for number in range(8))
    slots = tuple(strategies.slots_of(device)[0] for device in devices)
    allocated = {
        slot.provider: dict(group.resources)
        for slot, group in zip(slots, groups, strict=True)
    }
    begun = time.process_time()
    try:
        claims = claim_plan.plan(
            CONSUMER,
            groups,
            slots,
            ROOT,
            model.HostState(devices=devices),
            allocated if is_allocated else {},
        )
    except errors.ClaimError:
        claims = ()

    assert time.process_time() - begun < MOST_SECONDS
    assert bool(claims) is expected


def card(number: int, is_full: bool) -> model.Device:
    """Return a card, with a partition of the largest type if it is full."""
    device = nvidia_card(
        f"0000:{0x41 + number:02x}:00.0",
        "L40S",
        model.Layout.MIXED,
        Random(0),  # noqa: S311 - no secret
    )
    if not is_full:
        return device
    largest = max(device.profiles, key=lambda profile: profile.size)
    partition = model.Partition(
        profile=largest.name, parent=device.address, handle="full", start=0
    )
    return dataclasses.replace(
        device,
        partitions=(partition,),
        profiles=tuple(
            dataclasses.replace(profile, available=0)
            for profile in device.profiles
        ),
    )
