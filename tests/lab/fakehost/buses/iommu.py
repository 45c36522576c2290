# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and the nodes of /dev/vfio.

A group's node is a plain file. A process that uses the group holds an
exclusive flock(2) on it, as it would hold an open file descriptor in a real
kernel: the preloaded QEMU does, and a test may.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tests.lab.fakehost.sysfs.tree import Tree, constant

ROOT = "kernel/iommu_groups"
#: The interrupt window every x86 group has (intel-iommu, amd_iommu).
RESERVED = "0x00000000fee00000 0x00000000feefffff msi"


class IommuGroups:
    """The groups of the host.

    ``enabled`` false means IOMMU off: no PCI function has a group, a
    mediated device still gets one of its own.
    """

    def __init__(
        self, tree: Tree, vfio_dir: Path, *, enabled: bool = True
    ) -> None:
        self._tree = tree
        self._dir = vfio_dir
        self.enabled = enabled
        self._next = 0
        tree.mkdir(ROOT)
        vfio_dir.mkdir(parents=True, exist_ok=True)
        for node in vfio_dir.iterdir():
            node.unlink()  # of the kernel before
        (vfio_dir / "vfio").touch()

    def allocate(self) -> int:
        """Return the number of a new group."""
        self._next += 1
        return self._next - 1

    def join(self, group: int, path: str, kind: str = "DMA-FQ") -> None:
        """Put the device at ``path`` into ``group``."""
        base = f"{ROOT}/{group}"
        name = path.rpartition("/")[2]
        self._next = max(self._next, group + 1)
        if self._tree.find(base) is None:
            self._tree.add(f"{base}/type", constant(kind, 0o644))
            self._tree.add(f"{base}/reserved_regions", constant(RESERVED))
        self._tree.link(f"{base}/devices/{name}", path)
        self._tree.link(f"{path}/iommu_group", base)

    def leave(self, group: int, path: str) -> None:
        """Take the device out; the last one takes the group away."""
        base = f"{ROOT}/{group}"
        self._tree.remove(f"{base}/devices/{path.rpartition('/')[2]}")
        self._tree.remove(f"{path}/iommu_group")
        if not self.members(group):
            self._tree.remove(base)

    def members(self, group: int) -> list[str]:
        """Return the names of the devices in ``group``."""
        path = f"{ROOT}/{group}/devices"
        if self._tree.find(path) is None:
            return []
        return list(self._tree.dir(path).children)

    def expose(self, group: int) -> None:
        """Make the group's /dev/vfio node: a VFIO driver holds it."""
        (self._dir / str(group)).touch()

    def hide(self, group: int) -> None:
        """Remove the group's node."""
        (self._dir / str(group)).unlink(missing_ok=True)

    def in_use(self, group: int) -> bool:
        """Return whether some process holds the group's node."""
        try:
            handle = os.open(self._dir / str(group), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False
