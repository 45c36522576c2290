# SPDX-License-Identifier: Apache-2.0
"""A drained region leaves the other regions of its card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.state import device_notes
from nova_accel.inventory import conditions
from nova_accel.model import names
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.fakehost

ONE, TWO = "server-1", "server-2"
FPGA = {names.FPGA_CLASS: 1}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Controller]:
    place = tmp_path / "root"
    place.mkdir()
    with simulated.mounted(simulated.SPEC, place) as kernel:
        yield kernel


def spawn(
    life: lifecycle.Lifecycle,
    server: str,
    number: int,
    bitstream: model.Bitstream,
) -> tuple[model.Claim, ...]:
    """Spawn a server whose region loads a bitstream."""
    slot = simulated.slot(life.host.state, simulated.SPLIT, number)
    return life.ensure(
        server,
        (simulated.asks(bitstream.name),),
        (slot,),
        {slot.provider: FPGA},
        {bitstream.name: bitstream},
    )


def test_a_drained_region_leaves_the_others(
    host: Controller, tmp_path: Path
) -> None:
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstream = simulated.bitstream(tmp_path, simulated.B)
    address = conditions.resolve_address(
        life.host.state, simulated.SPLIT_VFS[1]
    )
    assert address == names.region_address(simulated.SPLIT, 1)
    device_notes.DrainNotes(str(tmp_path)).put(address, "x")
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(life, TWO, 1, bitstream)
    assert spawn(life, ONE, 0, bitstream)
