# SPDX-License-Identifier: Apache-2.0
"""A scrub that the end of the service interrupts sets a device aside."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.cli import commands
from nova_accel.host.state import device_notes
from tests.lab import fakehost
from tests.support.hosts import simulated_scrub
from tests.support.hosts.simulated import A, B, node, stopped
from tests.support.hosts.simulated_scrub import (
    FLEX,
    FLEX_VF,
    GPU,
    NEXT_VF,
    fault,
    give,
    reserved,
    resets,
    slot,
    started,
)
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC


@pytest.fixture
def interrupted(
    kernel: fakehost.Controller, state: Path
) -> Iterator[model.Slot]:
    """The slot of a VF in whose reset the service is blocked for ever."""
    life = started(kernel, state)
    vf_slot = slot(life, FLEX, FLEX_VF)
    give(life, vf_slot)
    kernel.hang(f"bus/pci/devices/{FLEX_VF}/reset")
    release = threading.Thread(
        target=life.release, args=(A, (vf_slot,), stopped), daemon=True
    )
    release.start()
    until = time.monotonic() + 10
    while list_scrubs(state) != [FLEX_VF]:
        assert time.monotonic() < until
        time.sleep(0.05)
    yield vf_slot
    kernel.heal()
    release.join(10)
    assert not release.is_alive()


def list_scrubs(state: Path) -> list[str]:
    """Return the functions whose scrub has begun."""
    notes = device_notes.FaultNotes(str(state))
    return [scrub.address for scrub in notes.read_scrubs()]


def restart(
    kernel: fakehost.Controller, state: Path, *slots: model.Slot
) -> lifecycle.Lifecycle:
    """Return the next service; a server still has these slots."""
    life = started(kernel, state)
    if slots:
        life.restore(A, slots)
    life.clean_up()
    life.host.refresh()
    return life


def test_a_server_that_still_exists_keeps_its_claim(
    kernel: fakehost.Controller, state: Path, interrupted: model.Slot
) -> None:
    life = restart(kernel, state, interrupted)
    assert fault(life, FLEX) == ""
    assert [claim.handle for claim in life.claims()] == [FLEX_VF]
    kernel.heal()
    before = len(resets(kernel))
    life.release(A, (interrupted,), stopped)
    assert len(resets(kernel)) > before
    assert list_scrubs(state) == []
    assert fault(restart(kernel, state), FLEX) == ""


def test_a_function_of_a_deleted_server_is_set_aside(
    kernel: fakehost.Controller, state: Path, interrupted: model.Slot
) -> None:
    """Its server was deleted while no service was running."""
    life = restart(kernel, state)
    assert "cut off" in fault(life, FLEX)
    assert FLEX_VF in fault(life, FLEX)
    assert reserved(life, FLEX)
    for unscrubbed in (interrupted, slot(life, FLEX, NEXT_VF)):
        with pytest.raises(errors.ClaimError):
            give(life, unscrubbed, B)
    assert list_scrubs(state) == []
    assert "cut off" in fault(restart(kernel, state), FLEX)
    kernel.heal()  # healed or not, the function is scrubbed once more
    assert commands.main(["heal", FLEX, "--state-dir", str(state)]) == 0
    healed = restart(kernel, state)
    assert fault(healed, FLEX) == ""
    give(healed, interrupted, B)


def test_a_note_that_cannot_be_read_counts(
    kernel: fakehost.Controller, state: Path
) -> None:
    notes = device_notes.FaultNotes(str(state))
    notes.begin_scrub(FLEX_VF, FLEX)
    (path,) = (state / "scrubbing").iterdir()
    assert json.loads(path.read_text())["device"] == FLEX
    path.write_text("{")
    assert "cut off" in fault(restart(kernel, state), FLEX)


def test_a_later_pass_ignores_a_running_scrub(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    life.clean_up()
    device_notes.FaultNotes(str(state)).begin_scrub(GPU, GPU)
    life.clean_up()
    assert list_scrubs(state) == [GPU]
    life.host.refresh()
    assert fault(life, GPU) == ""


def test_a_function_is_scrubbed_without_notes(
    kernel: fakehost.Controller, state: Path
) -> None:
    state.write_text("no directory")
    life = started(kernel, state)
    vf_slot = slot(life, FLEX, FLEX_VF)
    before = node(life, FLEX)
    device_notes.FaultNotes(str(state)).begin_scrub(FLEX_VF, FLEX)
    device_notes.FaultNotes(str(state)).end_scrub(FLEX_VF)
    life.clean_up()
    assert node(life, FLEX) == before
    life.release(A, (vf_slot,), stopped)
    assert resets(kernel) == [FLEX_VF]
