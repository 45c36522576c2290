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
    FLEX,
    FLEX_VF,
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
    before, one = node(life, GPU), slot(life, GPU)
    assert give(life, one).members == (SOUND,)
    assert resets(kernel) == []
    life.release(A, (one,), stopped)
    assert resets(kernel) == [GPU, SOUND]
    assert node(life, GPU) == before
    give(life, one, B)


def test_a_vf_is_reset_alone(kernel: fakehost.Controller, state: Path) -> None:
    life = started(kernel, state)
    one = slot(life, FLEX, FLEX_VF)
    give(life, one)
    life.release(A, (one,), stopped)
    assert resets(kernel) == [FLEX_VF]
    assert fault(life, FLEX) == ""


def test_a_driver_of_the_host_is_not_disturbed(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    one = slot(life, HELD)
    give(life, one)
    life.release(A, (one,), stopped)
    assert kernel.writes() == []
    assert fault(life, HELD) == ""


def test_a_line_takes_it_from_its_driver_meanwhile(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "reset"')
    one = slot(life, HELD)
    give(life, one)
    life.release(A, (one,), stopped)
    ends = [write["path"].split("/")[-1] for write in kernel.writes()]
    assert ends.index("unbind") < ends.index("reset")
    assert ends.index("reset") < ends.index("drivers_probe")
    assert kernel.functions()[HELD]["driver"] == "nouveau"
    assert fault(life, HELD) == ""


def test_a_line_leaves_it_as_it_is(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state, '"scrub": "none"')
    one = slot(life, GPU)
    give(life, one)
    life.release(A, (one,), stopped)
    assert kernel.writes() == []


def test_it_is_the_server_s_until_it_is_done(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    one = slot(life, GPU)
    claim = give(life, one)
    kernel.hang(f"bus/pci/devices/{SOUND}/reset")
    ends = threading.Thread(
        target=life.release, args=(A, (one,), stopped), daemon=True
    )
    ends.start()
    until = time.monotonic() + 10
    while resets(kernel) != [GPU]:  # the next one hangs
        assert time.monotonic() < until
        time.sleep(0.05)
    assert life.claims() == (claim,)
    comes: list[model.Claim] = []
    late = threading.Thread(
        target=lambda: comes.append(give(life, one, B)), daemon=True
    )
    late.start()
    late.join(0.5)
    assert late.is_alive()
    assert comes == []
    kernel.heal()
    for thread in (ends, late):
        thread.join(10)
        assert not thread.is_alive()
    assert [found.consumer for found in comes] == [B]
    assert resets(kernel) == [GPU, SOUND]
