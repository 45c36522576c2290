# SPDX-License-Identifier: Apache-2.0
"""Claims of many servers, concurrently and after restarts."""

import dataclasses
import itertools
import logging
import threading

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import snapshot
from nova_accel.host.execute import action_executor
from nova_accel.model import actions, names
from tests.lab import fakehost
from tests.support.hosts import domains
from tests.support.hosts.simulated import (
    EIGHT_Q,
    FOUR_Q,
    GPU,
    MTTY,
    OTHER,
    ROOT,
    A,
    B,
    asks,
    node,
    slot,
    started,
    stopped,
)
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, lifecycle

# -- concurrency -----------------------------------------------------------


def test_many_threads_on_one_card(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Eight servers request four slots: four of them get claims."""
    claimed: list[str] = []
    refused: list[str] = []

    def spawn(number: int) -> None:
        consumer = f"server-{number}"
        try:
            life.ensure(consumer, (asks(FOUR_Q),), (slot(number),))
        except errors.AcceleratorError:
            refused.append(consumer)
        else:
            claimed.append(consumer)

    threads = [threading.Thread(target=spawn, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(claimed), len(refused)) == (4, 4)
    assert {c.consumer for c in life.claims()} == set(claimed)
    assert {c.handle for c in life.claims()} == set(kernel.mdevs())


def test_many_threads_for_one_server(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Only the first call creates partitions; all return the same."""
    kernel.hang(
        f"class/mdev_bus/{GPU}/mdev_supported_types/nvidia-232/create",
        seconds=0.3,
    )
    results = []

    def spawn() -> None:
        results.append(life.ensure(A, (asks(FOUR_Q, 2),), (slot(0), slot(1))))

    threads = [threading.Thread(target=spawn) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [life.claims_of(A)] * 6
    assert len(kernel.writes()) == len(kernel.mdevs()) == 2


def test_a_new_card_is_locked_too(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Before its first reading a host has slots, but no device.

    The lock of the card counts all the same.
    """
    fresh = lifecycle.Lifecycle(
        life.drivers,
        policy.DeviceRules(),
        action_executor.Executor(str(kernel.root)),
        snapshot.Snapshot(life.host._detector),
    )
    fresh.adopt(ROOT)
    with fresh._locks.hold([slot().provider]):
        worker = threading.Thread(
            target=fresh.ensure, args=(A, (asks(FOUR_Q),), (slot(),))
        )
        worker.start()
        worker.join(2)
        assert worker.is_alive()
        assert kernel.mdevs() == {}
    worker.join()
    assert len(kernel.mdevs()) == 1


def test_opposite_orders_do_not_lock_each_other_out(
    life: lifecycle.Lifecycle,
) -> None:
    slots = (slot(0, GPU), slot(0, OTHER))
    groups = (asks(FOUR_Q, 1, "_A"), asks(FOUR_Q, 1, "_B"))

    def repeat(own_slots: tuple[model.Slot, ...], consumer: str) -> None:
        for _ in range(5):
            life.ensure(consumer, groups, own_slots)
            life.release(consumer, own_slots, stopped)

    other = tuple(slot(1, s) for s in (OTHER, GPU))
    threads = [
        threading.Thread(target=repeat, args=pair, daemon=True)
        for pair in ((slots, A), (other, B))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert life.claims() == ()


# -- restarts of the service -----------------------------------------------


def test_a_restart_loses_nothing(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    slots = (slot(0), slot(0, "mtty"))
    groups = (asks(FOUR_Q, 1, "_A"), asks(MTTY, 1, "_B"))
    claims = life.ensure(A, groups, slots)
    written = kernel.writes()

    again = started(kernel)
    assert sorted(again.restore(A, slots), key=str) == sorted(claims, key=str)
    again.clean_up()
    assert kernel.writes() == written
    assert node(again) == node(life)
    assert again.ensure(A, groups, slots) == claims
    again.release(A, slots, stopped)
    assert kernel.mdevs() == {}


def test_newer_claims_stay_when_a_server_is_restored(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """It has another slot by now; other slots are not affected."""
    both = (slot(0), slot(1))
    first, second = life.ensure(A, (asks(FOUR_Q, 2),), both)
    again = started(kernel)
    again.store.set_claims(A, (second,))
    assert again.restore(A, (slot(0),)) == (first,)
    assert sorted(again.claims(), key=str) == sorted((first, second), key=str)
    again.clean_up()
    assert set(kernel.mdevs()) == {first.handle, second.handle}
    again.release(A, both, stopped)
    assert kernel.mdevs() == {}


def test_a_card_that_goes_away_drops_no_restored_claim(
    kernel: fakehost.Controller,
) -> None:
    groups = (asks(FOUR_Q, suffix="_A"), asks(FOUR_Q, suffix="_B"))
    slots = (slot(0, GPU), slot(0, OTHER))
    started(kernel).ensure(A, groups, slots)
    kernel.unplug(OTHER)
    again = started(kernel)
    again.restore(A, slots, groups)
    assert [c.device for c in again.claims_of(A)] == [GPU]
    kernel.unplug(GPU)
    again.host.refresh()
    again.restore(A, slots, groups)
    assert [c.device for c in again.claims_of(A)] == [GPU]


def test_a_restore_that_waits_reads_the_slots_afterwards(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The server released a slot while the card was locked."""
    both, groups = (slot(0), slot(1)), (asks(FOUR_Q, 2),)
    claims = life.ensure(A, groups, both)
    again = started(kernel)
    slots = list(both)
    waits = threading.Thread(
        target=again.restore, args=(A, both, groups, lambda: tuple(slots))
    )
    with again._locks.hold([slot().provider]):
        waits.start()
        waits.join(0.3)
        assert waits.is_alive()
        slots.pop()
    waits.join(10)
    assert not waits.is_alive()
    assert again.claims() == claims[:1]


def test_a_newer_claim_is_not_replaced_by_a_restore(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Its own claim has more details than the kernel shows."""
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    again = started(kernel)
    detailed = dataclasses.replace(claim, image="of the server")
    again.store.set_claims(A, (detailed,))
    assert again.restore(A, (slot(),)) == (detailed,)
    assert again.claims() == (detailed,)


def test_after_a_reboot_the_same_partition_is_created(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    again = started(kernel)
    assert again.restore(A, (slot(),)) == ()
    assert again.ensure(A, (asks(FOUR_Q),), (slot(),)) == (claim,)
    assert set(kernel.mdevs()) == {claim.handle}


def test_after_a_reboot_the_room_of_a_stopped_server_is_kept(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Otherwise another size could use the card, and block the server."""
    (former,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    before = node(life)
    kernel.reboot()
    again = started(kernel)
    (claim,) = again.restore(A, (slot(),), (asks(FOUR_Q),))
    assert claim == dataclasses.replace(former, state=model.ClaimState.PLANNED)
    assert kernel.mdevs() == {}
    assert node(again) == before
    again.clean_up()
    assert again.claims() == (claim,)

    eight = asks(EIGHT_Q)
    with pytest.raises(errors.ClaimError):
        again.ensure(B, (eight,), (slot(1),))
    assert again.claims() == (claim,)
    again.ensure(B, (asks(FOUR_Q),), (slot(1),))
    assert again.ensure(A, (asks(FOUR_Q),), (slot(),)) == (former,)
    assert len(kernel.mdevs()) == 2
    again.release(A, (slot(),), stopped)
    again.release(B, (slot(1),), stopped)
    assert kernel.mdevs() == {}
    again.ensure(B, (eight,), (slot(1),))


def test_a_deleted_stopped_server_frees_its_room(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    again = started(kernel)
    again.restore(A, (slot(),), (asks(FOUR_Q),))
    again.release(A, (slot(),), stopped)
    assert again.claims() == ()
    assert EIGHT_Q in node(again).traits


def test_room_of_another_server_is_not_kept(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Another server was faster: the start fails with an error."""
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    started(kernel).ensure(B, (asks(EIGHT_Q),), (slot(1),))
    again = started(kernel)
    assert again.restore(A, (slot(),), (asks(FOUR_Q),)) == ()
    with pytest.raises(errors.ClaimError):
        again.ensure(A, (asks(FOUR_Q),), (slot(),))


def test_only_provable_orphans_are_removed(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    libvirt = domains.SimulatedDomains()
    access = host_access.HostAccess(domains=libvirt)
    life = started(kernel, access=access)
    on_host = action_executor.Executor(str(kernel.root))
    uuids = {
        "foreign": "83c32df7-d52e-4ec1-9668-1f3c7e4df107",
        "in a domain": names.mdev_uuid(slot().provider, "slot-1"),
        "orphan": names.mdev_uuid(slot().provider, "slot-2"),
    }
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    for uuid in uuids.values():
        on_host.apply(
            actions.CreateMdev(parent=GPU, type_id="nvidia-232", uuid=uuid)
        )
    life.host.refresh()
    use = connection.HostdevUse(mdevs=frozenset({uuids["in a domain"]}))
    libvirt.set_use(use)
    for _ in range(2):
        life.clean_up()
        life.host.refresh()
    assert set(kernel.mdevs()) == {
        claim.handle,
        uuids["foreign"],
        uuids["in a domain"],
    }
    orphan = uuids["orphan"]
    assert caplog.text.count(f"{orphan} on {GPU} belongs to no server") == 1


def test_any_order_of_servers_ends_empty(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    before = [node(life, where) for where in (GPU, OTHER, "mtty")]
    servers = {
        A: ((asks(FOUR_Q, 2),), (slot(0), slot(1))),
        B: ((asks(FOUR_Q, 1),), (slot(2),)),
    }
    for order in itertools.permutations(servers):
        for consumer in order:
            life.ensure(consumer, *servers[consumer])
        assert len(kernel.mdevs()) == 3
        for consumer in servers:
            life.release(consumer, servers[consumer][1], stopped)
        assert kernel.mdevs() == {}
    assert [node(life, where) for where in (GPU, OTHER, "mtty")] == before
