# SPDX-License-Identifier: Apache-2.0
"""NVMe drives with SR-IOV: plain VFs, which show the PF's own ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.technologies.pci_card import PciCard

#: Non-volatile memory controller, NVM Express.
CLASS = 0x010802


@dataclass(frozen=True, kw_only=True)
class NvmeCard:
    """A drive, by default a Samsung PM1733 as pci.ids names it."""

    kind: ClassVar[str] = "nvme"
    address: str
    vendor: int = 0x144D
    device: int = 0xA824
    total_vfs: int = 32
    enabled_vfs: int = 0
    numa_node: int = 0

    def build(self, kernel: Kernel) -> None:
        """Load nvme and put the drive on the bus."""
        PciCard(
            address=self.address,
            vendor=self.vendor,
            device=self.device,
            class_code=CLASS,
            driver="nvme",
            vf_driver="nvme",
            numa_node=self.numa_node,
            total_vfs=self.total_vfs,
            enabled_vfs=self.enabled_vfs,
        ).build(kernel)
