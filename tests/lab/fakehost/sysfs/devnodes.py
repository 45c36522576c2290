# SPDX-License-Identifier: Apache-2.0
"""Character devices of /dev: nodes of the tree, bound into a directory.

A FUSE file answers ioctl(2), where a real device node would ask the real
kernel. Nodes lie in the tree below ``.dev``, which no sysfs has, and are
mounted one by one over empty files in the directory that serves as /dev.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.lab.fakehost.sysfs.tree import Dir, Node, Tree

PLACE = ".dev"
#: mount(2) and umount2(2)
MS_BIND, MNT_DETACH = 4096, 2
#: What a caller's memory is read through: offset and size.
Memory = Callable[[int, int], bytes]


class CharDevice(Node):
    """A device; ``ioctl`` gets command, argument and caller's memory.

    It may raise OSError, and Hanging for a call that does not end.
    """

    mode = 0o600

    def __init__(self, ioctl: Callable[[int, int, Memory], None]) -> None:
        super().__init__()
        self.ioctl = ioctl


class Hanging(Exception):
    """The call waits, until its caller is killed or the host is healed."""


class DevNodes:
    """Keeps a directory equal to the nodes of a tree."""

    def __init__(self, mountpoint: Path, directory: Path) -> None:
        self._source = mountpoint / PLACE
        self._directory = directory
        self._lock = threading.Lock()
        self._bound: dict[str, Node] = {}
        self._made: set[str] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def sync(self, tree: Tree) -> None:
        """Mount what is new and unmount what is gone.

        The file system is asked meanwhile: the caller holds no lock of
        the kernel.
        """
        with self._lock:
            place = tree.find(PLACE)
            nodes = dict(place.children) if isinstance(place, Dir) else {}
            for name, node in list(self._bound.items()):
                if nodes.get(name) is not node:
                    self._unbind(name)
            for name, node in nodes.items():
                if name not in self._bound:
                    self._bind(name, node)

    def clear(self) -> None:
        """Unmount everything."""
        with self._lock:
            for name in list(self._bound):
                self._unbind(name)

    def _bind(self, name: str, node: Node) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        target = self._directory / name
        if not os.path.lexists(target):
            target.touch()
            self._made.add(name)
        source = os.fsencode(self._source / name)
        if self._libc.mount(
            source, os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None
        ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(target))
        self._bound[name] = node

    def _unbind(self, name: str) -> None:
        target = self._directory / name
        self._libc.umount2(os.fsencode(target), MNT_DETACH)
        if name in self._made:  # else it is a node of this machine's own
            target.unlink(missing_ok=True)
            self._made.discard(name)
        del self._bound[name]
