# SPDX-License-Identifier: Apache-2.0
"""What can be plugged into a simulated host: one technology, one file.

A technology is a frozen dataclass with plain fields (they travel as JSON),
a ``kind`` that names it there, and ``build(kernel)``.
"""

from __future__ import annotations

from tests.lab.fakehost.technologies.mtty import Mtty
from tests.lab.fakehost.technologies.nvidia_card import NvidiaGpu
from tests.lab.fakehost.technologies.pci_card import PciCard
from tests.lab.fakehost.technologies.vfio_ap import VfioAp

Card = Mtty | NvidiaGpu | PciCard | VfioAp
ALL: tuple[type[Card], ...] = (Mtty, NvidiaGpu, PciCard, VfioAp)
