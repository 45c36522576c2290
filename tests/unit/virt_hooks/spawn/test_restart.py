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
from tests.support.hosts.simulated import (
    EIGHT_Q,
    FOUR_Q,
    GPU,
    IDLE,
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
from virt_hooks.spawn import lifecycle

# -- side by side ----------------------------------------------------------


def test_many_threads_on_one_card(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Eight servers want four places: four get them, nothing is lost."""
    got: list[str] = []
    refused: list[str] = []

    def one(number: int) -> None:
        consumer = f"server-{number}"
        try:
            life.ensure(consumer, (asks(FOUR_Q),), (slot(number),))
        except errors.AcceleratorError:
            refused.append(consumer)
        else:
            got.append(consumer)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (4, 4)
    assert {c.consumer for c in life.claims()} == set(got)
    assert {c.handle for c in life.claims()} == set(kernel.mdevs())


def test_many_threads_for_one_server(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Only the first finds something to do; all get the same."""
    kernel.hang(
        f"class/mdev_bus/{GPU}/mdev_supported_types/nvidia-232/create",
        seconds=0.3,
    )
    found = []

    def one() -> None:
        found.append(life.ensure(A, (asks(FOUR_Q, 2),), (slot(0), slot(1))))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [life.claims_of(A)] * 6
    assert len(kernel.writes()) == len(kernel.mdevs()) == 2


def test_a_new_card_is_locked_too(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Before its first reading a host has no device, and slots all the same.

    Nobody may work on the card meanwhile.
    """
    fresh = lifecycle.Lifecycle(
        life._drivers,
        policy.Policy(),
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

    def often(mine: tuple[model.Slot, ...], consumer: str) -> None:
        for _ in range(5):
            life.ensure(consumer, groups, mine)
            life.release(consumer, mine, stopped)

    other = tuple(slot(1, s) for s in (OTHER, GPU))
    threads = [
        threading.Thread(target=often, args=pair, daemon=True)
        for pair in ((slots, A), (other, B))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert life.claims() == ()


# -- the service starts again ----------------------------------------------


def test_a_restart_loses_nothing(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    slots = (slot(0), slot(0, "mtty"))
    groups = (asks(FOUR_Q, 1, "_A"), asks(MTTY, 1, "_B"))
    held = life.ensure(A, groups, slots)
    written = kernel.writes()

    again = started(kernel)
    assert sorted(again.restore(A, slots), key=str) == sorted(held, key=str)
    again.remove_unused(IDLE)
    assert kernel.writes() == written
    assert node(again) == node(life)
    assert again.ensure(A, groups, slots) == held
    again.release(A, slots, stopped)
    assert kernel.mdevs() == {}


def test_what_came_since_stays_when_a_server_is_recalled(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """It holds another slot by now, and a detach is none of the others'."""
    both = (slot(0), slot(1))
    first, more = life.ensure(A, (asks(FOUR_Q, 2),), both)
    again = started(kernel)
    again.store.set_claims(A, (more,))
    assert again.restore(A, (slot(0),)) == (first,)
    assert sorted(again.claims(), key=str) == sorted((first, more), key=str)
    again.remove_unused(IDLE)
    assert set(kernel.mdevs()) == {first.handle, more.handle}
    again.release(A, both, stopped)
    assert kernel.mdevs() == {}


def test_a_card_that_goes_away_takes_no_claim_that_was_recalled(
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


def test_a_recall_that_waits_goes_by_what_holds_then(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The server gave a slot back while somebody had the card."""
    both, groups = (slot(0), slot(1)), (asks(FOUR_Q, 2),)
    held = life.ensure(A, groups, both)
    again = started(kernel)
    left = list(both)
    waits = threading.Thread(
        target=again.restore, args=(A, both, groups, lambda: tuple(left))
    )
    with again._locks.hold([slot().provider]):
        waits.start()
        waits.join(0.3)
        assert waits.is_alive()
        left.pop()
    waits.join(10)
    assert not waits.is_alive()
    assert again.claims() == held[:1]


def test_what_was_made_meanwhile_is_not_recalled(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Its own claim says more than what the kernel shows of it."""
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    again = started(kernel)
    told = dataclasses.replace(claim, image="of the server")
    again.store.set_claims(A, (told,))
    assert again.restore(A, (slot(),)) == (told,)
    assert again.claims() == (told,)


def test_a_reboot_of_the_host_makes_the_same_anew(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    (held,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    again = started(kernel)
    assert again.restore(A, (slot(),)) == ()
    assert again.ensure(A, (asks(FOUR_Q),), (slot(),)) == (held,)
    assert set(kernel.mdevs()) == {held.handle}


def test_after_a_reboot_the_room_of_what_is_off_stays_taken(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The card would take one of another size, and then not what is off."""
    (held,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    before = node(life)
    kernel.reboot()
    again = started(kernel)
    (claim,) = again.restore(A, (slot(),), (asks(FOUR_Q),))
    assert claim == dataclasses.replace(held, state=model.ClaimState.PLANNED)
    assert kernel.mdevs() == {}
    assert node(again) == before
    again.remove_unused(IDLE)
    assert again.claims() == (claim,)

    eight = asks(EIGHT_Q)
    with pytest.raises(errors.ClaimError):
        again.ensure(B, (eight,), (slot(1),))
    assert again.claims() == (claim,)
    again.ensure(B, (asks(FOUR_Q),), (slot(1),))
    assert again.ensure(A, (asks(FOUR_Q),), (slot(),)) == (held,)
    assert len(kernel.mdevs()) == 2
    again.release(A, (slot(),), stopped)
    again.release(B, (slot(1),), stopped)
    assert kernel.mdevs() == {}
    again.ensure(B, (eight,), (slot(1),))


def test_a_server_that_is_off_and_deleted_leaves_its_room(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    again = started(kernel)
    again.restore(A, (slot(),), (asks(FOUR_Q),))
    again.release(A, (slot(),), stopped)
    assert again.claims() == ()
    assert EIGHT_Q in node(again).traits


def test_room_that_is_not_there_is_not_kept(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Somebody else was faster: the server can't be started, and is told."""
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.reboot()
    started(kernel).ensure(B, (asks(EIGHT_Q),), (slot(1),))
    again = started(kernel)
    assert again.restore(A, (slot(),), (asks(FOUR_Q),)) == ()
    with pytest.raises(errors.ClaimError):
        again.ensure(A, (asks(FOUR_Q),), (slot(),))


def test_only_provable_orphans_are_tidied_away(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    on_host = action_executor.Executor(str(kernel.root))
    uuids = {
        "foreign": "83c32df7-d52e-4ec1-9668-1f3c7e4df107",
        "in a domain": names.mdev_uuid(slot().provider, "slot-1"),
        "orphan": names.mdev_uuid(slot().provider, "slot-2"),
    }
    (held,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    for uuid in uuids.values():
        on_host.apply(
            actions.CreateMdev(parent=GPU, type_id="nvidia-232", uuid=uuid)
        )
    life.host.refresh()
    use = connection.HostdevUse(mdevs=frozenset({uuids["in a domain"]}))
    for _ in range(2):
        life.remove_unused(use)
        life.host.refresh()
    assert set(kernel.mdevs()) == {
        held.handle,
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
