# SPDX-License-Identifier: Apache-2.0
"""Functions that can't be scrubbed are set aside until healed."""

from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.model import names
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts import domains, simulated_scrub
from tests.support.hosts.simulated import A, B, node, stopped
from tests.support.hosts.simulated_scrub import (
    FLEX,
    FLEX_VF,
    GPU,
    HELD,
    NEXT_VF,
    SOUND,
    fault,
    give,
    reserved,
    resets,
    slot,
    started,
)
from virt_hooks.guest import connection

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC


@pytest.mark.parametrize("is_dead", [True, False])
def test_what_cannot_be_reset_is_set_aside_until_it_is_healed(
    kernel: fakehost.Controller, state: Path, is_dead: bool
) -> None:
    life = started(kernel, state)
    before, one = node(life, GPU), slot(life, GPU)
    give(life, one)
    if is_dead:
        kernel.die_at_reset(SOUND)
    else:
        kernel.fail(f"bus/pci/devices/{SOUND}/reset", "ENOTTY")
    life.release(A, (one,), stopped)
    assert life.claims() == ()
    assert SOUND in fault(life, GPU)
    hint = "reset or reseat the card" if is_dead else "power-cycle the card"
    assert hint in fault(life, GPU)
    assert names.FAULTED_TRAIT in node(life, GPU).traits
    assert reserved(life, GPU)
    with pytest.raises(errors.ClaimError):
        give(life, one, B)
    # neither does the next service offer it, nor time heal it
    kernel.heal()
    kernel.die_at_reset(SOUND, is_dying=False)
    later = started(kernel, state)
    later.host.refresh()
    assert reserved(later, GPU)
    (problem,) = [p for p in later.host.state.problems if p.where == GPU]
    assert f"nova-accel heal {GPU}" in problem.reason
    assert commands.main(["heal", GPU, "--state-dir", str(state)]) == 0
    later.host.refresh()
    assert node(later, GPU) == before
    give(later, one, B)
    later.release(B, (one,), stopped)
    assert fault(later, GPU) == ""


def test_a_vf_that_does_not_come_back_takes_its_card_along(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    one, other = slot(life, FLEX, FLEX_VF), slot(life, FLEX, NEXT_VF)
    give(life, one)
    give(life, other, B)
    kernel.die_at_reset(FLEX_VF)
    life.release(A, (one,), stopped)
    assert FLEX_VF in fault(life, FLEX)
    assert reserved(life, FLEX)
    # who is on the card stays
    assert [claim.consumer for claim in life.claims()] == [B]


def test_what_dies_with_its_guest_is_set_aside_whatever_the_line_says(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    one = slot(life, FLEX, FLEX_VF)
    give(life, one)
    kernel.die_at_reset(FLEX_VF)
    reset = kernel.sys / f"bus/pci/devices/{FLEX_VF}/reset"
    reset.write_text("1")
    life.release(A, (one,), stopped)
    assert "does not answer" in fault(life, FLEX)


def test_what_a_guest_runs_with_is_not_touched(
    kernel: fakehost.Controller, state: Path
) -> None:
    libvirt = domains.SimulatedDomains()
    life = started(kernel, state, domains=libvirt)
    one = slot(life, GPU)
    give(life, one)
    use = connection.HostdevUse(functions=frozenset({SOUND}))
    libvirt.read_running = lambda: use
    life.release(A, (one,), stopped)
    assert kernel.writes() == []
    assert "a guest runs with it" in fault(life, GPU)


def test_a_server_that_still_runs_keeps_what_is_not_to_be_seen(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    one = slot(life, GPU)
    claim = give(life, one)
    kernel.fail(f"bus/pci/devices/{GPU}/reset_method", "EIO", on="read")
    life.host.refresh()
    life.release(A, (one,), lambda _: True)
    assert life.claims() == (claim,)
    assert kernel.writes() == []


def test_whose_line_is_not_known_is_not_offered(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    one = slot(life, FLEX, FLEX_VF)
    give(life, one)
    kernel.fail(f"bus/pci/devices/{FLEX}/device", "EIO", on="read")
    life.release(A, (one,), stopped)
    kernel.heal()
    life.host.refresh()
    assert "device_spec" in fault(life, FLEX)
    assert kernel.writes() == []


def test_a_release_that_libvirt_interrupts_keeps_the_claim(
    kernel: fakehost.Controller, state: Path
) -> None:
    """Which guests run is not known: the next pass tries again."""

    def silent() -> connection.HostdevUse:
        raise OSError("libvirt does not answer")

    libvirt = domains.SimulatedDomains()
    life = started(kernel, state, domains=libvirt)
    one = slot(life, GPU)
    claim = give(life, one)
    libvirt.read_running = silent
    with pytest.raises(OSError, match="does not answer"):
        life.release(A, (one,), stopped)
    assert kernel.writes() == []
    assert life.claims() == (claim,)
    libvirt.read_running = connection.HostdevUse
    life.release(A, (one,), stopped)
    assert GPU in resets(kernel)
    assert life.claims() == ()
    assert fault(life, GPU) == ""


@pytest.mark.parametrize(
    "words",
    ['"scrub": "reset"', '"scrub_command": "/wipe"', '"scrub": "none"'],
)
def test_what_the_host_uses_at_once_is_not_taken_from_it(
    kernel: fakehost.Controller, state: Path, words: str
) -> None:
    """Its data may lie there; the lines go by its ids, too."""
    lines = [
        f'{{"address": "{HELD}", "product_id": "1e07", "use": "passthrough",'
        f" {words}}}"
    ]
    life = simulated.started(kernel.root, policy.parse_policy(lines), state)
    one = slot(life, HELD)
    give(life, one)
    hidden = f"bus/pci/devices/{HELD}/reset_method"
    kernel.fail(hidden, "EIO", on="read")
    life.release(A, (one,), stopped)
    assert life.host.state.device(HELD) is None
    assert life.claims() == ()
    assert kernel.writes() == []
    kernel.heal()
    life.host.refresh()
    is_set_aside = "uses what the server left" in fault(life, HELD)
    assert is_set_aside is ("none" not in words)


def test_what_cannot_be_described_is_reset_all_the_same(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    one, other = slot(life, GPU), slot(life, FLEX, FLEX_VF)
    give(life, one)
    give(life, other, B)
    kernel.fail(f"bus/pci/devices/{GPU}/reset_method", "EIO", on="read")
    life.release(A, (one,), stopped)
    assert life.host.state.device(GPU) is None
    assert resets(kernel) == [GPU, SOUND]


def test_a_reset_that_was_asked_for_and_is_not_to_be_had(
    kernel: fakehost.Controller, state: Path
) -> None:
    kernel.vanish(f"bus/pci/devices/{FLEX_VF}/reset")
    life = started(kernel, state)
    one = slot(life, FLEX, FLEX_VF)
    give(life, one)
    life.release(A, (one,), stopped)
    assert fault(life, FLEX) == ""
    strict = started(kernel, state, '"scrub": "reset"')
    give(strict, one)
    strict.release(A, (one,), stopped)
    assert "scrub none" in fault(strict, FLEX)


def test_what_is_gone_has_nothing_to_scrub(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    one = slot(life, GPU)
    give(life, one)
    for address in (GPU, SOUND):
        kernel.unplug(address)
    life.release(A, (one,), stopped)
    assert life.claims() == ()
    assert commands.main(["heal", GPU, "--state-dir", str(state)]) == 2


# -- the command ------------------------------------------------------------


def test_a_command_comes_after_the_reset(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub_command": "/wipe"')
    told = kernel.root / "told"
    write(kernel, f"echo $1 >> {told}; exit $(cat {kernel.root}/status)")
    (kernel.root / "status").write_text("0")
    one = slot(life, GPU)
    give(life, one)
    life.release(A, (one,), stopped)
    assert resets(kernel) == [GPU, SOUND]
    assert told.read_text() == f"{GPU}\n"
    assert fault(life, GPU) == ""
    (kernel.root / "status").write_text("4")
    give(life, one)
    life.release(A, (one,), stopped)
    assert "/wipe" in fault(life, GPU)
    assert reserved(life, GPU)


def write(kernel: fakehost.Controller, text: str) -> None:
    place = kernel.root / "wipe"
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
