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
from nova_accel.host.state import faults
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
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC
NOTHING = connection.HostdevUse()


@pytest.fixture
def cut_off(kernel: fakehost.Controller, state: Path) -> Iterator[model.Slot]:
    """A VF in whose reset the service stands still for ever."""
    life = started(kernel, state)
    one = slot(life, FLEX, FLEX_VF)
    give(life, one)
    kernel.hang(f"bus/pci/devices/{FLEX_VF}/reset")
    ends = threading.Thread(
        target=life.release, args=(A, (one,), stopped), daemon=True
    )
    ends.start()
    until = time.monotonic() + 10
    while begun(state) != [FLEX_VF]:
        assert time.monotonic() < until
        time.sleep(0.05)
    yield one
    kernel.heal()
    ends.join(10)
    assert not ends.is_alive()


def begun(state: Path) -> list[str]:
    """Return the functions of which a scrub has begun."""
    kept = faults.FaultNotes(str(state))
    return [one.address for one in kept.read_scrubs()]


def again(
    kernel: fakehost.Controller, state: Path, *held: model.Slot
) -> lifecycle.Lifecycle:
    """Return the next service; a server still holds these."""
    life = started(kernel, state)
    if held:
        life.restore(A, held)
    life.remove_unused(NOTHING)
    life.host.refresh()
    return life


def test_a_server_that_is_still_there_goes_on(
    kernel: fakehost.Controller, state: Path, cut_off: model.Slot
) -> None:
    life = again(kernel, state, cut_off)
    assert fault(life, FLEX) == ""
    assert [claim.handle for claim in life.claims()] == [FLEX_VF]
    kernel.heal()
    before = len(resets(kernel))
    life.release(A, (cut_off,), stopped)
    assert len(resets(kernel)) > before
    assert begun(state) == []
    assert fault(again(kernel, state), FLEX) == ""


def test_what_nobody_will_scrub_any_more_is_set_aside(
    kernel: fakehost.Controller, state: Path, cut_off: model.Slot
) -> None:
    """Its server was deleted while there was no service."""
    life = again(kernel, state)
    assert "cut off" in fault(life, FLEX)
    assert FLEX_VF in fault(life, FLEX)
    assert reserved(life, FLEX)
    for one in (cut_off, slot(life, FLEX, NEXT_VF)):
        with pytest.raises(errors.ClaimError):
            give(life, one, B)
    assert begun(state) == []
    assert "cut off" in fault(again(kernel, state), FLEX)
    kernel.heal()  # healed or not, the function is scrubbed once more
    assert commands.main(["heal", FLEX, "--state-dir", str(state)]) == 0
    healed = again(kernel, state)
    assert fault(healed, FLEX) == ""
    give(healed, cut_off, B)


def test_a_note_that_cannot_be_read_counts(
    kernel: fakehost.Controller, state: Path
) -> None:
    kept = faults.FaultNotes(str(state))
    kept.begin_scrub(FLEX_VF, FLEX)
    (path,) = (state / "scrubbing").iterdir()
    assert json.loads(path.read_text())["device"] == FLEX
    path.write_text("{")
    assert "cut off" in fault(again(kernel, state), FLEX)


def test_a_later_pass_leaves_what_is_being_scrubbed_alone(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    life.remove_unused(NOTHING)
    faults.FaultNotes(str(state)).begin_scrub(GPU, GPU)
    life.remove_unused(NOTHING)
    assert begun(state) == [GPU]
    life.host.refresh()
    assert fault(life, GPU) == ""


def test_without_a_place_for_notes_it_is_scrubbed_all_the_same(
    kernel: fakehost.Controller, state: Path
) -> None:
    state.write_text("no directory")
    life = started(kernel, state)
    one = slot(life, FLEX, FLEX_VF)
    before = node(life, FLEX)
    faults.FaultNotes(str(state)).begin_scrub(FLEX_VF, FLEX)
    faults.FaultNotes(str(state)).end_scrub(FLEX_VF)
    life.remove_unused(NOTHING)
    assert node(life, FLEX) == before
    life.release(A, (one,), stopped)
    assert resets(kernel) == [FLEX_VF]
