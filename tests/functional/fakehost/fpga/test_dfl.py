# SPDX-License-Identifier: Apache-2.0
"""The simulated DFL drivers behave like the kernel's."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import refused, store
from tests.lab.fakehost import Controller, FakehostError, fpga
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost

PORT_PR, RELEASE, ASSIGN = 0xB680, 0x4004B681, 0x4004B682


def place_of(host: Controller, card: str) -> Path:
    return host.sys / "bus/pci/devices" / card


def only(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def fme(host: Controller, card: str = simulated.PAC) -> Path:
    return only(place_of(host, card), "fpga_region/region*/dfl-fme.*")


def port(host: Controller, card: str = simulated.PAC) -> Path:
    return only(place_of(host, card), "fpga_region/region*/dfl-port.*")


def call(
    host: Controller,
    request: int,
    argument: bytes,
    card: str = simulated.PAC,
) -> None:
    node = host.root / "dev" / fme(host, card).name
    handle = os.open(node, os.O_RDWR)
    try:
        fcntl.ioctl(handle, request, bytearray(argument), True)
    finally:
        os.close(handle)


def load(
    host: Controller,
    payload: bytes,
    *,
    number: int = 0,
    flags: int = 0,
    size: int = 24,
    card: str = simulated.PAC,
) -> None:
    buffer = ctypes.create_string_buffer(payload, len(payload))
    argument = struct.pack(
        "=IIIIQ", size, flags, number, len(payload), ctypes.addressof(buffer)
    )
    call(host, PORT_PR, argument, card)


def test_attributes_and_classes(host: Controller) -> None:
    assert (port(host) / "afu_id").read_text() == f"{simulated.NLB0}\n"
    assert (port(host) / "id").read_text() == "0\n"
    inner = only(fme(host), "dfl-fme-region.*/fpga_region/region*")
    assert (inner / "compat_id").read_text() == f"{simulated.INTEL}\n"
    with refused(errno.ENOENT):
        (fme(host).parent / "compat_id").read_text()
    assert (fme(host) / "bitstream_id").read_text() == "0x23000110010309\n"
    assert f"DEVNAME={fme(host).name}\n" in (fme(host) / "uevent").read_text()
    listed = os.listdir(host.sys / "class/fpga_region")
    assert inner.name in listed
    assert fme(host).parent.name in listed
    manager = only(fme(host), "dfl-fme-mgr.*/fpga_manager/fpga*")
    assert (manager / "state").read_text() == "unknown\n"
    assert (
        host.sys / "class/fpga_manager" / manager.name
    ).resolve() == manager.resolve()


def test_a_bitstream_changes_the_function(host: Controller) -> None:
    load(host, fpga.payload(simulated.A))
    assert (port(host) / "afu_id").read_text() == f"{simulated.A}\n"
    (done,) = host.programmings()
    assert done["card"] == simulated.PAC
    assert (done["function"], done["is_group_open"]) == (simulated.A, False)
    # no uevent is sent
    uevents = host.uevents()
    load(host, fpga.payload(simulated.B))
    assert host.uevents() == uevents


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        ({"flags": 1}, errno.EINVAL),
        ({"number": 1}, errno.EINVAL),
        ({"size": 8}, errno.EINVAL),
    ],
)
def test_bad_arguments_are_refused(
    host: Controller, wrong: dict[str, int], number: int
) -> None:
    with refused(number):
        load(host, fpga.payload(simulated.A), **wrong)  # type: ignore[arg-type]
    assert host.programmings() == []


def test_memory_that_is_not_there_is_refused(host: Controller) -> None:
    with refused(errno.EFAULT):
        call(host, PORT_PR, struct.pack("=IIIIQ", 24, 0, 0, 4096, 8))


def test_unknown_calls_and_files(host: Controller) -> None:
    with refused(errno.EINVAL):
        call(host, 0xB6FF, bytes(4))
    handle = os.open(port(host) / "id", os.O_RDONLY)
    with refused(errno.ENOTTY):
        fcntl.ioctl(handle, PORT_PR, bytes(24))
    os.close(handle)


def test_a_call_that_hangs_ends_with_its_caller(host: Controller) -> None:
    script = (
        "from tests.functional.fakehost.fpga import test_dfl as t\n"
        "from tests.lab.fakehost import Controller, fpga\n"
        "from pathlib import Path\n"
        f"host = Controller(Path({str(host.socket)!r}),"
        f" Path({str(host.root)!r}))\n"
        f"t.load(host, fpga.payload({simulated.A!r}, 'HANG'))\n"
    )
    child = subprocess.Popen(  # noqa: S603 - own arguments
        [sys.executable, "-W", "ignore", "-c", script]
    )
    end = time.monotonic() + 20
    while not host.programmings() and time.monotonic() < end:
        time.sleep(0.05)
    assert child.poll() is None
    child.kill()
    began = time.monotonic()
    child.wait(10)
    assert time.monotonic() - began < 5
    with refused(errno.EBUSY):
        (port(host) / "afu_id").read_text()


def test_vfs_are_as_many_as_released_ports(host: Controller) -> None:
    numvfs = place_of(host, simulated.BARE) / "sriov_numvfs"
    with refused(errno.EINVAL):
        store(numvfs, "1")
    call(host, RELEASE, struct.pack("=i", 1), simulated.BARE)
    with refused(errno.EBUSY):
        call(host, RELEASE, struct.pack("=i", 1), simulated.BARE)
    with refused(errno.ENODEV):
        call(host, RELEASE, struct.pack("=i", 7), simulated.BARE)
    with refused(errno.EINVAL):
        store(numvfs, "2")
    store(numvfs, "1")
    # the port of the PF that is left, and that of the VF
    assert (port(host, simulated.BARE) / "id").read_text() == "0\n"
    assert (port(host, simulated.BARE_VFS[0]) / "id").read_text() == "1\n"
    # a region behind a VF is loaded through its PF
    load(host, fpga.payload(simulated.B), number=1, card=simulated.BARE)
    afu_id = port(host, simulated.BARE_VFS[0]) / "afu_id"
    assert afu_id.read_text() == f"{simulated.B}\n"
    store(numvfs, "0")
    call(host, ASSIGN, struct.pack("=i", 1), simulated.BARE)
    with refused(errno.EBUSY):
        call(host, ASSIGN, struct.pack("=i", 1), simulated.BARE)


def test_a_vf_on_vfio_shows_nothing(host: Controller) -> None:
    vf = place_of(host, simulated.SPLIT_VFS[0])
    store(vf / "driver_override", "vfio-pci")
    store(vf / "driver/unbind", vf.name)
    assert not (vf / "fpga_region").exists()
    store(host.sys / "bus/pci/drivers_probe", vf.name)
    assert not (vf / "fpga_region").exists()
    group = (vf / "iommu_group").resolve().name
    with (host.root / "dev/vfio" / group).open() as group_file:
        fcntl.flock(group_file, fcntl.LOCK_EX)
        load(host, fpga.payload(simulated.B), card=simulated.SPLIT)
    # the hardware loads it nevertheless: judges check for this
    (done,) = host.programmings()
    assert (done["is_group_open"], done["driver"]) == (True, "vfio-pci")


def test_the_whole_card_goes_and_comes_back(host: Controller) -> None:
    load(host, fpga.payload(simulated.B))
    numbers = {p.name for p in (fme(host), port(host), fme(host).parent)}
    place = place_of(host, simulated.PAC)
    store(place / "driver/unbind", simulated.PAC)
    assert not (place / "fpga_region").exists()
    dev = set(os.listdir(host.root / "dev"))
    assert not dev & numbers
    listed = os.listdir(host.sys / "class/fpga_region")
    assert not numbers & set(listed)
    store(host.sys / "bus/pci/drivers/dfl-pci/bind", simulated.PAC)
    assert (port(host) / "afu_id").read_text() == f"{simulated.B}\n"
    assert not numbers & {p.name for p in (fme(host), port(host))}


def test_the_older_layout(host: Controller) -> None:
    place = only(place_of(host, simulated.LEGACY), "fpga/intel-fpga-dev.*")
    interface = only(place, "intel-fpga-fme.*/pr/interface_id")
    assert interface.read_text() == f"{simulated.INTEL}\n"
    afu_id = only(place, "intel-fpga-port.*/afu_id")
    assert afu_id.read_text() == f"{simulated.NLB0}\n"
    assert (host.sys / "class/fpga" / place.name / "device").resolve() == (
        place_of(host, simulated.LEGACY).resolve()
    )


def fpgaconf(host: Controller, *words: str) -> int:
    command = [str(host.root / "usr/bin/fpgaconf"), *words]
    done = subprocess.run(command, check=False)  # noqa: S603
    return done.returncode


def test_the_older_driver_s_tool(host: Controller, tmp_path: Path) -> None:
    path = simulated.bitstream(tmp_path, simulated.B).path
    wrong = simulated.bitstream(
        tmp_path, simulated.B, interface=simulated.OTHER
    ).path
    place = only(place_of(host, simulated.LEGACY), "fpga/intel-fpga-dev.*")
    afu_id = only(place, "intel-fpga-port.*/afu_id")
    where = ("--segment", "0x0000", "--bus", "0x8e", "-D", "0", "-F", "0")
    # strtoul reads the numbers; they must match one card that fits
    assert fpgaconf(host, "--bus", "8e", path)
    assert fpgaconf(host, path)
    assert fpgaconf(host, *where, wrong)
    assert fpgaconf(host, *where)
    assert not fpgaconf(host, *where, "--dry-run", path)
    assert afu_id.read_text() == f"{simulated.NLB0}\n"
    assert not fpgaconf(host, *where, path)
    assert afu_id.read_text() == f"{simulated.B}\n"


def test_a_fault_hits_a_call(host: Controller) -> None:
    host.fail(f"/sys/.dev/{fme(host).name}", "EIO", on="ioctl", times=1)
    with refused(errno.EIO):
        load(host, fpga.payload(simulated.A))
    load(host, fpga.payload(simulated.A))
    with pytest.raises(FakehostError, match="no operation"):
        host.fail("/sys/.dev/*", "EIO", on="poll")
