# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of the lab VM, and how QEMU is told of them.

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
    vf_bars: tuple[str, ...] = ()

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
FAKE_FUNCTIONS = (A40, T4, FLEX)

#: where the devices are inside the machine
A40_ADDRESS = "0000:01:00.0"
T4_ADDRESS = "0000:02:00.0"
FLEX_ADDRESS = "0000:03:00.0"
NVME_ADDRESS = "0000:04:00.0"
NVME_VFS = 4


def fakepci_environment(functions: Iterable[FakeFunction]) -> str:
    """Return the value of $FAKEPCI."""
    return ";".join(function.entry() for function in functions)


def _root_port(number: int) -> list[str]:
    return [
        "-device",
        f"pcie-root-port,id=rp{number},bus=pcie.0,"
        f"chassis={number},slot={number}",
    ]


def topology_args() -> list[str]:
    """Return QEMU's arguments: an IOMMU and the devices behind root ports."""
    args = ["-device", "intel-iommu,intremap=on,caching-mode=on"]
    for number, function in enumerate(FAKE_FUNCTIONS, start=1):
        args += [
            *_root_port(number),
            "-device",
            f"{function.name},bus=rp{number}",
        ]
    number = len(FAKE_FUNCTIONS) + 1
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
    ]
