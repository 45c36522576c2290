# SPDX-License-Identifier: Apache-2.0
"""Alveo cards: the simulated drivers and tool, and servers on them."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from nova_accel import model
from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.functional.fakehost.support.cards import store
from tests.lab import fakehost
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost

BLANK = "0000:ae:00.0"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.AlveoCard(address=simulated.ALVEO, function=simulated.A),
        fakehost.AlveoCard(address=BLANK),
    )
)


@pytest.fixture
def bitstream(tmp_path: Path) -> model.Bitstream:
    return simulated.bitstream(tmp_path, simulated.B, is_xclbin=True)


def user(host: Controller, name: str, card: str = simulated.ALVEO) -> str:
    path = host.sys / "bus/pci/devices" / f"{card[:-1]}1" / name
    return path.read_text().strip()


def smi(host: Controller, path: str, where: str = simulated.USER) -> str:
    """Return the tool's output; raises CalledProcessError."""
    tool = host.root / "opt/xilinx/xrt/bin/xrt-smi"
    done = subprocess.run(  # noqa: S603 - own arguments
        [str(tool), "program", "--device", where, "--user", path],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


# -- the simulated drivers and tool --------------------------------------


def test_attributes(host: Controller) -> None:
    mgmt = host.sys / "bus/pci/devices" / simulated.ALVEO
    assert (mgmt / "interface_uuids").read_text() == f"{simulated.XILINX}\n"
    (vbnv,) = mgmt.glob("rom.m.*/VBNV")
    assert vbnv.read_text() == "xilinx_u250_gen3x16_xdma_shell_4_1\n"
    assert user(host, "xclbinuuid") == str(uuid.UUID(simulated.A))
    assert user(host, "xclbinuuid", BLANK) == ""
    driver = (mgmt / "driver").resolve().name
    assert driver == "xclmgmt"


def test_the_tool_loads(host: Controller, bitstream: model.Bitstream) -> None:
    uevents = host.uevents()
    output = smi(host, bitstream.path)
    assert output == f"INFO: xrt-smi program succeeded on {simulated.USER}\n"
    assert user(host, "xclbinuuid") == str(uuid.UUID(simulated.B))
    # a loaded function is not loaded again, and no uevent is sent
    smi(host, bitstream.path)
    assert len(host.programmings()) == 1
    assert host.uevents() == uevents


@pytest.mark.parametrize("driver", ["xocl", "xclmgmt"])
def test_the_tool_needs_both_drivers(
    host: Controller, bitstream: model.Bitstream, driver: str
) -> None:
    address = simulated.USER if driver == "xocl" else simulated.ALVEO
    store(host.sys / "bus/pci/drivers" / driver / "unbind", address)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        smi(host, bitstream.path)
    assert caught.value.returncode == 1
    assert caught.value.stderr.startswith("ERROR: ")


def test_another_interface_is_refused(
    host: Controller, tmp_path: Path
) -> None:
    wrong = simulated.bitstream(
        tmp_path, simulated.B, is_xclbin=True, interface=simulated.OTHER
    )
    with pytest.raises(subprocess.CalledProcessError) as caught:
        smi(host, wrong.path)
    assert "Invalid argument" in caught.value.stderr
    assert user(host, "xclbinuuid") == str(uuid.UUID(simulated.A))


def test_the_user_function_ignores_the_management_tool(
    host: Controller, bitstream: model.Bitstream
) -> None:
    tool = host.root / "opt/xilinx/xrt/bin/xbmgmt"
    command = [
        str(tool),
        "program",
        "-d",
        simulated.ALVEO,
        "-u",
        bitstream.path,
    ]
    subprocess.run(command, check=True)  # noqa: S603 - own arguments
    assert user(host, "xclbinuuid") == str(uuid.UUID(simulated.A))


# -- the library ---------------------------------------------------------


def test_cards_are_found(host: Controller) -> None:
    state = simulated.read(host.root)
    for card, function in ((simulated.ALVEO, simulated.A), (BLANK, "")):
        device = state.device(f"{card}/region-0")
        assert device is not None
        assert device.plugin == "alveo"
        assert device.slots == (f"{card[:-1]}1",)
        assert device.counters == {names.FPGA_CLASS: 1}
        region = simulated.region(state, card)
        assert region.function == function
        assert region.interfaces == (simulated.XILINX,)
        assert region.is_programmable
        assert region.tool == "xrt-smi"


def test_a_server_gets_its_function(
    host: Controller, tmp_path: Path, bitstream: model.Bitstream
) -> None:
    """Also where the last guest left the function with vfio-pci."""
    life = simulated.started(host.root, state_dir=tmp_path)
    slot = simulated.slot(life.host.state, simulated.ALVEO)
    assert (
        privileged.bind_driver(str(host.root), simulated.USER, "vfio-pci") == 0
    )
    life.ensure(
        "server",
        (simulated.asks(bitstream.name),),
        (slot,),
        bitstreams={bitstream.name: bitstream},
    )
    assert user(host, "xclbinuuid") == str(uuid.UUID(simulated.B))
    assert len(host.programmings()) == 1
