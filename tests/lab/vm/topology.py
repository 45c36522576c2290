# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of the lab VM, and QEMU's arguments for them.

Addresses inside the machine follow the order of the root ports: the first
device is 0000:01:00.0, the second 0000:02:00.0, and so on.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator


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
    #: reports errors of PCI Express; not with VFs
    has_aer: bool = False

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
        if self.has_aer:
            words.append("aer=1")
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


_IOMMU = ("intel-iommu,intremap=on,caching-mode=on",)


def _root_port(number: int) -> str:
    return (
        f"pcie-root-port,id=rp{number},bus=pcie.0,"
        f"chassis={number},slot={number}"
    )


def _fake_devices(number: int, function: FakeFunction) -> tuple[str, ...]:
    return _root_port(number), f"{function.name},bus=rp{number}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The devices of a machine.

    ``devices`` and ``properties`` are arguments of QEMU's -device and
    -global.
    """

    functions: tuple[FakeFunction, ...] = ()
    devices: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return QEMU's arguments."""
        pairs = [("-global", text) for text in self.properties]
        pairs += [("-device", text) for text in self.devices]
        return list(itertools.chain.from_iterable(pairs))


def _standard_devices() -> Iterator[str]:
    """Yield an IOMMU, and the devices behind root ports."""
    yield from _IOMMU
    for number, function in enumerate(FIRST_FUNCTIONS, start=1):
        yield from _fake_devices(number, function)
    number = len(FIRST_FUNCTIONS) + 1
    yield _root_port(number)
    # queue and vector counts: what QEMU asks for each secondary controller
    # (docs/system/devices/nvme.rst, "SR-IOV and Virtualization Enhancements")
    yield "nvme-subsys,id=subsys0"
    yield (
        f"nvme,bus=rp{number},serial=lab0,subsys=subsys0,"
        f"sriov_max_vfs={NVME_VFS},sriov_vq_flexible={2 * NVME_VFS},"
        f"sriov_vi_flexible={NVME_VFS},max_ioqpairs=10,msix_qsize=9"
    )
    yield from _fake_devices(number + 1, PAC)


NO_DEVICES = Topology()
SINGLE_GPU = Topology(
    functions=(T4,), devices=(*_IOMMU, *_fake_devices(1, T4))
)
STANDARD = Topology(
    functions=FAKE_FUNCTIONS, devices=tuple(_standard_devices())
)

# A host with faults of its hardware and its firmware, beside good devices:
# - VFs of a card take 4 GiB, and the host bridge has 1 GiB for 64-bit BARs;
# - two root ports of one slot do not isolate their devices from each other.
AER_GPU = dataclasses.replace(T4, name="lab-aer", has_aer=True)
HUNGRY_FLEX = dataclasses.replace(
    FLEX, name="lab-hungry", vfs=16, vf_bars=("256M",)
)
AER_ADDRESS = "0000:02:00.0"
HUNGRY_ADDRESS = "0000:03:00.0"
GROUPED_ADDRESS, SIBLING_ADDRESS = "0000:04:00.0", "0000:05:00.0"


def _faulty_devices() -> Iterator[str]:
    functions = (A40, AER_GPU, HUNGRY_FLEX)
    for number, function in enumerate(functions, start=1):
        yield from _fake_devices(number, function)
    for number, device in enumerate((T4.name, "nvme,serial=lab0")):
        yield (
            f"pcie-root-port,id=shared{number},bus=pcie.0,addr=0x10.{number},"
            f"multifunction=on,disable-acs=on,chassis=16,slot={16 + number}"
        )
        yield f"{device},bus=shared{number}"


FAULTY = Topology(
    functions=(A40, AER_GPU, HUNGRY_FLEX, T4),
    devices=(*_IOMMU, *_faulty_devices()),
    properties=("q35-pcihost.pci-hole64-size=1G",),
)
#: The same without an IOMMU: as with VT-d off in the firmware.
WITHOUT_IOMMU = dataclasses.replace(FAULTY, devices=tuple(_faulty_devices()))
