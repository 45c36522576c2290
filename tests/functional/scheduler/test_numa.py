# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler chooses cards on the guest's NUMA nodes."""

from typing import Any

import fixtures
import pytest
from nova import exception, objects

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
ONE_NODE = {"hw:numa_nodes": "1"}


def node(number: int) -> str:
    return names.custom_name("ACCELERATOR", "NUMA", str(number))


def topology(busy: int | None = None) -> Any:
    """Return two cells; the ``busy`` one has no room for a guest."""
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=n,
                socket=n,
                cpuset={2 * n, 2 * n + 1},
                pcpuset=set(),
                memory=1024,
                cpu_usage=0,
                memory_usage=1000 if n == busy else 0,
                pinned_cpus=set(),
                siblings=[{2 * n}, {2 * n + 1}],
                mempages=[
                    objects.NUMAPagesTopology(
                        size_kb=4, total=262144, used=0, reserved=0
                    )
                ],
                network_metadata=objects.NetworkMetadata(
                    physnets=set(), tunneled=False
                ),
            )
            for n in (0, 1)
        ]
    )


@pytest.mark.parametrize("guest", [ONE_NODE, {}])
@pytest.mark.parametrize(("busy", "near"), [(0, B), (1, A)])
@pytest.mark.parametrize("policy", ["required", "preferred"])
def test_the_card_is_on_the_guests_node(
    cloud: Cloud,
    scheduler: Scheduler,
    guest: dict[str, str],
    busy: int,
    near: str,
    policy: str,
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)))
    cloud.cells["host1"] = topology(busy)

    (server,) = scheduler.boot(vgpus("L40S-8Q", numa_policy=policy) | guest)

    assert cloud.devices_of(server) == {cards[near]}


def test_each_of_two_servers_gets_the_card_of_its_own_node(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)))
    cloud.cells["host1"] = topology()

    first, second = scheduler.boot(
        vgpus("L40S-48Q", numa_policy="required") | ONE_NODE, count=2
    )

    used = cloud.devices_of(first) | cloud.devices_of(second)
    assert used == {cards[A], cards[B]}


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        (ONE_NODE, "the guest on 1"),
        ({}, "which has no room for the guest (room on: 1)"),
    ],
)
def test_a_card_on_another_node_is_refused_only_if_required(
    cloud: Cloud,
    scheduler: Scheduler,
    log: fixtures.FakeLogger,
    guest: dict[str, str],
    words: str,
) -> None:
    cards = one_host(cloud, (A, node(0)))
    cloud.cells["host1"] = topology(busy=0)
    must = vgpus("L40S-8Q", numa_policy="required") | guest

    assert refused(scheduler, log, must) == (
        f"host1_accel_0000_41_00_0: on NUMA node 0, {words}"
    )
    for policy in ("preferred", "none"):
        (server,) = scheduler.boot(
            vgpus("L40S-8Q", numa_policy=policy) | guest
        )
        assert cloud.devices_of(server) == {cards[A]}


def test_without_a_numa_policy_packing_decides(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)))
    cloud.cells["host1"] = topology(busy=1)
    cloud.occupy(cards[B], "L40S-8Q", 0)

    (far,) = scheduler.boot(
        vgpus("L40S-8Q", numa_policy="none", packing="pack")
    )
    (near,) = scheduler.boot(vgpus("L40S-8Q", packing="pack"))

    assert cloud.devices_of(far) == {cards[B]}
    assert cloud.devices_of(near) == {cards[A]}


def test_both_devices_of_a_guest_without_topology_are_on_one_node(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)), (C, node(1)))
    cloud.cells["host1"] = topology()
    specs = vgpus("L40S-48Q", "L40S-48Q", numa_policy="required")

    (server,) = scheduler.boot(specs)

    assert cloud.devices_of(server) == {cards[B], cards[C]}


def test_a_guest_on_both_nodes_may_have_a_card_of_each(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)))
    cloud.cells["host1"] = topology()
    specs = vgpus("L40S-48Q", "L40S-48Q", numa_policy="required")

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(specs)
    (server,) = scheduler.boot(specs | {"hw:numa_nodes": "2"})

    assert cloud.devices_of(server) == set(cards.values())


def test_reasons_of_each_card_are_logged_in_one_line(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cards = one_host(cloud, (A, node(0)), (B, node(1)), (C, node(1)))
    cloud.cells["host1"] = topology(busy=0)
    for _ in range(2):
        cloud.give(cards[C], scheduled.charges("L40S-16Q"))
    cloud.add_traits(cards[B], names.FAULTED_TRAIT)

    line = refused(scheduler, log, vgpus("L40S-16Q", numa_policy="required"))

    assert sorted(line.split("; ")) == [
        "host1_accel_0000_41_00_0: on NUMA node 0, which has no room for"
        " the guest (room on: 1)",
        "host1_accel_0000_81_00_0: at fault",
        "host1_accel_0000_c1_00_0: 1 L40S-16Q has no place beside"
        " 2 of 16384 MB (mixed sizes)",
    ]
