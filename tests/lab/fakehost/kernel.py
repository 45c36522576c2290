# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel: one tree, one lock, its buses and its events."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

from tests.lab.fakehost.buses.iommu import IommuGroups
from tests.lab.fakehost.buses.mdev import MdevCore
from tests.lab.fakehost.buses.pci import PciBus, PciFunction
from tests.lab.fakehost.fpga import Fpgas, take_away
from tests.lab.fakehost.sysfs.faults import Faults
from tests.lab.fakehost.sysfs.tree import Attr, Tree
from tests.lab.fakehost.sysfs.uevents import Uevents

#: Directories that exist before any device does.
SKELETON = (
    "block",
    "bus",
    "class/misc/iommu",
    "class/net",
    "class/vfio",
    "dev/block",
    "dev/char",
    "devices/system",
    "devices/virtual/dmi",
    "devices/virtual/net",
    "firmware",
    "fs/cgroup",
    "kernel/mm",
    "module/kvm",
    "module/vfio",
    "module/vfio_iommu_type1",
    "module/vfio_pci",
)
#: Distances of each NUMA node to all.
DISTANCES = ("10 32", "32 10")
#: How long a write that sent uevents waits before it returns, where they go
#: to listeners. libvirt waits for udevd's queue (udevadm) and then looks
#: for the new device; without udevd it waits for nothing and sleeps 5 s.
EVENT_DELAY_S = 0.1


class Kernel:
    """A booted kernel; technologies add their devices."""

    def __init__(
        self, *, vfio_dir: Path, netlink: bool = False, iommu: bool = True
    ) -> None:
        self.lock = threading.RLock()
        self.event_delay_s = EVENT_DELAY_S if netlink else 0.0
        self.tree = Tree()
        for path in SKELETON:
            self.tree.mkdir(path)
        for number, row in enumerate(DISTANCES):
            path = f"devices/system/node/node{number}/distance"
            self.tree.add(path, Attr(functools.partial(str, f"{row}\n")))
        self.faults = Faults()
        self.uevents = Uevents(netlink=netlink)
        self.tree.add(
            "kernel/uevent_seqnum", Attr(lambda: f"{self.uevents.seqnum}\n")
        )
        self.iommu = IommuGroups(self.tree, vfio_dir, enabled=iommu)
        self.pci = PciBus(self.tree, self.uevents, self.iommu)
        self.mdev = MdevCore(self.tree, self.uevents, self.iommu)
        self.fpga = Fpgas(self._read_user, self._vanish)

    def _read_user(self, address: str) -> tuple[str, bool]:
        """Return a function's driver, and whether its group is open."""
        function = self.pci.functions.get(address)
        if function is None:
            return "", False
        name = function.driver.name if function.driver else ""
        return name, self.iommu.in_use(function.group)

    def _vanish(self, address: str) -> None:
        """Take all functions of a card off the bus."""
        for function in self.leaving(address):
            take_away(function.remove, self.lock)

    def leaving(self, address: str) -> list[PciFunction]:
        """Return the functions of a card that are to go from now on.

        Those that a user keeps from going, and that went before, are not
        among them.
        """
        leaving = [
            function
            for function in self.pci.functions.values()
            if function.physfn is None
            and function.address[:-1] == address[:-1]
            and not function.is_leaving
        ]
        for function in leaving:
            function.is_leaving = True
        return leaving
