# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of the lab VM, and QEMU's arguments for them.

Addresses inside the machine follow the order of the root ports: the first
device is 0000:01:00.0, the second 0000:02:00.0, and so on.
"""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FakeFunction:
    """A PCI Express function that fakepci adds to QEMU.

    Identities are hexadecimal, as lspci -nn prints them; sizes are QEMU's
    (``16M``).
    """

    name: str
    vendor: str
    device: str
    class_id: str
    subdevice: str = ""
    revision: str = "a1"
    bars: tuple[str, ...] = ("16M",)
    vfs: int = 0
    vf_offset: int = 1
    #: empty: the same as ``device``
    vf_device: str = ""
    vf_bars: tuple[str, ...] = ()
    #: an FPGA card with a device feature list in its first BAR
    is_dfl: bool = False

    def entry(self) -> str:
        """Return this function as an entry of $FAKEPCI."""
        words = [
            self.name,
            f"vendor={self.vendor}",
            f"device={self.device}",
            f"class={self.class_id}",
            f"revision={self.revision}",
        ]
        if self.subdevice:
            words.append(f"subdevice={self.subdevice}")
        words += [f"bar{i}={size}" for i, size in enumerate(self.bars)]
        if self.vfs:
            words += [f"vfs={self.vfs}", f"vfoffset={self.vf_offset}"]
            words += [f"vfbar{i}={s}" for i, s in enumerate(self.vf_bars)]
        if self.vf_device:
            words.append(f"vfdevice={self.vf_device}")
        if self.is_dfl:
            words.append("dfl=1")
        return ",".join(words)


#: identities from the PCI ID repository; VF layout as a real A40 shows it
A40 = FakeFunction(
    name="lab-a40",
    vendor="10de",
    device="2235",
    class_id="0302",
    subdevice="145a",
    bars=("16M", "64M"),
    vfs=16,
    vf_offset=4,
    vf_bars=("64K",),
)
T4 = FakeFunction(
    name="lab-t4",
    vendor="10de",
    device="1eb8",
    class_id="0302",
    subdevice="12a2",
)
FLEX = FakeFunction(
    name="lab-flex",
    vendor="8086",
    device="56c0",
    class_id="0380",
    subdevice="4905",
    revision="08",
    vfs=4,
    vf_bars=("64K",),
)
PAC = FakeFunction(
    name="lab-pac",
    vendor="8086",
    device="09c4",
    class_id="1200",
    revision="00",
    bars=("512K",),
    vfs=1,
    vf_device="09c5",
    vf_bars=("128K",),
    is_dfl=True,
)
#: before the NVMe controller, and after it
FIRST_FUNCTIONS = (A40, T4, FLEX)
FAKE_FUNCTIONS = (*FIRST_FUNCTIONS, PAC)

#: where the devices are inside the machine
A40_ADDRESS = "0000:01:00.0"
T4_ADDRESS = "0000:02:00.0"
FLEX_ADDRESS = "0000:03:00.0"
NVME_ADDRESS = "0000:04:00.0"
PAC_ADDRESS, PAC_VF_ADDRESS = "0000:05:00.0", "0000:05:00.1"
NVME_VFS = 4

#: what the PAC takes bitstreams for, and what it has when it is switched on
#: (fakedfl.c; the ids of a real one with an Arria 10)
PAC_INTERFACE = "69528db6eb31577a8c3668f9faa081f6"
PAC_FUNCTION = "d8424dc4a4a3c413f89e433683f9040b"


def fakepci_environment(functions: Iterable[FakeFunction]) -> str:
    """Return the value of $FAKEPCI."""
    return ";".join(function.entry() for function in functions)


def _root_port(number: int) -> list[str]:
    return [
        "-device",
        f"pcie-root-port,id=rp{number},bus=pcie.0,"
        f"chassis={number},slot={number}",
    ]


def _fake_device(number: int, function: FakeFunction) -> list[str]:
    return [
        *_root_port(number),
        "-device",
        f"{function.name},bus=rp{number}",
    ]


def topology_args() -> list[str]:
    """Return QEMU's arguments: an IOMMU and the devices behind root ports."""
    args = ["-device", "intel-iommu,intremap=on,caching-mode=on"]
    for number, function in enumerate(FIRST_FUNCTIONS, start=1):
        args += _fake_device(number, function)
    number = len(FIRST_FUNCTIONS) + 1
    # queue and vector counts: what QEMU asks for each secondary controller
    # (docs/system/devices/nvme.rst, "SR-IOV and Virtualization Enhancements")
    return [
        *args,
        *_root_port(number),
        "-device",
        "nvme-subsys,id=subsys0",
        "-device",
        f"nvme,bus=rp{number},serial=lab0,subsys=subsys0,"
        f"sriov_max_vfs={NVME_VFS},sriov_vq_flexible={2 * NVME_VFS},"
        f"sriov_vi_flexible={NVME_VFS},max_ioqpairs=10,msix_qsize=9",
        *_fake_device(number + 1, PAC),
    ]
