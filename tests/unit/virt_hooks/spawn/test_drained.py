# SPDX-License-Identifier: Apache-2.0
"""Drained devices get no new servers, on a simulated kernel."""

import os
import pathlib
from collections.abc import Callable

import pytest

from nova_accel import errors, model
from nova_accel.host.state import drains, faults
from nova_accel.model import names
from tests.lab import fakehost
from tests.support.hosts.simulated import (
    FOUR_Q,
    GPU,
    IDLE,
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
    """Return what a nova-compute that has just started holds."""
    return started(kernel, state_dir)


@pytest.fixture(params=["drained", "faulted"])
def close(request: pytest.FixtureRequest, state_dir: str) -> Put:
    """Return what takes the first GPU from those that take servers."""
    if request.param == "drained":
        return lambda: drains.DrainNotes(state_dir).put(GPU, "a fan is loud")
    return lambda: faults.FaultNotes(state_dir).put(GPU, "ill", None)


@pytest.fixture
def reopen(state_dir: str) -> Put:
    """Return what gives it back."""

    def both() -> None:
        drains.DrainNotes(state_dir).remove([GPU])
        faults.FaultNotes(state_dir).heal([GPU])

    return both


def booked(*slots: model.Slot) -> model.Allocations:
    """Return what Placement has booked for a server that comes."""
    return {one.provider: {"VGPU": 1} for one in slots}


def come(
    accel: lifecycle.Lifecycle, consumer: str, one: model.Slot
) -> tuple[model.Claim, ...]:
    return accel.ensure(consumer, GROUPS, (one,), booked(one))


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
        come(accel, A, slot())
    assert GPU in str(no.value)
    assert kernel.writes() == written
    assert accel.claims() == ()
    assert not is_offered(accel)
    assert come(accel, A, slot(0, OTHER))
    reopen()
    assert is_offered(accel)
    assert come(accel, B, slot())


def test_a_server_of_two_cards_gets_neither(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    close()
    both = (slot(0, GPU), slot(0, OTHER))
    groups = (asks(FOUR_Q, 1, "_A"), asks(FOUR_Q, 1, "_B"))
    with pytest.raises(errors.ClaimError):
        accel.ensure(A, groups, both, booked(*both))
    assert kernel.mdevs() == {}


def test_who_holds_it_keeps_it(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    held = come(accel, A, slot())
    total = node(accel).inventories["VGPU"].total
    close()
    before = kernel.writes()
    # A hard reboot, a start; built anew where it is.
    assert accel.ensure(A, GROUPS, (slot(),)) == held
    assert come(accel, A, slot()) == held
    accel.host.refresh_changed()
    accel.remove_unused(IDLE)
    assert kernel.writes() == before
    assert not is_offered(accel)
    record = node(accel).inventories["VGPU"]
    assert record.reserved == record.total == total


def test_so_it_does_after_a_restart_of_the_service(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
) -> None:
    held = come(accel, A, slot())
    close()
    again = started(kernel, state_dir)
    assert not is_offered(again)
    assert again.restore(A, (slot(),)) == held
    assert again.ensure(A, GROUPS, (slot(),)) == held
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        come(again, B, slot(1))
    assert set(kernel.mdevs()) == {held[0].handle}


@pytest.mark.parametrize(
    ("is_recalled", "is_built_anew"),
    [(True, False), (True, True), (False, False)],
)
def test_and_after_a_reboot_of_the_host(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
    is_recalled: bool,
    is_built_anew: bool,
) -> None:
    """Its mdev is gone: of the server only Nova knows, if it can be asked."""
    held = come(accel, A, slot())
    close()
    kernel.reboot()
    again = started(kernel, state_dir)
    if is_recalled:
        assert again.restore(A, (slot(),)) == ()
    allocated = booked(slot()) if is_built_anew else {}
    assert again.ensure(A, GROUPS, (slot(),), allocated) == held
    assert set(kernel.mdevs()) == {held[0].handle}


def test_who_has_left_is_new_when_it_comes_back(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    state_dir: str,
    close: Put,
) -> None:
    come(accel, A, slot())
    close()
    again = started(kernel, state_dir)
    again.restore(A, (slot(),))
    again.release(A, (slot(),), stopped)
    assert kernel.mdevs() == {}
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        come(again, A, slot())


def test_whose_slot_nova_gave_away_holds_it_no_more(
    kernel: fakehost.Controller,
    accel: lifecycle.Lifecycle,
    close: Put,
) -> None:
    accel.restore(A, (slot(),))
    come(accel, B, slot())
    close()
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        come(accel, A, slot(1))
    assert len(kernel.mdevs()) == 1


def test_a_device_off_the_pci_bus_is_drained_by_its_name(
    accel: lifecycle.Lifecycle, state_dir: str
) -> None:
    drains.DrainNotes(state_dir).put("mtty", "x")
    accel.host.refresh_changed()
    assert [d.address for d in accel.host.state.devices if d.drain] == ["mtty"]
    assert names.DRAINED_TRAIT in node(accel, "mtty").traits


def test_a_refused_server_costs_the_others_nothing(
    kernel: fakehost.Controller, accel: lifecycle.Lifecycle, close: Put
) -> None:
    """Not even the one that Nova believes to have left the slot."""
    held = come(accel, A, slot())
    close()
    with pytest.raises(errors.ClaimError):
        come(accel, B, slot())
    accel.release(B, (slot(),), stopped)
    assert accel.claims() == held
    assert set(kernel.mdevs()) == {held[0].handle}


def test_no_notes_are_made_by_looking(
    accel: lifecycle.Lifecycle, state_dir: str
) -> None:
    come(accel, A, slot())
    assert not os.path.exists(state_dir)
