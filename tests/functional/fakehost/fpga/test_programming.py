# SPDX-License-Identifier: Apache-2.0
"""The library on FPGA cards: discovery and loading.

Each row of ``CARDS`` is a region with another way to load it.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost


def load(
    host: Controller,
    card: str,
    bitstream: model.Bitstream,
    number: int = 0,
    seconds: float = simulated.PROGRAM_S,
) -> None:
    action = simulated.program(
        simulated.read(host.root), card, bitstream, number
    )
    simulated.executor(host.root, seconds).apply(action)


def failure(
    host: Controller,
    card: str,
    bitstream: model.Bitstream,
    number: int = 0,
    seconds: float = simulated.PROGRAM_S,
) -> errors.ActionError:
    with pytest.raises(errors.ActionError) as caught:
        load(host, card, bitstream, number, seconds)
    return caught.value


def wait_until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + simulated.PROGRAM_S
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def function(host: Controller, card: str, number: int = 0) -> str | None:
    return simulated.region(simulated.read(host.root), card, number).function


# -- discovery -----------------------------------------------------------


def test_cards_and_regions_are_found(host: Controller) -> None:
    state = simulated.read(host.root)
    assert state.complete
    offered = {
        d.address: (d.slots, d.region.function, d.region.tool)
        for d in state.devices
        if d.region and d.counters and d.plugin == "dfl"
    }
    vfs = simulated.SPLIT_VFS
    assert offered == {
        f"{simulated.PAC}/region-0": ((simulated.PAC,), simulated.NLB0, ""),
        f"{simulated.SPLIT}/region-0": ((vfs[0],), simulated.NLB0, ""),
        f"{simulated.SPLIT}/region-1": ((vfs[1],), simulated.A, ""),
        f"{simulated.LEGACY}/region-0": (
            (simulated.LEGACY,),
            simulated.NLB0,
            "fpgaconf",
        ),
    }
    for address in offered:
        device = state.device(address)
        assert device is not None
        assert names.interface_trait(simulated.INTEL) in device.traits
        assert names.PROGRAMMABLE_TRAIT in device.traits
    # a PF with two ports can't go to two guests
    bare = state.device(f"{simulated.BARE}/region-0")
    assert bare is not None
    assert not bare.counters
    assert any(p.where == bare.address for p in state.problems)


def test_a_card_that_a_guest_has_stays(host: Controller) -> None:
    number = privileged.bind_driver(str(host.root), simulated.PAC, "vfio-pci")
    assert number == 0
    state = simulated.read(host.root)
    region = simulated.region(state, simulated.PAC)
    assert (region.function, region.interfaces) == (None, ())
    assert not region.is_programmable
    device = state.device(f"{simulated.PAC}/region-0")
    assert device is not None
    assert device.counters == {names.FPGA_CLASS: 1}


def test_a_region_behind_a_vf_of_a_guest_stays(host: Controller) -> None:
    vf = simulated.SPLIT_VFS[1]
    assert privileged.bind_driver(str(host.root), vf, "vfio-pci") == 0
    state = simulated.read(host.root)
    device = state.device(f"{simulated.SPLIT}/region-1")
    assert device is not None
    assert device.slots == (vf,)
    assert simulated.region(state, simulated.SPLIT, 1).function is None
    assert (
        simulated.region(state, simulated.SPLIT, 0).function == simulated.NLB0
    )


# -- loading -------------------------------------------------------------

CARDS = pytest.mark.parametrize(
    ("card", "number"),
    [
        (simulated.PAC, 0),
        (simulated.SPLIT, 1),
        (simulated.LEGACY, 0),
        (simulated.ALVEO, 0),
    ],
    ids=["pf", "vf", "fpgaconf", "xrt-smi"],
)
#: Seconds; ioctl(2) is with the card at once.
_HANG_IOCTL_S = 1.5
#: Tools of the vendors that load regions; ioctl(2) loads the others.
TOOLS = {simulated.LEGACY: "fpgaconf", simulated.ALVEO: "xrt-smi"}


def bitstream_for(
    card: str, place: Path, function: str, directive: str = ""
) -> model.Bitstream:
    is_xclbin = card == simulated.ALVEO
    return simulated.bitstream(place, function, directive, is_xclbin=is_xclbin)


@CARDS
def test_a_region_gets_its_function(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    bitstream = bitstream_for(card, tmp_path, simulated.B)
    load(host, card, bitstream, number)
    assert function(host, card, number) == simulated.B
    assert len(host.programmings()) == 1
    # a loaded function is not loaded again
    load(host, card, bitstream, number)
    assert len(host.programmings()) == 1


@CARDS
def test_a_refusal_touches_nothing(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    """Only an error of a tool may be one that came late."""
    before = function(host, card, number)
    bitstream = bitstream_for(card, tmp_path, simulated.B, "REFUSE")
    error = failure(host, card, bitstream, number)
    assert isinstance(error, errors.ProgrammingError) is (card in TOOLS)
    if card in TOOLS:
        assert TOOLS[card] in str(error)
    else:
        assert error.number == errno.EINVAL
        assert "compare its interface id" in error.hint
    assert function(host, card, number) == before
    assert host.programmings() == []


@CARDS
@pytest.mark.parametrize(
    ("directive", "is_unchanged"), [("ERROR", False), ("SAME", True)]
)
def test_a_failure_is_a_programming_error(
    host: Controller,
    tmp_path: Path,
    card: str,
    number: int,
    directive: str,
    is_unchanged: bool,
) -> None:
    before = function(host, card, number)
    bitstream = bitstream_for(card, tmp_path, simulated.B, directive)
    error = failure(host, card, bitstream, number)
    assert isinstance(error, errors.ProgrammingError)
    assert error.region == names.region_address(card, number)
    if card not in TOOLS:
        assert error.number == (0 if is_unchanged else errno.EIO)
    # The Alveo's driver says that nothing is loaded, the others nothing.
    lost = "" if card == simulated.ALVEO else None
    loaded = function(host, card, number)
    assert loaded == (before if is_unchanged else lost)


@CARDS
def test_a_hanging_load_times_out(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    bitstream = bitstream_for(card, tmp_path, simulated.B, "HANG")
    seconds = simulated.HANG_PROGRAM_S if card in TOOLS else _HANG_IOCTL_S
    error = failure(host, card, bitstream, number, seconds)
    assert isinstance(error, errors.ProgrammingError)
    assert error.number == errno.ETIMEDOUT
    assert "program_timeout" in error.hint
    bitstream = bitstream_for(card, tmp_path, simulated.B)
    if card not in TOOLS:
        assert function(host, card, number) is None
        # the first call is still in the kernel
        again = failure(host, card, bitstream, number)
        assert again.number == errno.EBUSY
    host.heal()

    def is_loaded() -> bool:
        try:
            load(host, card, bitstream, number)
        except errors.ActionError as busy:
            assert busy.number == errno.EBUSY
            return False
        return True

    wait_until(is_loaded)
    assert function(host, card, number) == simulated.B


@CARDS
def test_a_card_that_vanishes(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    bitstream = bitstream_for(card, tmp_path, simulated.B, "VANISH")
    error = failure(host, card, bitstream, number)
    assert isinstance(error, errors.ProgrammingError)
    assert TOOLS.get(card, "") in str(error)
    assert card not in host.functions()
    state = simulated.read(host.root)
    assert state.device(names.region_address(card, number)) is None
    assert state.complete


def test_the_tool_refuses_another_interface(
    host: Controller, tmp_path: Path
) -> None:
    bitstream = simulated.bitstream(
        tmp_path, simulated.B, interface=simulated.OTHER
    )
    error = failure(host, simulated.LEGACY, bitstream)
    assert "No suitable slots" in str(error)
    assert function(host, simulated.LEGACY) == simulated.NLB0
    assert host.programmings() == []


@CARDS
def test_a_file_that_has_changed_touches_nothing(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    bitstream = bitstream_for(card, tmp_path, simulated.B)
    Path(bitstream.path).write_bytes(b"something else")
    before = function(host, card, number)
    error = failure(host, card, bitstream, number)
    assert error.number == errno.EBADMSG
    assert "fetched again" in error.hint
    assert not isinstance(error, errors.ProgrammingError)
    assert function(host, card, number) == before
    assert host.programmings() == []


def test_an_open_port_is_not_touched(host: Controller, tmp_path: Path) -> None:
    host.open_port(simulated.PAC, 0, is_open=True)
    error = failure(
        host, simulated.PAC, simulated.bitstream(tmp_path, simulated.B)
    )
    assert error.number == errno.EBUSY
    assert "/dev/dfl-port" in error.hint
    assert not isinstance(error, errors.ProgrammingError)
    assert function(host, simulated.PAC) == simulated.NLB0


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    ("card", "slot"),
    [
        (simulated.SPLIT, simulated.SPLIT_VFS[0]),
        (simulated.ALVEO, simulated.USER),
    ],
)
def test_a_region_of_a_guest_is_not_touched(
    host: Controller, tmp_path: Path, is_held: bool, card: str, slot: str
) -> None:
    action = simulated.program(
        simulated.read(host.root),
        card,
        bitstream_for(card, tmp_path, simulated.B),
    )
    assert privileged.bind_driver(str(host.root), slot, "vfio-pci") == 0
    group = host.functions()[slot]["group"]
    with (host.root / f"dev/vfio/{group}").open() as group_file:
        if is_held:
            fcntl.flock(group_file, fcntl.LOCK_EX)
        with pytest.raises(errors.ActionError) as caught:
            simulated.executor(host.root).apply(action)
    assert caught.value.number == errno.EBUSY
    assert host.programmings() == []
    assert function(host, card) is None


def test_a_missing_tool_is_an_error(host: Controller, tmp_path: Path) -> None:
    tool = host.root / "usr/bin/fpgaconf"
    tool.unlink()
    try:
        error = failure(
            host, simulated.LEGACY, simulated.bitstream(tmp_path, simulated.B)
        )
    finally:
        host.write_fpga_tool("fpgaconf")
    assert error.number == errno.ENOENT
    assert "/usr/bin/fpgaconf" in error.hint
    assert not isinstance(error, errors.ProgrammingError)


def test_a_stale_plan_is_refused_by_the_executor(
    host: Controller, tmp_path: Path
) -> None:
    """The region of an unplugged PF has no device to load it by."""
    action = simulated.program(
        simulated.read(host.root),
        simulated.PAC,
        simulated.bitstream(tmp_path, simulated.B),
    )
    host.unplug(simulated.PAC)
    with pytest.raises(errors.ActionError) as caught:
        simulated.executor(host.root).apply(action)
    assert not isinstance(caught.value, errors.ProgrammingError)
    assert host.programmings() == []
