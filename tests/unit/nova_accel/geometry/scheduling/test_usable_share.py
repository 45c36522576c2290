# SPDX-License-Identifier: Apache-2.0
"""Usable share of hosts: by its definition, and what it prefers."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.catalog import loader
from nova_accel.geometry.scheduling import usable_share, vgpu_geometry
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled

CLASS = "CUSTOM_PCI_SHARE"
GEOMETRY = vgpu_geometry.VgpuGeometry(loader.load())
Requested = tuple[int, int, int, int]


def build_groups(number: int, units: int) -> list[flavors.RequestGroup]:
    return [
        flavors.RequestGroup(suffix=f"_{n}", resources={CLASS: units})
        for n in range(number)
    ]


def build_shares(usual: Sequence[Requested]) -> usable_share.UsableShares:
    """Return shares for requests: vCPUs, MiB, number and units of groups."""
    shapes = tuple(
        (
            usable_share.build_shape(
                vcpus, memory_mb, build_groups(number, units)
            ),
            1 / len(usual),
        )
        for vcpus, memory_mb, number, units in usual
    )
    return usable_share.UsableShares(GEOMETRY, lambda: shapes)


def build_cards(free: Sequence[int]) -> list[providers.Provider]:
    """Return cards of 8 units each with so many free ones."""
    return [
        providers.Provider(
            uuid=f"card-{number}",
            capacities={
                CLASS: providers.ClassCapacity(capacity=8, used=8 - units)
            },
        )
        for number, units in enumerate(free)
    ]


def compute_value(
    usual: Sequence[Requested], free: Sequence[int], vcpus: int, memory_mb: int
) -> float:
    """Return the usable share by its definition."""
    value = 0.0
    for cpu, memory, number, units in usual:
        fitting = min(
            sum(f // units for f in free) // number,
            vcpus // cpu,
            memory_mb // memory,
        )
        if fitting > 0:
            reachable = sum(f for f in free if f >= units) / 8
            filled = fitting * number * units / 8
            value += (0.8 * reachable + 0.2 * filled) / len(usual)
    return value


REQUESTED = st.tuples(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.integers(1, 8)
)


@given(
    usual=st.lists(REQUESTED, min_size=1, max_size=8),
    free=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    room=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    requested=REQUESTED,
)
def test_loss_is_that_of_the_definition(
    usual: list[Requested],
    free: list[int],
    room: tuple[int, int],
    requested: Requested,
) -> None:
    vcpus, memory_mb, _, units = requested
    free_after = free.copy()
    added = {}
    if (largest := max(free)) >= units:
        free_after[free.index(largest)] -= units
        added = {f"card-{free.index(largest)}": build_groups(1, units)}
    room_after = max(0, room[0] - vcpus), max(0, room[1] - memory_mb)

    loss = (
        build_shares(usual)
        .measure()
        .compute(
            build_cards(free),
            added,
            usable_share.HostRoom(*room),
            usable_share.HostRoom(*room_after),
        )
    )

    expected = compute_value(usual, free, *room) - compute_value(
        usual, free_after, *room_after
    )
    assert loss.usable == pytest.approx(expected, abs=1e-5)
    assert loss.usable >= 0
    assert loss.free == pytest.approx(sum(free) / 8, abs=1e-5)


def test_a_used_card_loses_less_than_a_whole_one() -> None:
    shares = build_shares([(1, 1, 1, 8), (1, 1, 1, 2)])
    whole, used = build_cards([8, 3])

    losses = [
        shares.compute_card_loss(card, build_groups(1, 2))
        for card in (used, whole)
    ]

    assert losses == sorted(losses)
    assert losses[0] < losses[1]


def test_vgpus_reach_what_they_can_fill() -> None:
    """Two L40S-16Q fit on an empty card, one beside an L40S-24Q.

    The free share of a card is more than its places: a third of an empty one
    is of no use to them.
    """
    (usual,) = scheduled.asks("L40S-16Q").groups
    shapes = ((usable_share.build_shape(1, 1, [usual]), 1.0),)
    shares = usable_share.UsableShares(GEOMETRY, lambda: shapes)
    card = scheduled.card(
        "card", traits=[names.model_trait("10de", "L40S")], allocations=None
    )

    losses = [
        shares.compute_card_loss(card, scheduled.asks(name).groups)
        for name in ("L40S-24Q", "L40S-16Q", "L40S-48Q")
    ]

    assert losses == pytest.approx([1 / 3, 1 / 3, 2 / 3], abs=1e-5)


def test_cpu_that_cards_need_is_lost_first_elsewhere() -> None:
    """A server without accelerators goes where its vCPUs are spare."""
    shares = build_shares([(8, 1, 1, 8)])
    cards = build_cards([8, 8])

    scarce, spare = (
        shares.measure()
        .compute(
            cards,
            {},
            usable_share.HostRoom(vcpus, 100),
            usable_share.HostRoom(vcpus - 8, 100),
        )
        .usable
        for vcpus in (16, 32)
    )

    assert scarce > spare == 0


def test_a_host_without_cards_loses_nothing() -> None:
    shares = build_shares([(8, 1, 1, 8)])

    assert shares.measure().compute([], {}).usable == 0


def test_unknown_room_limits_nothing() -> None:
    shares = build_shares([(0, 0, 1, 4), (64, 1 << 20, 1, 4)])

    loss = shares.measure().compute(
        build_cards([8]), {"card-0": build_groups(1, 4)}
    )

    assert loss.usable == pytest.approx(0.5)


def test_without_requests_nothing_is_lost() -> None:
    shares = build_shares([])
    cards = build_cards([8, 4])

    loss = shares.measure().compute(cards, {"card-0": build_groups(1, 4)})

    assert loss == (0, 1.5, usable_share.PLENTY)
