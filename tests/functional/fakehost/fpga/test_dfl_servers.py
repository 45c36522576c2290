# SPDX-License-Identifier: Apache-2.0
"""The library on Intel's cards: ports for VFs, and servers with regions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.config import policy
from nova_accel.model import actions, names
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost


def function(host: Controller, card: str, number: int = 0) -> str | None:
    return simulated.region(simulated.read(host.root), card, number).function


# -- ports ---------------------------------------------------------------


def rules(count: int) -> policy.DeviceRules:
    return policy.parse_rules(
        (
            f'{{"address": "{simulated.BARE}", "use": "fpga",'
            f' "num_vfs": {count}}}',
        )
    )


def test_ports_are_released_to_as_many_vfs(host: Controller) -> None:
    life = simulated.started(host.root, rules(2))
    assert life.set_card_modes()
    assert host.functions()[simulated.BARE]["vfs"] == 2
    for number, vf in enumerate(simulated.BARE_VFS):
        device = life.host.state.device(f"{simulated.BARE}/region-{number}")
        assert device is not None
        assert device.slots == (vf,)
        assert device.counters
        assert simulated.region(
            life.host.state, simulated.BARE, number
        ).function
    written = len(host.writes())
    assert not life.set_card_modes()
    assert len(host.writes()) == written


def test_ports_are_taken_back(host: Controller) -> None:
    simulated.started(host.root, rules(2)).set_card_modes()
    life = simulated.started(host.root, rules(0))
    assert life.set_card_modes()
    assert host.functions()[simulated.BARE]["vfs"] == 0
    parts = host.fpgas()[simulated.BARE]["parts"]
    assert not any(part["is_free_to_vfs"] for part in parts)


def test_one_of_two_ports(host: Controller) -> None:
    life = simulated.started(host.root, rules(1))
    life.set_card_modes()
    free = [p["is_free_to_vfs"] for p in host.fpgas()[simulated.BARE]["parts"]]
    assert free == [True, False]
    assert host.functions()[simulated.BARE]["vfs"] == 1


def test_a_port_that_is_open_stays(
    host: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    host.open_port(simulated.BARE, 1, is_open=True)
    life = simulated.started(host.root, rules(2))
    life.set_card_modes()
    # the first one was released, and taken back
    parts = host.fpgas()[simulated.BARE]["parts"]
    assert not any(part["is_free_to_vfs"] for part in parts)
    assert host.functions()[simulated.BARE]["vfs"] == 0
    assert "release port 1" in caplog.text
    assert "/dev/dfl-port" in caplog.text


def test_set_port_is_done_once_and_undone(host: Controller) -> None:
    action = actions.SetPort(card=simulated.BARE, number=1, is_released=True)
    executor = simulated.executor(host.root)
    assert executor.apply(action)
    assert not executor.apply(action)
    assert executor.apply(action.undo())
    assert not executor.apply(action.undo())


# -- servers -------------------------------------------------------------


def test_a_server_gets_its_function(host: Controller, tmp_path: Path) -> None:
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstream = simulated.bitstream(tmp_path, simulated.B)
    (claim,) = life.ensure(
        "server",
        (simulated.asks(bitstream.name),),
        (simulated.slot(life.host.state, simulated.SPLIT, 1),),
        bitstreams={bitstream.name: bitstream},
    )
    assert claim.handle == simulated.SPLIT_VFS[1]
    assert function(host, simulated.SPLIT, 1) == simulated.B
    device = life.host.state.device(f"{simulated.SPLIT}/region-1")
    assert device is not None
    assert names.fpga_function_trait(simulated.B) in device.traits


def test_two_regions_of_one_card_at_once(
    host: Controller, tmp_path: Path
) -> None:
    """Its management loads one bitstream at a time; no server fails."""
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstreams = [
        simulated.bitstream(tmp_path, f) for f in (simulated.B, simulated.C)
    ]
    slots = [
        simulated.slot(life.host.state, simulated.SPLIT, n) for n in (0, 1)
    ]
    failed: list[Exception] = []

    def spawn(number: int) -> None:
        bitstream = bitstreams[number]
        try:
            life.ensure(
                f"server-{number}",
                (simulated.asks(bitstream.name),),
                (slots[number],),
                bitstreams={bitstream.name: bitstream},
            )
        except errors.AcceleratorError as error:
            failed.append(error)

    threads = [threading.Thread(target=spawn, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    functions = [function(host, simulated.SPLIT, number) for number in (0, 1)]
    assert functions == [simulated.B, simulated.C]


def test_a_failed_region_is_set_aside(
    host: Controller, tmp_path: Path
) -> None:
    life = simulated.started(host.root, state_dir=tmp_path)
    slot = simulated.slot(life.host.state, simulated.PAC)
    bad = simulated.bitstream(tmp_path, simulated.B, "ERROR")
    good = simulated.bitstream(tmp_path, simulated.B)
    with pytest.raises(errors.ProgrammingError):
        life.ensure(
            "one",
            (simulated.asks(bad.name),),
            (slot,),
            bitstreams={bad.name: bad},
        )
    assert life.claims() == ()
    for now in (life, simulated.started(host.root, state_dir=tmp_path)):
        device = now.host.state.device(f"{simulated.PAC}/region-0")
        assert device is not None
        assert device.fault
        with pytest.raises(errors.ClaimError, match="set aside"):
            now.ensure(
                "two",
                (simulated.asks(good.name),),
                (slot,),
                bitstreams={good.name: good},
            )
    assert len(host.programmings()) == 1


def test_a_card_is_offered_again_when_its_driver_has_it_back(
    host: Controller, tmp_path: Path
) -> None:
    """The kernel is still binding it when its server is gone."""
    life = simulated.started(host.root, state_dir=tmp_path)
    bitstream = simulated.bitstream(tmp_path, simulated.B)
    slot = simulated.slot(life.host.state, simulated.PAC)
    life.ensure(
        "server",
        (simulated.asks(bitstream.name),),
        (slot,),
        bitstreams={bitstream.name: bitstream},
    )
    bus = host.root / "sys/bus/pci"
    (bus / "drivers/dfl-pci/unbind").write_text(simulated.PAC)
    # A pass that reads the host while libvirt gives the card to the guest.
    life.host.refresh()
    trait = names.fpga_function_trait(simulated.B)
    device = life.host.state.device(f"{simulated.PAC}/region-0")
    assert device is None or trait not in device.traits

    later = threading.Timer(
        1.0, (bus / "drivers_probe").write_text, (simulated.PAC,)
    )
    later.start()
    life.release("server", (slot,), lambda claim: False)
    later.join()
    device = life.host.state.device(f"{simulated.PAC}/region-0")
    assert device is not None
    assert device.counters
    assert trait in device.traits
    assert life.claims() == ()
