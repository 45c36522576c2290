# SPDX-License-Identifier: Apache-2.0
"""Technologies of a simulated host, one in each file.

A technology is a frozen dataclass with plain fields (they travel as JSON),
a ``kind`` that names it there, and ``build(kernel)``.
"""

from __future__ import annotations

from tests.lab.fakehost.technologies.fpga.alveo_card import AlveoCard
from tests.lab.fakehost.technologies.fpga.dfl_card import DflCard
from tests.lab.fakehost.technologies.fpga.intel_fpga_card import IntelFpgaCard
from tests.lab.fakehost.technologies.mtty import Mtty
from tests.lab.fakehost.technologies.nvidia.nvidia_card import NvidiaGpu
from tests.lab.fakehost.technologies.nvme_card import NvmeCard
from tests.lab.fakehost.technologies.pci_card import PciCard
from tests.lab.fakehost.technologies.qat_card import QatCard
from tests.lab.fakehost.technologies.vfio_ap import VfioAp

Card = (
    AlveoCard
    | DflCard
    | IntelFpgaCard
    | Mtty
    | NvidiaGpu
    | NvmeCard
    | PciCard
    | QatCard
    | VfioAp
)
ALL: tuple[type[Card], ...] = (
    AlveoCard,
    DflCard,
    IntelFpgaCard,
    Mtty,
    NvidiaGpu,
    NvmeCard,
    PciCard,
    QatCard,
    VfioAp,
)
