# SPDX-License-Identifier: Apache-2.0
"""Functions that can't be scrubbed are set aside until healed."""

import re
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.host.state import device_notes
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
def test_a_failed_reset_sets_the_card_aside_until_healed(
    kernel: fakehost.Controller, state: Path, is_dead: bool
) -> None:
    life = started(kernel, state)
    before, card_slot = node(life, GPU), slot(life, GPU)
    give(life, card_slot)
    if is_dead:
        kernel.die_at_reset(SOUND)
    else:
        kernel.fail(f"bus/pci/devices/{SOUND}/reset", "ENOTTY")
    life.release(A, (card_slot,), stopped)
    assert life.claims() == ()
    assert SOUND in fault(life, GPU)
    hint = "reset or reseat the card" if is_dead else "doctor --only pci.reset"
    assert hint in fault(life, GPU)
    assert names.FAULTED_TRAIT in node(life, GPU).traits
    assert reserved(life, GPU)
    with pytest.raises(errors.ClaimError):
        give(life, card_slot, B)
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
    give(later, card_slot, B)
    later.release(B, (card_slot,), stopped)
    assert fault(later, GPU) == ""


def test_a_vf_that_does_not_come_back_takes_its_card_along(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    vf_slot, other = slot(life, FLEX, FLEX_VF), slot(life, FLEX, NEXT_VF)
    give(life, vf_slot)
    give(life, other, B)
    kernel.die_at_reset(FLEX_VF)
    life.release(A, (vf_slot,), stopped)
    assert FLEX_VF in fault(life, FLEX)
    assert reserved(life, FLEX)
    # the other server of the card stays
    assert [claim.consumer for claim in life.claims()] == [B]


def test_a_dead_function_is_set_aside_despite_its_rule(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    vf_slot = slot(life, FLEX, FLEX_VF)
    give(life, vf_slot)
    kernel.die_at_reset(FLEX_VF)
    reset = kernel.sys / f"bus/pci/devices/{FLEX_VF}/reset"
    reset.write_text("1")
    life.release(A, (vf_slot,), stopped)
    assert "does not answer" in fault(life, FLEX)


def test_a_function_of_a_running_guest_is_not_changed(
    kernel: fakehost.Controller, state: Path
) -> None:
    libvirt = domains.SimulatedDomains()
    life = started(kernel, state, domains=libvirt)
    card_slot = slot(life, GPU)
    give(life, card_slot)
    use = connection.HostdevUse(functions=frozenset({SOUND}))
    libvirt.read_running = lambda: use
    life.release(A, (card_slot,), stopped)
    assert kernel.writes() == []
    assert "a guest runs with it" in fault(life, GPU)


def test_a_running_server_keeps_an_unreadable_function(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    card_slot = slot(life, GPU)
    claim = give(life, card_slot)
    kernel.fail(f"bus/pci/devices/{GPU}/reset_method", "EIO", on="read")
    life.host.refresh()
    life.release(A, (card_slot,), lambda _: True)
    assert life.claims() == (claim,)
    assert kernel.writes() == []


def test_a_function_with_an_unknown_rule_is_not_offered(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    vf_slot = slot(life, FLEX, FLEX_VF)
    give(life, vf_slot)
    kernel.fail(f"bus/pci/devices/{FLEX}/device", "EIO", on="read")
    life.release(A, (vf_slot,), stopped)
    kernel.heal()
    life.host.refresh()
    assert "device_spec" in fault(life, FLEX)
    assert kernel.writes() == []


def test_a_release_that_libvirt_interrupts_keeps_the_claim(
    kernel: fakehost.Controller, state: Path
) -> None:
    """The running guests are unknown: the next pass tries again."""

    def silent() -> connection.HostdevUse:
        raise OSError("libvirt does not answer")

    libvirt = domains.SimulatedDomains()
    life = started(kernel, state, domains=libvirt)
    card_slot = slot(life, GPU)
    claim = give(life, card_slot)
    libvirt.read_running = silent
    with pytest.raises(OSError, match="does not answer"):
        life.release(A, (card_slot,), stopped)
    assert kernel.writes() == []
    assert life.claims() == (claim,)
    libvirt.read_running = connection.HostdevUse
    life.release(A, (card_slot,), stopped)
    assert GPU in resets(kernel)
    assert life.claims() == ()
    assert fault(life, GPU) == ""


@pytest.mark.parametrize(
    "words",
    ['"scrub": "reset"', '"scrub_command": "/wipe"', '"scrub": "none"'],
)
def test_a_function_that_the_host_uses_is_not_scrubbed(
    kernel: fakehost.Controller, state: Path, words: str
) -> None:
    """Its data may still be there; the rules also match its ids."""
    lines = [
        f'{{"address": "{HELD}", "product_id": "1e04", "use": "passthrough",'
        f" {words}}}"
    ]
    life = simulated.started(kernel.root, policy.parse_rules(lines), state)
    card_slot = slot(life, HELD)
    give(life, card_slot)
    hidden = f"bus/pci/devices/{HELD}/class"
    kernel.fail(hidden, "EIO", on="read")
    life.release(A, (card_slot,), stopped)
    assert life.host.state.device(HELD) is None
    assert life.claims() == ()
    assert kernel.writes() == []
    kernel.heal()
    life.host.refresh()
    is_set_aside = "uses what the server left" in fault(life, HELD)
    assert is_set_aside is ("none" not in words)


def test_an_unreadable_function_is_reset(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    card_slot, other = slot(life, GPU), slot(life, FLEX, FLEX_VF)
    give(life, card_slot)
    give(life, other, B)
    kernel.fail(f"bus/pci/devices/{GPU}/reset_method", "EIO", on="read")
    life.release(A, (card_slot,), stopped)
    assert life.host.state.device(GPU) is None
    assert resets(kernel) == [GPU, SOUND]


@pytest.mark.parametrize("words", ["", '"scrub": "reset"'])
def test_a_function_without_reset_stays_with_its_server(
    kernel: fakehost.Controller, state: Path, words: str
) -> None:
    """It is offered until its server is gone, and to no other one."""
    life = started(kernel, state, words)
    card_slot = slot(life, GPU)
    claim = give(life, card_slot)
    for function in (GPU, SOUND):
        for name in ("reset", "reset_method"):
            kernel.vanish(f"bus/pci/devices/{function}/{name}")
    life.host.refresh()
    assert life.host.state.device(GPU) is not None
    # Its server can be started again, also by the next service.
    later = started(kernel, state, words)
    later.host.refresh()
    assert give(later, card_slot) == claim
    later.release(A, (card_slot,), stopped)
    assert resets(kernel) == []
    assert "the kernel knows no way to reset it" in fault(later, GPU)
    assert '"scrub": "none"' in fault(later, GPU)
    assert reserved(later, GPU)


def test_a_function_without_reset_is_not_offered(
    kernel: fakehost.Controller, state: Path
) -> None:
    for name in ("reset", "reset_method"):
        kernel.vanish(f"bus/pci/devices/{FLEX_VF}/{name}")
        for function in (GPU, SOUND):
            kernel.vanish(f"bus/pci/devices/{function}/{name}")
    life = started(kernel, state)
    assert life.host.state.device(GPU) is None
    flex = life.host.state.device(FLEX)
    assert flex is not None and FLEX_VF not in flex.slots
    unreset = started(kernel, state, '"scrub": "none"')
    flex = unreset.host.state.device(FLEX)
    assert flex is not None and FLEX_VF in flex.slots


@pytest.mark.parametrize(("card", "vf"), [(GPU, ""), (FLEX, FLEX_VF)])
def test_heal_says_why_a_card_without_reset_stays_set_aside(
    kernel: fakehost.Controller,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    card: str,
    vf: str,
) -> None:
    """The next pass would set it aside again, unless policy offers it."""
    life = started(kernel, state)
    card_slot = slot(life, card, vf)
    give(life, card_slot)
    for function in (vf,) if vf else (GPU, SOUND):
        for name in ("reset", "reset_method"):
            kernel.vanish(f"bus/pci/devices/{function}/{name}")
    life.host.refresh()
    life.release(A, (card_slot,), stopped)
    conf = state.parent / "nova.conf"
    conf.write_text(
        f"[nova_accel]\nroot = {kernel.root}\nstate_dir = {state}\n"
    )
    command = ["heal", card, "--config-file", str(conf)]
    assert commands.main(command) == 0
    text = capsys.readouterr().out
    assert "is set aside still: " in text
    line = re.search(r'device_spec = (\{.*"scrub": "none"\})', text)
    assert line is not None
    later = started(kernel, state)
    later.clean_up()
    assert fault(later, card)
    # Followed, the hint works.
    conf.write_text(f"{conf.read_text()}{line[0]}\n")
    assert commands.main(command) == 0
    assert "offered again" in capsys.readouterr().out
    named = simulated.started(
        kernel.root, policy.parse_rules([line[1]]), state
    )
    named.clean_up()
    assert fault(named, card) == ""
    assert not reserved(named, card)
    assert dict(device_notes.FaultNotes(str(state)).read_unreleased()) == {}
    give(named, slot(named, card, vf), B)


def test_an_unplugged_card_is_not_scrubbed(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    card_slot = slot(life, GPU)
    give(life, card_slot)
    for address in (GPU, SOUND):
        kernel.unplug(address)
    life.release(A, (card_slot,), stopped)
    assert life.claims() == ()
    assert commands.main(["heal", GPU, "--state-dir", str(state)]) == 2


# -- the command ------------------------------------------------------------


def test_a_command_comes_after_the_reset(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub_command": "/wipe"')
    log = kernel.root / "scrubbed"
    write(kernel, f"echo $1 >> {log}; exit $(cat {kernel.root}/status)")
    (kernel.root / "status").write_text("0")
    card_slot = slot(life, GPU)
    give(life, card_slot)
    life.release(A, (card_slot,), stopped)
    assert resets(kernel) == [GPU, SOUND]
    assert log.read_text() == f"{GPU}\n"
    assert fault(life, GPU) == ""
    (kernel.root / "status").write_text("4")
    give(life, card_slot)
    life.release(A, (card_slot,), stopped)
    assert "/wipe" in fault(life, GPU)
    assert reserved(life, GPU)


def write(kernel: fakehost.Controller, text: str) -> None:
    place = kernel.root / "wipe"
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
