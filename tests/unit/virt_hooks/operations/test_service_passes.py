# SPDX-License-Identifier: Apache-2.0
"""Passes of two services on one host do not harm each other."""

import threading
import time
from pathlib import Path

import pytest

from nova_accel.config import policy
from nova_accel.host.state import device_notes
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts import domains, simulated_scrub
from tests.support.hosts.simulated import A, B
from tests.support.hosts.simulated_scrub import (
    FLEX,
    FLEX_VF,
    GPU,
    NEXT_VF,
    fault,
    give,
    slot,
    started,
)
from virt_hooks.guest import connection
from virt_hooks.operations import nova_database
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC


def start_with_fewer_vfs(
    kernel: fakehost.Controller, state: Path, *lines: str
) -> lifecycle.Lifecycle:
    rules = policy.parse_rules(
        [f'{{"address": "{FLEX}", "use": "vf", "num_vfs": 2}}', *lines]
    )
    return simulated.started(kernel.root, rules, state)


def vfs(kernel: fakehost.Controller) -> int:
    return int(kernel.functions()[FLEX]["vfs"])


def test_the_other_service_spawns_while_modes_are_set(
    kernel: fakehost.Controller, state: Path
) -> None:
    """The claims of the other nova-compute are not known."""
    other = started(kernel, state)
    give(other, slot(other, FLEX, FLEX_VF))
    life = start_with_fewer_vfs(kernel, state)
    life.set_alone(False)
    assert not life.set_card_modes()
    assert vfs(kernel) == 4


def test_a_successor_spawns_during_a_cleanup(
    kernel: fakehost.Controller, state: Path
) -> None:
    """The older service is in a pass that began while it was alone."""
    dead = started(kernel, state)
    for number, name in enumerate((FLEX_VF, NEXT_VF)):
        give(dead, slot(dead, FLEX, name), f"gone-{number}")
    give(dead, slot(dead, GPU), "gone-2")

    libvirt = domains.SimulatedDomains()
    older = started(kernel, state, domains=libvirt)
    kernel.hang(f"bus/pci/devices/{FLEX_VF}/reset")
    cleanup = threading.Thread(target=older.clean_up, daemon=True)
    cleanup.start()
    wait_begun(state)

    successor = started(kernel, state)
    successor.set_alone(False)
    older.set_alone(False)  # what its next restore would find
    give(successor, slot(successor, GPU), B)
    runs = connection.HostdevUse(functions=frozenset({GPU}))
    libvirt.set_use(runs)
    kernel.heal()
    cleanup.join(20)
    assert not cleanup.is_alive()
    older.host.refresh()
    assert fault(older, GPU) == ""


def test_a_pass_does_not_wait_for_a_locked_card(
    kernel: fakehost.Controller, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that is locked for an hour delays no pass.

    One VF of the server is missing: each pass tries to restore it.
    """
    life = started(kernel, state)
    vf_slot = slot(life, FLEX, FLEX_VF)
    at_start = nova_database.StartupServers(life)
    server = nova_database.Restorable(
        slots=(vf_slot, slot(life, FLEX, "0000:4d:00.7"))
    )
    monkeypatch.setattr(nova_database, "read", lambda _: {A: server})
    at_start.restore_claims(lambda: [])
    assert [claim.slot for claim in life.claims()] == [FLEX_VF]
    other = slot(life, FLEX, NEXT_VF)
    give(life, other, B)
    kernel.hang(f"bus/pci/devices/{NEXT_VF}/reset")
    release = threading.Thread(
        target=life.release, args=(B, (other,), lambda _: False), daemon=True
    )
    release.start()
    wait_begun(state)
    passes = threading.Thread(
        target=at_start.restore_claims, args=(lambda: [],), daemon=True
    )
    passes.start()
    passes.join(3)
    is_stuck = passes.is_alive()
    kernel.heal()
    release.join(10)
    passes.join(10)
    assert not is_stuck


def wait_begun(state: Path) -> None:
    notes = device_notes.FaultNotes(str(state))
    until = time.monotonic() + 10
    while not notes.read_scrubs():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_scrub_of_this_service_is_not_interrupted(
    kernel: fakehost.Controller, state: Path
) -> None:
    """It was not alone at first; then the other service ends."""
    dead = started(kernel, state)
    give(dead, slot(dead, GPU), "gone")
    life = started(kernel, state)
    life.set_alone(False)
    life.clean_up()
    kernel.hang(f"bus/pci/devices/{GPU}/reset")
    spawn = threading.Thread(
        target=give, args=(life, slot(life, GPU), B), daemon=True
    )
    spawn.start()
    wait_begun(state)
    life.set_alone(True)
    life.clean_up()
    kernel.heal()
    spawn.join(10)
    assert not spawn.is_alive()
    life.host.refresh()
    assert [claim.consumer for claim in life.claims()] == [B]
    assert fault(life, GPU) == ""
