# SPDX-License-Identifier: Apache-2.0
"""Shared simulated host, and helpers to use its cards."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fakehost import HostSpec, Mtty, NvidiaGpu, PciCard, VfioAp

T4 = "0000:3b:00.0"
T4_OLD = "0000:3c:00.0"
A40 = "0000:41:00.0"
A40_VFS = tuple(f"0000:41:00.{n}" for n in (4, 5, 6, 7))
NIC = "0000:51:00.0"
FPGA = "0000:61:00.0"
GPU = "0000:71:00.0"
GPU_AUDIO = "0000:71:00.1"
GPU_GROUP = 40

SPEC = HostSpec(
    cards=(
        Mtty(),
        VfioAp(instances=2),
        NvidiaGpu(address=T4, model="T4"),
        NvidiaGpu(address=T4_OLD, model="T4", remove_in_use="busy"),
        NvidiaGpu(address=A40, model="A40", numa_node=1, enabled_vfs=4),
        PciCard(
            address=NIC,
            vendor=0x8086,
            device=0x1592,
            class_code=0x020000,
            driver="ice",
            total_vfs=8,
            vf_device=0x1889,
            vf_offset=8,
            vf_driver="iavf",
        ),
        PciCard(
            address=FPGA,
            vendor=0x8086,
            device=0x09C4,
            class_code=0x120000,
            numa_node=-1,
        ),
        PciCard(
            address=GPU,
            vendor=0x10DE,
            device=0x1E07,
            class_code=0x030000,
            driver="nouveau",
            group=GPU_GROUP,
            multifunction=True,
            boot_vga=True,
        ),
        PciCard(
            address=GPU_AUDIO,
            vendor=0x10DE,
            device=0x10F7,
            class_code=0x040300,
            driver="snd_hda_intel",
            group=GPU_GROUP,
            multifunction=True,
        ),
    )
)

L40S, L40S_MIXED = "0000:81:00.0", "0000:91:00.0"
A40_MIXED = "0000:a1:00.0"
A100, A100_MDEV = "0000:b1:00.0", "0000:c1:00.0"
BLACKWELL = "0000:d1:00.0"
QAT, GIM = "0000:e1:00.0", "0000:e2:00.0"

#: What a host of many GPUs has; a mount of its own.
GPUS = HostSpec(
    cards=(
        NvidiaGpu(address=L40S, model="L40S", enabled_vfs=4, interface="vfio"),
        NvidiaGpu(
            address=L40S_MIXED,
            model="L40S",
            enabled_vfs=6,
            interface="vfio",
            mixed=True,
        ),
        NvidiaGpu(address=A40_MIXED, model="A40", enabled_vfs=6, mixed=True),
        NvidiaGpu(
            address=A100,
            model="A100",
            enabled_vfs=8,
            total_vfs=8,
            interface="vfio",
            mig=True,
        ),
        NvidiaGpu(
            address=A100_MDEV,
            model="A100",
            enabled_vfs=4,
            mig=True,
            instances=(("1g.5gb", 0), ("3g.20gb", 4)),
        ),
        NvidiaGpu(
            address=BLACKWELL,
            model="RTXPRO6000",
            enabled_vfs=6,
            interface="vfio",
            mig=True,
            instances=(("1g.24gb", 0), ("2g.48gb", 6)),
        ),
        PciCard(
            address=QAT,
            vendor=0x8086,
            device=0x4940,
            class_code=0x0B4000,
            driver="4xxx",
            total_vfs=16,
            vf_device=0x4941,
            vf_driver="4xxxvf",
            made_vfs=16,
        ),
        PciCard(
            address=GIM,
            vendor=0x1002,
            device=0x74A1,
            class_code=0x120000,
            driver="gim",
            total_vfs=8,
            vf_device=0x74B5,
            enabled_vfs=1,
            takes_vf_count=False,
        ),
    )
)


def vf_of(address: str, number: int) -> str:
    """Return an NVIDIA VF's address: they begin at function 4."""
    place = number + 4
    return f"{address[:-4]}{place // 8:02x}.{place % 8}"


def new_uuid() -> str:
    return str(uuid.uuid4())


def store(path: Path, text: str) -> None:
    """Write once.

    A buffered Python file writes again at close what failed at flush: two
    creates where one was meant.
    """
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def number(path: Path) -> int:
    return int(path.read_text())


@contextlib.contextmanager
def refused(code: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == code, (
        f"expected {errno.errorcode[code]}, got {caught.value}"
    )
