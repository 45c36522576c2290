# SPDX-License-Identifier: Apache-2.0
"""A full state_dir closes functions that need notes, and loses nothing.

The third L40S has no VFs, and is offered whole.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import pytest

from nova_accel import errors, model
from nova_accel.claims import attach_candidates
from nova_accel.config import policy
from nova_accel.discovery import device_marks, plugin, scan
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import conditions
from nova_accel.model import names
from tests.lab import fakehost
from tests.lab.fakehost import mount
from tests.support import strategies
from tests.support.hosts import simulated_vfio
from tests.support.hosts.simulated import ROOT, stopped
from tests.support.hosts.simulated_vfio import FIRST, GPU, SECOND
from virt_hooks.spawn import lifecycle

SPEC = simulated_vfio.SPEC
A, B = "aaaaaaaa-0000-4000-8000-00000000000a", "bbbbbbbb-0000-4000-8000-0000b"
GROUPS = (simulated_vfio.asks(),)


@pytest.fixture
def small(tmp_path: pathlib.Path) -> Iterator[mount.SmallDirectory]:
    with mount.small_directory(tmp_path / "state", "size=2m") as directory:
        yield directory


@pytest.fixture
def life(
    kernel: fakehost.Controller, small: mount.SmallDirectory
) -> lifecycle.Lifecycle:
    return simulated_vfio.started(kernel, state_dir=str(small.path))


def spawn(
    life: lifecycle.Lifecycle, consumer: str, function: str
) -> tuple[model.Claim, ...]:
    slot = simulated_vfio.slot(function)
    allocations = {slot.provider: {"VGPU": 1}}
    return life.ensure(consumer, GROUPS, (slot,), allocations)


def card(life: lifecycle.Lifecycle) -> model.Device:
    device = life.host.refresh_changed().device(GPU)
    assert device is not None
    return device


def list_traits(life: lifecycle.Lifecycle) -> set[str]:
    """Return the traits of the card in Placement about new servers."""
    tree = life.tree(frozenset())
    assert tree is not None
    node = tree.node(names.provider_uuid(ROOT.uuid, GPU))
    assert node is not None
    return {t for t in node.traits if t.startswith("CUSTOM_ACCELERATOR_FAULT")}


def test_a_full_directory_closes_the_card_until_there_is_room(
    life: lifecycle.Lifecycle, small: mount.SmallDirectory
) -> None:
    before = card(life)
    small.fill()
    assert "No space left on device" in card(life).unnoted
    assert list_traits(life) == {
        names.FAULTED_TRAIT,
        f"{names.FAULT_PREFIX}NO_NOTES",
    }
    assert GPU in {problem.address for problem in life.host.state.problems}
    small.free()
    assert card(life) == before
    assert list_traits(life) == set()


def test_a_server_that_was_scheduled_before_is_refused_with_the_reason(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    small: mount.SmallDirectory,
) -> None:
    small.fill()
    with pytest.raises(errors.ClaimError, match="state_dir") as caught:
        spawn(life, A, FIRST)
    assert "No space left on device" in str(caught.value)
    assert not simulated_vfio.types(kernel)
    assert life.claims() == ()
    device = life.host.state.device(GPU)
    assert device is not None
    assert device.unnoted, "the failure itself closes the card"


def test_a_server_keeps_its_function_and_releases_it(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    small: mount.SmallDirectory,
) -> None:
    (claim,) = spawn(life, A, FIRST)
    small.fill()
    assert card(life).unnoted
    assert life.ensure(A, GROUPS, (simulated_vfio.slot(FIRST),)) == (claim,)
    assert simulated_vfio.types(kernel).keys() == {FIRST}
    life.release(A, (simulated_vfio.slot(FIRST),), stopped)
    assert not simulated_vfio.types(kernel)
    assert life.claims() == ()
    assert not device_notes.FaultNotes(str(small.path)).read_unreleased()
    small.free()
    assert not card(life).unnoted
    assert spawn(life, B, FIRST)


def test_a_restart_on_a_full_directory_closes_the_card(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    small: mount.SmallDirectory,
) -> None:
    spawn(life, A, FIRST)
    small.fill()
    again = simulated_vfio.started(kernel, state_dir=str(small.path))
    assert card(again).unnoted
    slots = (simulated_vfio.slot(FIRST),)
    (claim,) = again.restore(A, slots, GROUPS)
    assert (claim.slot, claim.state) == (FIRST, model.ClaimState.MADE)
    with pytest.raises(errors.ClaimError, match="state_dir"):
        spawn(again, B, SECOND)


def test_a_device_command_gets_the_reason(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    small: mount.SmallDirectory,
) -> None:
    """``nova-accel heal`` says that the device stays closed, and why."""
    small.fill()
    noted = device_notes.FaultNotes(str(small.path))
    noted.try_write()

    def read() -> host_reader.HostReader:
        return host_reader.HostReader(kernel.root)

    def read_unassigned() -> model.HostState:
        return scan.read(read(), plugin.load(), policy.DeviceRules())

    marks = device_marks.DeviceMarks(
        str(small.path), read, read_unassigned, noted
    )
    current, _ = marks.read_faults(life.host.state)
    assert "No space left on device" in current[GPU].reason


@pytest.mark.parametrize("technology", ["mdev", *sorted(model.NOTED)])
def test_devices_whose_functions_need_a_note_are_closed(
    technology: str,
) -> None:
    device = dataclasses.replace(
        strategies.card(GPU, 1), technology=technology
    )
    host = model.HostState(devices=(device,))
    (closed,) = conditions.mark_unnoted(host, "full").devices
    assert closed.is_closed is (technology != "mdev")
    assert conditions.mark_unnoted(host, "") == host
    explained = attach_candidates._explain_marks(closed)
    assert bool(explained) is closed.is_closed
