# SPDX-License-Identifier: Apache-2.0
"""A simulated kernel: a FUSE sysfs that behaves as the real one does.

Two ways to use it: ``simulated_sysfs(spec, root)`` mounts it at
``root/sys`` for tests of code that takes a root (0.2 s), and
``python -m tests.lab.fakehost -- COMMAND`` runs COMMAND where /sys itself
is the simulated one, under a libvirtd and a QEMU of its own.
"""

from tests.lab.fakehost.control.controller import Controller, FakehostError
from tests.lab.fakehost.mount import missing, simulated_sysfs
from tests.lab.fakehost.spec import HostSpec
from tests.lab.fakehost.technologies.fpga.alveo_card import AlveoCard
from tests.lab.fakehost.technologies.fpga.dfl_card import DflCard
from tests.lab.fakehost.technologies.fpga.intel_fpga_card import IntelFpgaCard
from tests.lab.fakehost.technologies.mtty import Mtty
from tests.lab.fakehost.technologies.nvidia.nvidia_card import NvidiaGpu
from tests.lab.fakehost.technologies.nvme_card import NvmeCard
from tests.lab.fakehost.technologies.pci_card import PciCard
from tests.lab.fakehost.technologies.qat_card import QatCard
from tests.lab.fakehost.technologies.vfio_ap import VfioAp

__all__ = [
    "AlveoCard",
    "Controller",
    "DflCard",
    "FakehostError",
    "HostSpec",
    "IntelFpgaCard",
    "Mtty",
    "NvidiaGpu",
    "NvmeCard",
    "PciCard",
    "QatCard",
    "VfioAp",
    "missing",
    "simulated_sysfs",
]
