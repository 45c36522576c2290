# SPDX-License-Identifier: Apache-2.0
"""The FUSE side: a Tree served with the manners of a real sysfs.

What is kept of kernfs (fs/kernfs/file.c, fs/sysfs/file.c): an attribute
is read whole at offset 0 and may fail there, not at open; an open file
whose object is gone answers ENODEV; opening for a direction that the
attribute lacks is EACCES even for root; nothing can be made, renamed or
unlinked from user space (EPERM); one write is one store.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
import mfusepy

from tests.lab.fakehost.fpga import HANG_S
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.devnodes import CharDevice, DevNodes, Hanging
from tests.lab.fakehost.sysfs.errnos import Blocked, fail
from tests.lab.fakehost.sysfs.tree import Attr, Dir, Link, Node

_libfuse = mfusepy._libfuse

#: st_size of every sysfs attribute: PAGE_SIZE.
PAGE_SIZE = 4096
#: How long the real kernel may keep a name it has looked up, in seconds.
ENTRY_S = 3600
#: How often a waiting write looks again, in seconds.
RETRY_S = 0.02
#: Attributes whose size is not a page: PCI configuration space.
BINARY = frozenset({"config"})
#: Writes remembered for inspection.
KEPT_WRITES = 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write that reached the file system and how it ended."""

    path: str
    data: str
    errno: int


@dataclass
class _Open:
    node: Node
    content: bytes | None = None


class SysfsOperations(mfusepy.Operations):  # type: ignore[misc]
    """FUSE callbacks; they run in many threads."""

    use_ns = True

    def __init__(
        self,
        kernel: Kernel,
        ready: Callable[[], None],
        nodes: DevNodes | None = None,
    ) -> None:
        self._ready = ready
        self._nodes = nodes
        self._boot(kernel)
        self._handles: dict[int, _Open] = {}
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self.writes: list[Write] = []
        self.reads = 0

    def _boot(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._tree = kernel.tree
        self._lock = kernel.lock
        self._faults = kernel.faults

    def reboot(self, kernel: Kernel) -> None:
        """Serve another kernel; files of the old one answer ENODEV."""
        old = self.kernel
        old.faults.clear()
        with old.lock:
            for name in list(old.tree.root.children):
                old.tree.remove(name)
            self._boot(kernel)
            self.writes.clear()
            self.reads = 0

    def stop(self) -> None:
        """Let the writes that wait for something end with EINTR."""
        self._stopping.set()
        self._faults.clear()
        if self._nodes is not None:
            self._nodes.clear()

    def init(self, path: str) -> None:
        """Report that the mount answers, as soon as it does."""

        def report_ready() -> None:
            self.sync_nodes()
            self._ready()

        threading.Thread(target=report_ready, daemon=True).start()

    def sync_nodes(self) -> None:
        """Make /dev what the kernel has; the caller holds no lock."""
        if self._nodes is not None:
            self._nodes.sync(self._tree)

    # -- looking ---------------------------------------------------------

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return the stat of a node."""
        with self._lock:
            node = self._tree.node(path)
            if isinstance(node, Dir):
                kind, links, size = stat.S_IFDIR, 2, 0
            elif isinstance(node, Link):
                kind, links, size = stat.S_IFLNK, 1, len(node.target)
            elif isinstance(node, CharDevice):
                kind, links, size = stat.S_IFREG, 1, 0
            else:
                name = path.rpartition("/")[2]
                assert isinstance(node, Attr)
                size = len(node.content()) if name in BINARY else PAGE_SIZE
                kind, links = stat.S_IFREG, 1
            return {
                "st_mode": kind | node.mode,
                "st_nlink": links,
                "st_size": size,
                "st_uid": 0,
                "st_gid": 0,
            }

    def access(self, path: str, amode: int) -> int:
        """Say yes to root for all there is."""
        with self._lock:
            self._tree.node(path)
        return 0

    def opendir(self, path: str) -> int:
        """Return a handle that no call uses; ENOENT, ENOTDIR."""
        with self._lock:
            self._tree.dir(path)
        return 0

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in a directory."""
        with self._lock:
            names = list(self._tree.dir(path).children)
        self._strike(path, "list")
        return [".", "..", *names]

    def readlink(self, path: str) -> str:
        """Return where a link points."""
        with self._lock:
            node = self._tree.node(path)
        if not isinstance(node, Link):
            fail(errno.EINVAL)
        return node.target

    # -- reading and writing ---------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """Return a handle; EACCES for a direction without a method."""
        self._strike(path, "open")
        with self._lock:
            node = self._tree.node(path)
            access = flags & os.O_ACCMODE
            if access != os.O_WRONLY and not node.mode & 0o444:
                fail(errno.EACCES)
            if access != os.O_RDONLY and not node.mode & 0o222:
                fail(errno.EACCES)
            handle = next(self._numbers)
            self._handles[handle] = _Open(node)
            return handle

    def release(self, path: str, fh: int) -> int:
        """Forget a handle."""
        with self._lock:
            self._handles.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return part of an attribute."""
        if offset == 0:
            self._strike(path, "read")
        with self._lock:
            opened = self._handles[fh]
            if offset == 0 or opened.content is None:
                self.reads += 1
                opened.content = self._attr(opened).content()
            return opened.content[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Store ``data`` and return its length."""
        code = 0
        try:
            self._strike(path, "write")
            before = self.kernel.uevents.seqnum
            self._store(self._handles[fh], data)
            if self.kernel.uevents.seqnum != before:
                time.sleep(self.kernel.event_delay_s)
        except OSError as error:
            code = error.errno or errno.EIO
            raise
        finally:
            self.sync_nodes()
            text = data.decode("utf-8", "replace")
            self.writes.append(Write(path=path, data=text, errno=code))
            del self.writes[:-KEPT_WRITES]
        return len(data)

    def _store(self, opened: _Open, data: bytes) -> None:
        resume: Callable[[], None] | None = None
        while True:
            try:
                with self._lock:
                    if resume is None:
                        store = self._attr(opened).store
                        if store is None:
                            fail(errno.EIO)
                        store(data)
                    else:
                        resume()
                return
            except Blocked as blocked:
                resume = blocked.resume
            if self._stopping.is_set():
                fail(errno.EINTR)
            time.sleep(RETRY_S)

    def ioctl(
        self,
        path: str,
        cmd: int,
        arg: int | None,
        fh: int,
        flags: int,
        data: int | None,
    ) -> int:
        """Let a device answer; ENOTTY for what is none."""
        node = self._handles[fh].node
        if not isinstance(node, CharDevice):
            fail(errno.ENOTTY)
        caller = mfusepy.fuse_get_context()[2]
        self._strike(path, "ioctl")
        try:
            with self._lock:
                if not node.alive:
                    fail(errno.ENODEV)
                node.ioctl(cmd, arg or 0, functools.partial(_memory, caller))
        except Hanging:
            self._hang()
        finally:
            self.sync_nodes()
        return 0

    def _hang(self) -> NoReturn:
        """Wait until the caller is killed, or the host is healed."""
        released = self.kernel.fpga.released
        end = time.monotonic() + HANG_S
        while not released.wait(RETRY_S) and time.monotonic() < end:
            if self._stopping.is_set() or _libfuse.fuse_interrupted():
                fail(errno.EINTR)
        fail(errno.ETIMEDOUT)

    @staticmethod
    def _attr(opened: _Open) -> Attr:
        if not opened.node.alive or not isinstance(opened.node, Attr):
            fail(errno.ENODEV)
        return opened.node

    def _strike(self, path: str, on: str) -> None:
        fault = self._faults.take(path.lstrip("/"), on)
        if fault is None:
            return
        if fault.vanish:
            with self._lock:
                self._tree.remove(fault.vanish)
        fault.wait()
        if fault.errno:
            fail(fault.errno)

    # -- what a sysfs does not do ----------------------------------------

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Accept O_TRUNC, which the shell sends and sysfs ignores."""
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> NoReturn:
        """Refuse: there is no such attribute."""
        fail(errno.EACCES)

    def _refuse(self, *args: Any) -> NoReturn:
        fail(errno.EPERM)

    mkdir = unlink = rmdir = symlink = rename = link = mknod = _refuse

    def chmod(self, path: str, mode: int) -> int:
        """Change the mode of one node, as sysfs does."""
        with self._lock:
            self._tree.node(path).mode = stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Accept and ignore."""
        return 0


def _memory(caller: int, address: int, size: int) -> bytes:
    """Return memory of a thread that waits for us; raises EFAULT.

    For a call whose number doesn't encode its argument's size, FUSE passes
    the address only: the file system reads the argument.
    """
    try:
        with open(f"/proc/{caller}/mem", "rb", buffering=0) as memory:
            data = os.pread(memory.fileno(), size, address)
    except (OSError, OverflowError):
        fail(errno.EFAULT)
    if len(data) < size:
        fail(errno.EFAULT)
    return data


def serve(operations: SysfsOperations, mountpoint: str) -> None:
    """Mount and serve until unmounted; raises RuntimeError."""
    mfusepy.FUSE(
        operations,
        mountpoint,
        foreground=True,
        nothreads=False,
        direct_io=True,
        allow_other=True,
        # Names may be cached, for every operation on what they lead to
        # asks us again (and gets ENOENT for what is gone). Attributes and
        # missing names may not.
        entry_timeout=ENTRY_S,
        attr_timeout=0,
        negative_timeout=0,
        fsname="fakehost",
        # a write may hang by order: it must not starve the others
        max_threads=100,
        max_idle_threads=10,
    )
