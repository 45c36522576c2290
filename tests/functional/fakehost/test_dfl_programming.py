# SPDX-License-Identifier: Apache-2.0
"""The library on Intel's cards: discovery and loading."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated as site

pytestmark = pytest.mark.fakehost

#: How long a loading may take over what it was given, in seconds.
SLACK_S = 5


@pytest.fixture(scope="module")
def _mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    place = tmp_path_factory.mktemp("dfl")
    with site.mounted(site.SPEC, place) as kernel:
        yield kernel


@pytest.fixture
def host(_mounted: Controller) -> Iterator[Controller]:
    _mounted.reboot()
    yield _mounted
    _mounted.heal()  # what hangs in a thread of this process


def load(
    host: Controller, card: str, wanted: model.Bitstream, number: int = 0
) -> None:
    action = site.program(site.read(host.root), card, wanted, number)
    site.executor(host.root).apply(action)


def failure(
    host: Controller, card: str, wanted: model.Bitstream, number: int = 0
) -> errors.ActionError:
    with pytest.raises(errors.ActionError) as caught:
        load(host, card, wanted, number)
    return caught.value


def function(host: Controller, card: str, number: int = 0) -> str | None:
    return site.region(site.read(host.root), card, number).function


# -- discovery -----------------------------------------------------------


def test_cards_and_regions_are_found(host: Controller) -> None:
    found = site.read(host.root)
    assert found.complete
    offered = {
        d.address: (d.slots, d.region.function, d.region.tool)
        for d in found.devices
        if d.region and d.counters and d.plugin == "dfl"
    }
    vfs = site.SPLIT_VFS
    assert offered == {
        f"{site.PAC}/region-0": ((site.PAC,), site.NLB0, ""),
        f"{site.SPLIT}/region-0": ((vfs[0],), site.NLB0, ""),
        f"{site.SPLIT}/region-1": ((vfs[1],), site.A, ""),
        f"{site.LEGACY}/region-0": ((site.LEGACY,), site.NLB0, "fpgaconf"),
    }
    for address in offered:
        device = found.device(address)
        assert device is not None
        assert names.interface_trait(site.INTEL) in device.traits
        assert names.PROGRAMMABLE_TRAIT in device.traits
    # a PF with two ports can't go to two guests
    bare = found.device(f"{site.BARE}/region-0")
    assert bare is not None
    assert not bare.counters
    assert any(p.where == bare.address for p in found.problems)


def test_a_card_that_a_guest_has_stays(host: Controller) -> None:
    number = privileged.bind_driver(str(host.root), site.PAC, "vfio-pci")
    assert number == 0
    found = site.read(host.root)
    region = site.region(found, site.PAC)
    assert (region.function, region.interfaces) == (None, ())
    assert not region.is_programmable
    device = found.device(f"{site.PAC}/region-0")
    assert device is not None
    assert device.counters == {names.FPGA_CLASS: 1}


def test_a_region_behind_a_vf_of_a_guest_stays(host: Controller) -> None:
    vf = site.SPLIT_VFS[1]
    assert privileged.bind_driver(str(host.root), vf, "vfio-pci") == 0
    found = site.read(host.root)
    device = found.device(f"{site.SPLIT}/region-1")
    assert device is not None
    assert device.slots == (vf,)
    assert site.region(found, site.SPLIT, 1).function is None
    assert site.region(found, site.SPLIT, 0).function == site.NLB0


# -- loading -------------------------------------------------------------

CARDS = pytest.mark.parametrize(
    ("card", "number"),
    [(site.PAC, 0), (site.SPLIT, 1), (site.LEGACY, 0)],
    ids=["pf", "vf", "fpgaconf"],
)


@CARDS
def test_a_region_gets_its_function(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    load(host, card, site.bitstream(tmp_path, site.B), number)
    assert function(host, card, number) == site.B
    assert len(host.programmings()) == 1
    # what is there is not loaded again
    load(host, card, site.bitstream(tmp_path, site.B), number)
    assert len(host.programmings()) == 1


@pytest.mark.parametrize("card", [site.PAC, site.SPLIT], ids=["pf", "vf"])
def test_a_refusal_touches_nothing(
    host: Controller, tmp_path: Path, card: str
) -> None:
    error = failure(host, card, site.bitstream(tmp_path, site.B, "REFUSE"))
    assert not isinstance(error, errors.ProgrammingError)
    assert error.number == errno.EINVAL
    assert function(host, card) == site.NLB0
    assert host.programmings() == []


@CARDS
@pytest.mark.parametrize(
    ("directive", "shown"), [("ERROR", None), ("SAME", "before")]
)
def test_a_failure_is_told_as_one(
    host: Controller,
    tmp_path: Path,
    card: str,
    number: int,
    directive: str,
    shown: str | None,
) -> None:
    before = function(host, card, number)
    wanted = site.bitstream(tmp_path, site.B, directive)
    error = failure(host, card, wanted, number)
    assert isinstance(error, errors.ProgrammingError)
    assert error.region == names.region_address(card, number)
    found = function(host, card, number)
    assert found == (before if shown else None)


@CARDS
def test_what_hangs_is_given_up(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    began = time.monotonic()
    wanted = site.bitstream(tmp_path, site.B, "HANG")
    error = failure(host, card, wanted, number)
    assert time.monotonic() - began < site.PROGRAM_S + SLACK_S
    assert isinstance(error, errors.ProgrammingError)
    assert error.number == errno.ETIMEDOUT
    assert function(host, card, number) is None
    if card != site.LEGACY:
        again = failure(host, card, site.bitstream(tmp_path, site.A), number)
        # the first call is still in the kernel
        assert again.number == errno.EBUSY
    host.heal()
    time.sleep(0.2)
    load(host, card, site.bitstream(tmp_path, site.B), number)
    assert function(host, card, number) == site.B


@pytest.mark.parametrize("card", [site.PAC, site.SPLIT], ids=["pf", "vf"])
def test_a_card_that_vanishes(
    host: Controller, tmp_path: Path, card: str
) -> None:
    error = failure(host, card, site.bitstream(tmp_path, site.B, "VANISH"))
    assert isinstance(error, errors.ProgrammingError)
    assert card not in host.functions()
    found = site.read(host.root)
    assert found.device(names.region_address(card, 0)) is None
    assert found.complete


def test_a_card_that_vanishes_under_its_tool(
    host: Controller, tmp_path: Path
) -> None:
    wanted = site.bitstream(tmp_path, site.B, "VANISH")
    error = failure(host, site.LEGACY, wanted)
    assert isinstance(error, errors.ProgrammingError)
    assert "fpgaconf" in str(error)
    assert site.LEGACY not in host.functions()


def test_the_tool_refuses_another_interface(
    host: Controller, tmp_path: Path
) -> None:
    wanted = site.bitstream(tmp_path, site.B, interface=site.OTHER)
    error = failure(host, site.LEGACY, wanted)
    assert "No suitable slots" in str(error)
    assert function(host, site.LEGACY) == site.NLB0
    assert host.programmings() == []


@CARDS
def test_a_file_that_has_changed_touches_nothing(
    host: Controller, tmp_path: Path, card: str, number: int
) -> None:
    wanted = site.bitstream(tmp_path, site.B)
    Path(wanted.path).write_bytes(b"something else")
    before = function(host, card, number)
    error = failure(host, card, wanted, number)
    assert error.number == errno.EBADMSG
    assert not isinstance(error, errors.ProgrammingError)
    assert function(host, card, number) == before
    assert host.programmings() == []


def test_an_open_port_is_not_touched(host: Controller, tmp_path: Path) -> None:
    host.open_port(site.PAC, 0, is_open=True)
    error = failure(host, site.PAC, site.bitstream(tmp_path, site.B))
    assert error.number == errno.EBUSY
    assert not isinstance(error, errors.ProgrammingError)
    assert function(host, site.PAC) == site.NLB0


@pytest.mark.parametrize("is_held", [False, True])
def test_a_region_of_a_guest_is_not_touched(
    host: Controller, tmp_path: Path, is_held: bool
) -> None:
    vf = site.SPLIT_VFS[0]
    action = site.program(
        site.read(host.root), site.SPLIT, site.bitstream(tmp_path, site.B)
    )
    assert privileged.bind_driver(str(host.root), vf, "vfio-pci") == 0
    group = host.functions()[vf]["group"]
    with (host.root / f"dev/vfio/{group}").open() as held:
        if is_held:
            fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.ActionError) as caught:
            site.executor(host.root).apply(action)
    assert caught.value.number == errno.EBUSY
    assert host.programmings() == []


def test_a_missing_tool_is_told(host: Controller, tmp_path: Path) -> None:
    tool = host.root / "usr/bin/fpgaconf"
    tool.unlink()
    try:
        error = failure(host, site.LEGACY, site.bitstream(tmp_path, site.B))
    finally:
        host.write_fpga_tool("fpgaconf")
    assert error.number == errno.ENOENT
    assert not isinstance(error, errors.ProgrammingError)


def test_a_stale_plan_is_refused_by_the_executor(
    host: Controller, tmp_path: Path
) -> None:
    """The region of a PF that is gone has no device to load it by."""
    action = site.program(
        site.read(host.root), site.PAC, site.bitstream(tmp_path, site.B)
    )
    host.unplug(site.PAC)
    with pytest.raises(errors.ActionError) as caught:
        site.executor(host.root).apply(action)
    assert not isinstance(caught.value, errors.ProgrammingError)
    assert host.programmings() == []
