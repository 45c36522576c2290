# SPDX-License-Identifier: Apache-2.0
"""Drained devices get no new servers, on a simulated kernel."""

import os
import pathlib
from collections.abc import Callable

import pytest

from nova_accel import errors, model
from nova_accel.host.state import device_notes
from nova_accel.model import names
from tests.lab import fakehost
from tests.support.hosts.simulated import (
    FOUR_Q,
    GPU,
    OTHER,
    A,
    B,
    asks,
    node,
    slot,
    started,
    stopped,
)
from virt_hooks.spawn import lifecycle

Put = Callable[[], None]
GROUPS = (asks(FOUR_Q),)


@pytest.fixture
def state_dir(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def accel(kernel: fakehost.Controller, state_dir: str) -> lifecycle.Lifecycle:
    """Return the Lifecycle of a nova-compute that has just started."""
    return started(kernel, state_dir)


@pytest.fixture(params=["drained", "faulted"])
def close(request: pytest.FixtureRequest, state_dir: str) -> Put:
    """Return a function that withdraws the first GPU from new servers."""
    if request.param == "drained":
        return lambda: device_notes.DrainNotes(state_dir).put(
            GPU, "a fan is loud"
        )
    return lambda: device_notes.FaultNotes(state_dir).put(GPU, "ill", None)


@pytest.fixture
def reopen(state_dir: str) -> Put:
    """Return a function that offers the first GPU again."""

    def both() -> None:
        device_notes.DrainNotes(state_dir).remove([GPU])
        device_notes.FaultNotes(state_dir).heal([GPU])

    return both


def allocations_of(*slots: model.Slot) -> model.Allocations:
    """Return Placement's allocations of a new server."""
    return {requested.provider: {"VGPU": 1} for requested in slots}


def spawn(
    accel: lifecycle.Lifecycle, consumer: str, requested: model.Slot
) -> tuple[model.Claim, ...]:
    return accel.ensure(
        consumer, GROUPS, (requested,), allocations_of(requested)
    )


def is_offered(accel: lifecycle.Lifecycle) -> bool:
    accel.host.refresh_changed()
    record = node(accel).inventories["VGPU"]
    return record.reserved < record.total and FOUR_Q in node(accel).traits


def test_it_takes_no_server_that_was_scheduled_before(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    close: Put,
    reopen: Put,
) -> None:
    assert is_offered(accel)
    close()
    written = kernel.writes()
    with pytest.raises(errors.ClaimError, match="takes no new server") as no:
        spawn(accel, A, slot())
    assert GPU in str(no.value)
    assert kernel.writes() == written
    assert accel.claims() == ()
    assert not is_offered(accel)
    assert spawn(accel, A, slot(0, OTHER))
    reopen()
    assert is_offered(accel)
    assert spawn(accel, B, slot())


def test_a_server_of_two_cards_gets_neither(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    close()
    both = (slot(0, GPU), slot(0, OTHER))
    groups = (asks(FOUR_Q, 1, "_A"), asks(FOUR_Q, 1, "_B"))
    with pytest.raises(errors.ClaimError):
        accel.ensure(A, groups, both, allocations_of(*both))
    assert kernel.mdevs() == {}


def test_its_server_keeps_it(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    claims = spawn(accel, A, slot())
    total = node(accel).inventories["VGPU"].total
    close()
    before = kernel.writes()
    # A hard reboot, a start, and a rebuild on the same host.
    assert accel.ensure(A, GROUPS, (slot(),)) == claims
    assert spawn(accel, A, slot()) == claims
    accel.host.refresh_changed()
    accel.clean_up()
    assert kernel.writes() == before
    assert not is_offered(accel)
    record = node(accel).inventories["VGPU"]
    assert record.reserved == record.total == total


def test_its_server_keeps_it_after_a_restart_of_the_service(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
) -> None:
    claims = spawn(accel, A, slot())
    close()
    again = started(kernel, state_dir)
    assert not is_offered(again)
    assert again.restore(A, (slot(),)) == claims
    assert again.ensure(A, GROUPS, (slot(),)) == claims
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(again, B, slot(1))
    assert set(kernel.mdevs()) == {claims[0].handle}


@pytest.mark.parametrize(
    ("is_restored", "is_rebuilt"),
    [(True, False), (True, True), (False, False)],
)
def test_its_server_gets_it_after_a_reboot_of_the_host(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
    is_restored: bool,
    is_rebuilt: bool,
) -> None:
    """Its mdev is gone: only Nova's database has the server."""
    claims = spawn(accel, A, slot())
    close()
    kernel.reboot()
    again = started(kernel, state_dir)
    if is_restored:
        assert again.restore(A, (slot(),)) == ()
    allocated = allocations_of(slot()) if is_rebuilt else {}
    assert again.ensure(A, GROUPS, (slot(),), allocated) == claims
    assert set(kernel.mdevs()) == {claims[0].handle}


def test_a_server_that_left_is_a_new_one(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
) -> None:
    spawn(accel, A, slot())
    close()
    again = started(kernel, state_dir)
    again.restore(A, (slot(),))
    again.release(A, (slot(),), stopped)
    assert kernel.mdevs() == {}
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(again, A, slot())


def test_a_server_whose_slot_was_reassigned_is_a_new_one(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    close: Put,
) -> None:
    accel.restore(A, (slot(),))
    spawn(accel, B, slot())
    close()
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(accel, A, slot(1))
    assert len(kernel.mdevs()) == 1


def test_a_device_off_the_pci_bus_is_drained_by_its_name(
    accel: lifecycle.Lifecycle, state_dir: str
) -> None:
    device_notes.DrainNotes(state_dir).put("mtty", "x")
    accel.host.refresh_changed()
    assert [d.address for d in accel.host.state.devices if d.drain] == ["mtty"]
    assert names.DRAINED_TRAIT in node(accel, "mtty").traits


def test_a_refused_server_costs_the_others_nothing(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    """Not even the server that Nova believes to have left the slot."""
    claims = spawn(accel, A, slot())
    close()
    with pytest.raises(errors.ClaimError):
        spawn(accel, B, slot())
    accel.release(B, (slot(),), stopped)
    assert accel.claims() == claims
    assert set(kernel.mdevs()) == {claims[0].handle}


def test_reading_writes_no_notes(
    accel: lifecycle.Lifecycle, state_dir: str
) -> None:
    spawn(accel, A, slot())
    assert not os.path.exists(state_dir)
