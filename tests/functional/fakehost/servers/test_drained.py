# SPDX-License-Identifier: Apache-2.0
"""Cards and regions are drained by any of their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.state import drains
from nova_accel.inventory import conditions
from nova_accel.model import names
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.fakehost

NO_RULES = policy.DeviceRules()
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


def list_drained(life: lifecycle.Lifecycle) -> set[str]:
    state = life.host.refresh_changed()
    return {device.address for device in state.devices if device.drain}


def test_a_drained_card_gives_no_region(
    host: Controller, tmp_path: Path
) -> None:
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstream = simulated.bitstream(tmp_path, simulated.B)
    (first,) = spawn(life, ONE, 0, bitstream)
    notes = drains.DrainNotes(str(tmp_path))
    notes.put(simulated.SPLIT, "its fan is loud")
    regions = {names.region_address(simulated.SPLIT, n) for n in (0, 1)}
    assert list_drained(life) == {simulated.SPLIT} | regions
    programmed = len(host.programmings())
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(life, TWO, 1, bitstream)
    assert len(host.programmings()) == programmed
    # Its server gets its region again, also from a new service.
    slot = simulated.slot(life.host.state, simulated.SPLIT, 0)
    again = simulated.started(host.root, state_dir=tmp_path)
    (restored,) = again.ensure(
        ONE,
        (simulated.asks(bitstream.name),),
        (slot,),
        bitstreams={bitstream.name: bitstream},
    )
    assert restored.handle == first.handle
    assert (
        simulated.region(again.host.refresh(), simulated.SPLIT).function
        == simulated.B
    )
    notes.remove([simulated.SPLIT])
    assert list_drained(again) == set()
    assert spawn(again, TWO, 1, bitstream)


def test_a_drained_region_leaves_the_others(
    host: Controller, tmp_path: Path
) -> None:
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstream = simulated.bitstream(tmp_path, simulated.B)
    address = conditions.resolve_address(
        life.host.state, simulated.SPLIT_VFS[1]
    )
    assert address == names.region_address(simulated.SPLIT, 1)
    drains.DrainNotes(str(tmp_path)).put(address, "x")
    with pytest.raises(errors.ClaimError, match="takes no new server"):
        spawn(life, TWO, 1, bitstream)
    assert spawn(life, ONE, 0, bitstream)


def test_each_function_of_a_card_is_the_card(gpus: Controller) -> None:
    state = simulated.read(gpus.root, NO_RULES)
    assert len(state.devices) > 3
    for device in state.devices:
        for name in (*device.slots, *device.members, device.address):
            if ":" in name and not device.parent:
                assert (
                    conditions.resolve_address(state, name) == device.address
                )
