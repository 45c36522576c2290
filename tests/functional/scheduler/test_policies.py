# SPDX-License-Identifier: Apache-2.0
"""Each policy determines the card that a server gets."""

import fixtures
import pytest
from nova import exception

from filters import accelerator_filter, accelerator_weigher
from nova_accel import model
from nova_accel.model import names
from tests.functional.scheduler import scheduling
from tests.functional.scheduler.scheduling import (
    Cloud,
    Scheduler,
    one_host,
    refused,
    vgpus,
)
from tests.support.scheduler import scheduled

scheduler = scheduling.scheduler
log = scheduling.log

A, B, C = "0000:41:00.0", "0000:81:00.0", "0000:c1:00.0"


def node(number: int) -> str:
    return names.custom_name("ACCELERATOR", "NUMA", str(number))


# -- locality ---------------------------------------------------------------

HERE, THERE = (
    names.pcie_trait("0000:40:01.0"),
    names.pcie_trait("0000:80:01.0"),
)


@pytest.mark.parametrize(
    ("locality", "cards"),
    [
        (
            "nvlink",
            [(A,), (B, names.nvlink_trait(C)), (C, names.nvlink_trait(B))],
        ),
        pytest.param(
            *("pcie", [(A, HERE), (B, THERE), (C, THERE)]),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("numa", [(A, node(0)), (B, node(1)), (C, node(1))]),
            marks=pytest.mark.long,
        ),
    ],
)
def test_two_cards_are_near_each_other(
    cloud: Cloud,
    scheduler: Scheduler,
    log: fixtures.FakeLogger,
    locality: str,
    cards: list[tuple[str, ...]],
) -> None:
    providers = one_host(cloud, *cards)
    specs = vgpus("L40S-48Q", "L40S-48Q", locality=locality)

    (server,) = scheduler.boot(specs)

    assert cloud.devices_of(server) == {providers[B], providers[C]}
    # One of the two is full now; the third has no neighbour.
    cloud.call("DELETE", f"/allocations/{server}")
    cloud.give(providers[C], scheduled.charges("L40S-48Q"))
    names_of, _, why = refused(scheduler, log, specs).partition(": ")
    assert sorted(names_of.split(" and ")) == [
        "host1_accel_0000_41_00_0",
        "host1_accel_0000_81_00_0",
    ]
    assert why
    (anywhere,) = scheduler.boot(vgpus("L40S-48Q", "L40S-48Q"))
    assert cloud.devices_of(anywhere) == {providers[A], providers[B]}


def test_different_cards_although_one_has_room_for_both(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cards = one_host(cloud, (A,), (B,))
    both = ("L40S-8Q", "L40S-8Q")

    (together,) = scheduler.boot(vgpus(*both))
    (apart,) = scheduler.boot(vgpus(*both, locality="different_card"))

    assert len(cloud.devices_of(together)) == 1
    assert cloud.devices_of(apart) == set(cards.values())


def test_a_single_card_is_not_different_cards(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    one_host(cloud, (A,))
    specs = vgpus("L40S-8Q", "L40S-8Q", locality="different_card")

    assert refused(scheduler, log, specs) == (
        "host1_accel_0000_41_00_0: 2 of one card"
    )


# -- packing ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("packing", "chosen"),
    # Spread: the empty card. Pack: the fullest card. Best remaining: the
    # card on which a 24Q still fits afterwards.
    [
        pytest.param("spread", A, marks=pytest.mark.long),
        ("pack", B),
        pytest.param("best_remaining", C, marks=pytest.mark.long),
        ("", C),
    ],
)
def test_packing_chooses_the_card_of_a_small_profile(
    cloud: Cloud, scheduler: Scheduler, packing: str, chosen: str
) -> None:
    cards = one_host(cloud, (A,), (B,), (C,))
    cloud.occupy(cards[B], "L40S-24Q", 0)
    cloud.occupy(cards[C], "L40S-8Q", 0)
    cloud.occupy(cards[C], "L40S-4Q", 8)
    settings = {"packing": packing} if packing else {}

    (server,) = scheduler.boot(vgpus("L40S-4Q", **settings))

    assert cloud.devices_of(server) == {cards[chosen]}


def test_equal_sizes_use_cards_with_their_size(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    one_host(cloud, (A,), (B,), layout=model.Layout.EQUAL)
    sizes = ("L40S-8Q", "L40S-4Q")

    def cards() -> list[set[str]]:
        return [
            cloud.devices_of(server)
            for name in sizes
            for server in scheduler.boot(vgpus(name))
        ]

    first, second = cards()
    assert first != second
    # The traits of other sizes remain until the host's next pass.
    assert cards() == [first, second]


# -- several servers --------------------------------------------------------


def test_servers_of_one_request_get_a_whole_card_each(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    first = one_host(cloud, (A,), (B,))
    cloud.add_host("host2")
    second = cloud.add_card("host2", A)

    servers = scheduler.boot(vgpus("L40S-48Q"), count=3)

    providers = [provider for s in servers for provider in cloud.devices_of(s)]
    assert sorted(providers) == sorted([*first.values(), second])


def test_servers_of_one_request_share_what_geometry_allows(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    # Counters allow three 16Q on one card, its places two.
    cards = one_host(cloud, (A,), (B,))

    servers = scheduler.boot(vgpus("L40S-16Q"), count=4)

    providers = [provider for s in servers for provider in cloud.devices_of(s)]
    assert sorted(providers) == sorted([*cards.values()] * 2)


# -- states that Placement does not contain ---------------------------------


def test_a_drained_card_is_refused_though_it_has_room(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cards = one_host(cloud, (A,))
    cloud.add_traits(cards[A], names.DRAINED_TRAIT)

    assert refused(scheduler, log, vgpus("L40S-8Q")) == (
        "host1_accel_0000_41_00_0: drained by its operator"
    )


def test_a_profile_without_a_place_is_refused_though_it_is_counted(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    """Allocations are read where nothing else says what is on the cards."""
    cards = one_host(cloud, (A,), (B,))
    for card in [*cards.values()] * 2:
        cloud.give(card, scheduled.charges("L40S-16Q"))

    line = refused(scheduler, log, vgpus("L40S-16Q"))

    assert sorted(line.split("; ")) == [
        f"host1_accel_0000_{bus}_00_0: 1 L40S-16Q has no place beside"
        " 2 of 16384 MB (mixed sizes)"
        for bus in ("41", "81")
    ]
    (server,) = scheduler.boot(vgpus("L40S-8Q"))
    assert len(cloud.devices_of(server)) == 1


def test_allocations_are_read_until_a_card_is_sure(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    for number in range(4):
        cloud.add_host(f"host{number}")
        card = cloud.add_card(f"host{number}", A)
        cloud.give(card, scheduled.charges("L40S-24Q"))

    def count_reads() -> int:
        cloud.read_paths.clear()
        scheduler.boot(vgpus("L40S-16Q"))
        return sum("/resource_providers/" in p for p in cloud.read_paths)

    # Without the weigher the hosts have no order: each of them is read.
    assert count_reads() == 4
    (accel_filter,) = (
        f
        for f in scheduler.host_manager.enabled_filters
        if isinstance(f, accelerator_filter.AcceleratorFilter)
    )
    accel_filter._has_weigher = True
    assert count_reads() == 1
    cloud.add_host("sure")
    cloud.add_card("sure", A)
    assert count_reads() == 0


@pytest.mark.parametrize(
    "crowded", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))]
)
def test_a_later_server_of_a_request_is_refused_by_allocations(
    cloud: Cloud,
    scheduler: Scheduler,
    log: fixtures.FakeLogger,
    crowded: int,
) -> None:
    """One host has units for it, but no place."""
    cards = []
    for number in range(3):
        cloud.add_host(f"host{number}")
        cards.append(cloud.add_card(f"host{number}", A))
        for size in ["16Q"] * 2 if number == crowded else ["24Q"]:
            cloud.give(cards[-1], scheduled.charges(f"L40S-{size}"))
    (accel_filter,) = (
        f
        for f in scheduler.host_manager.enabled_filters
        if isinstance(f, accelerator_filter.AcceleratorFilter)
    )
    accel_filter._has_weigher = True
    weigher = accelerator_weigher.AcceleratorWeigher()
    scheduler.host_manager.weighers = [weigher]

    servers = scheduler.boot(vgpus("L40S-16Q"), count=2)

    taken = {card for server in servers for card in cloud.devices_of(server)}
    assert cards[crowded] not in taken
    assert len(taken) == 2


# -- extra specs ------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("numa_policy", "required, preferred, none"),
        ("locality", "nvlink, pcie, numa, different_card, any"),
        ("packing", "pack, spread, best_remaining, exclusive"),
    ],
)
def test_an_invalid_value_is_in_the_servers_fault(
    cloud: Cloud, scheduler: Scheduler, key: str, allowed: str
) -> None:
    one_host(cloud, (A,))

    with pytest.raises(exception.NoValidHost) as caught:
        scheduler.boot(vgpus("L40S-8Q", **{key: "typo"}))

    fault = str(caught.value.format_message())
    assert f"accelerator:{key}" in fault
    assert "typo" in fault
    assert allowed in fault
    # Nova keeps 255 characters of a fault.
    assert len(fault) < 255
