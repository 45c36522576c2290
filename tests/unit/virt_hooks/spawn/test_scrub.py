# SPDX-License-Identifier: Apache-2.0
"""Functions are scrubbed before the next server."""

import threading
import time
from pathlib import Path

import pytest

from nova_accel import model
from tests.lab import fakehost
from tests.support.hosts import simulated_scrub
from tests.support.hosts.simulated import A, B, node, stopped
from tests.support.hosts.simulated_scrub import (
    GPU,
    HELD,
    SOUND,
    fault,
    give,
    resets,
    slot,
    started,
)

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC


def test_each_function_of_a_card_is_reset(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    before, card_slot = node(life, GPU), slot(life, GPU)
    assert give(life, card_slot).members == (SOUND,)
    assert resets(kernel) == []
    life.release(A, (card_slot,), stopped)
    assert resets(kernel) == [GPU, SOUND]
    assert node(life, GPU) == before
    give(life, card_slot, B)


def test_a_rule_can_require_a_reset(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "reset"')
    card_slot = slot(life, HELD)
    give(life, card_slot)
    life.release(A, (card_slot,), stopped)
    files = [write["path"].split("/")[-1] for write in kernel.writes()]
    assert files.index("unbind") < files.index("reset")
    assert files.index("reset") < files.index("drivers_probe")
    assert kernel.functions()[HELD]["driver"] == "nouveau"
    assert fault(life, HELD) == ""


def test_the_claim_stays_until_the_scrub_ends(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    card_slot = slot(life, GPU)
    claim = give(life, card_slot)
    kernel.hang(f"bus/pci/devices/{SOUND}/reset")
    release = threading.Thread(
        target=life.release, args=(A, (card_slot,), stopped), daemon=True
    )
    release.start()
    until = time.monotonic() + 10
    while resets(kernel) != [GPU]:  # the next one hangs
        assert time.monotonic() < until
        time.sleep(0.05)
    assert life.claims() == (claim,)
    spawned: list[model.Claim] = []
    late = threading.Thread(
        target=lambda: spawned.append(give(life, card_slot, B)), daemon=True
    )
    late.start()
    late.join(0.5)
    assert late.is_alive()
    assert spawned == []
    kernel.heal()
    for thread in (release, late):
        thread.join(10)
        assert not thread.is_alive()
    assert [claimed.consumer for claimed in spawned] == [B]
    assert resets(kernel) == [GPU, SOUND]
