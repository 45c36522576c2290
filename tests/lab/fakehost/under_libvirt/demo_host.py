# SPDX-License-Identifier: Apache-2.0
"""The host you get without --spec: one card of each kind."""

from tests.lab.fakehost.spec import HostSpec
from tests.lab.fakehost.technologies.mtty import Mtty
from tests.lab.fakehost.technologies.nvidia.nvidia_card import NvidiaGpu
from tests.lab.fakehost.technologies.pci_card import PciCard

SPEC = HostSpec(
    cards=(
        Mtty(),
        NvidiaGpu(address="0000:3b:00.0", model="T4"),
        NvidiaGpu(
            address="0000:41:00.0", model="A40", numa_node=1, enabled_vfs=4
        ),
        PciCard(
            address="0000:51:00.0",
            vendor=0x144D,
            device=0xA824,
            class_code=0x010802,
            driver="nvme",
            total_vfs=8,
        ),
        PciCard(
            address="0000:61:00.0",
            vendor=0x8086,
            device=0x09C4,
            class_code=0x120000,
        ),
    )
)
