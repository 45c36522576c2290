# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel in this process, mirrored in a directory.

For many thousand sequences, for which a FUSE mount is too slow. It replaces
the writes of the library's privileged functions. All readers use a plain
directory, which is updated after each change. Files that the kernel refuses
to show are links there that can't be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import action_executor, root_io
from nova_accel.host.execute.technologies import fpga_actions
from nova_accel.host.fpga import ioctls
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.devnodes import PLACE, CharDevice, Hanging
from tests.lab.fakehost.sysfs.errnos import Blocked
from tests.lab.fakehost.sysfs.tree import Attr, Dir, Link, Node, Tree
from tests.lab.fakehost.technologies.fpga import fpga_tools

#: Reading its first page fails with EIO for all users.
UNREADABLE = "/proc/self/mem"
#: Addresses of a caller's memory: argument and bitstream.
ARGUMENT, BITSTREAM = 1 << 20, 1 << 30
#: Files that no reader uses.
UNSEEN = frozenset(
    {
        *("config", "resource", "uevent", "errors", "modalias", "irq"),
        *("local_cpulist", "dma_mask_bits", "msi_bus", "ari_enabled"),
        *("max_link_speed", "max_link_width", "enable", "power_state"),
        *("current_link_speed", "current_link_width", PLACE),
    }
)


class Mirror:
    """A directory with the files of a tree."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._contents: dict[str, str | bytes | None] = {}
        self._nodes: dict[str, Attr] = {}
        os.makedirs(self._place, exist_ok=True)

    def sync(self, tree: Tree) -> None:
        """Update the directory."""
        contents: dict[str, str | bytes | None] = {}
        self._gather(tree.root, "", contents)
        previous = self._contents
        for path in [p for p in previous if p not in contents]:
            self._remove(path)
            del previous[path]
        for path, content in contents.items():
            if path not in previous:
                self._make(path, content)
            elif previous[path] != content:
                if isinstance(content, str) or isinstance(previous[path], str):
                    self._remove(path)
                self._make(path, content)
        self._contents = contents

    def _gather(
        self,
        directory: Dir,
        above: str,
        contents: dict[str, str | bytes | None],
    ) -> None:
        previous = self._contents
        for name, node in directory.children.items():
            path = f"{above}/{name}"
            if isinstance(node, Attr):
                if name in UNSEEN:
                    continue
                is_old = path in previous and self._nodes.get(path) is node
                if is_old and _is_constant(node):
                    contents[path] = previous[path]
                    continue
                content = _content(node)
                if content is not None:
                    self._nodes[path] = node
                    contents[path] = content
            elif isinstance(node, Link):
                contents[path] = node.target
            elif isinstance(node, Dir) and name not in UNSEEN:
                contents[path] = None
                self._gather(node, path, contents)

    def _make(self, path: str, content: str | bytes | None) -> None:
        full = self._place + path
        if content is None:
            os.mkdir(full)
        elif isinstance(content, str):
            os.symlink(content, full)
        else:
            with open(full, "wb") as file:
                file.write(content)

    def _remove(self, path: str) -> None:
        full = self._place + path
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(full)


def _is_constant(node: Attr) -> bool:
    """Return whether an attribute was made by tree.constant()."""
    name = getattr(node.show, "__qualname__", "")
    return node.show is None or name.startswith("constant.")


def _content(node: Attr) -> str | bytes | None:
    """Return an attribute's content, None if it does not exist."""
    if node.show is None:
        return b""
    try:
        return node.content()
    except OSError as error:
        return None if error.errno == errno.ENOENT else UNREADABLE


class DirectKernel:
    """One boot of a host, its files below ``root``."""

    def __init__(self, spec: fakehost.HostSpec, root: Path) -> None:
        self.root = root
        self._spec = spec
        self.kernel: Kernel = spec.boot(root / "dev/vfio")
        self.kernel.fpga.vanish = self._vanish
        self._mirror = Mirror(root / "sys")
        self._waiting: list[Callable[[], None]] = []
        #: Device nodes in which a call hangs.
        self.hung: set[str] = set()
        #: Directive for the next programming of a region.
        self.flaky: dict[tuple[str, int], fpga.Directive] = {}
        for tool in ("fpgaconf", "xrt-smi"):
            # checked for existence, never run
            nowhere = Path("/nonexistent")
            fpga_tools.write_tool(root, tool, sys.executable, nowhere)
        self.sync()

    def sync(self) -> None:
        """Resume blocked calls, and update the directory."""
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            self._try(resume)
        self._mirror.sync(self.kernel.tree)

    def plug(self) -> None:
        """Plug missing cards in again."""
        self._spec.plug(self.kernel)
        self.sync()

    def part(self, card: str, number: int) -> fpga.Part:
        """Return the hardware of a region."""
        return self.kernel.fpga.cards[card].parts[number]

    def store(self, path: str, text: str) -> None:
        """Write to a file below /sys, as another process does.

        The directory changes at the next ``sync``.
        """
        if number := self._store(path, text):
            raise OSError(number, os.strerror(number), path)

    # -- below the library -----------------------------------------------

    def write(self, path: str, text: str) -> int:
        """Replace ``root_io.write``."""
        try:
            return self._store(os.path.relpath(path, self.root), text)
        finally:
            self.sync()

    def _store(self, path: str, text: str) -> int:
        try:
            node = self.kernel.tree.node(self.kernel.tree.resolve(path))
            if not isinstance(node, Attr) or node.store is None:
                return errno.EACCES
            node.store(text.encode("ascii"))
        except OSError as error:
            return error.errno or errno.EIO
        except Blocked as blocked:
            raise AssertionError(f"{path} would block for ever") from blocked
        return 0

    def program(
        self, path: str, port: int, payload: bytes, seconds: float
    ) -> int:
        """Replace ``ioctls.program``."""
        name = os.path.basename(path)
        if name in self.hung:
            return errno.EBUSY
        content = self._changed(name, port, bytes(payload))
        argument = struct.pack("=IIIIQ", 24, 0, port, len(content), BITSTREAM)
        memory = {ARGUMENT: argument, BITSTREAM: content}
        number = self._call(path, 0xB680, memory)
        if number == errno.ETIMEDOUT:
            self.hung.add(name)
        return number

    def set_port(self, path: str, port: int, is_released: bool) -> int:
        """Replace ``ioctls.set_port``."""
        request = 0x4004B681 if is_released else 0x4004B682
        return self._call(path, request, {ARGUMENT: struct.pack("=i", port)})

    def run(self, command: list[str], seconds: float) -> int:
        """Replace ``root_io.run``: 0, ETIMEDOUT, or ToolError."""
        tool = os.path.basename(command[0])
        words = command[1:]
        files = {
            word: fpga_tools.encode(Path(word).read_bytes())
            for word in words
            if os.path.isfile(word)
        }
        ended = fpga_tools.run(self.kernel, tool, words, files)
        self.sync()
        if ended.hangs:
            return errno.ETIMEDOUT
        if ended.status:
            raise errors.ToolError(" ".join(command), 1, ended.output)
        return 0

    def _call(self, path: str, request: int, memory: dict[int, bytes]) -> int:
        node: Node | None = self.kernel.tree.find(
            f"{PLACE}/{os.path.basename(path)}"
        )
        if not isinstance(node, CharDevice):
            return errno.ENOENT
        try:
            node.ioctl(request, ARGUMENT, lambda at, size: memory[at][:size])
        except OSError as error:
            return error.errno or errno.EIO
        except Hanging:
            return errno.ETIMEDOUT
        finally:
            self.sync()
        return 0

    def _changed(self, node: str, port: int, payload: bytes) -> bytes:
        """Return a bitstream, changed by the directive for a flaky card."""
        for card, hardware in self.kernel.fpga.cards.items():
            function = self.kernel.pci.functions.get(card)
            path = f"bus/platform/devices/{node}"
            if function is None or port >= len(hardware.parts):
                continue
            if not self.kernel.tree.resolve(path).startswith(function.path):
                continue
            directive = self.flaky.pop((card, port), None)
            if directive is not None:
                function_id = payload[:16].hex()
                return fpga.payload(function_id, directive.value)
        return payload

    def _vanish(self, address: str) -> None:
        for function in self.kernel.leaving(address):
            self._try(function.remove)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Blocked as blocked:
            self._waiting.append(blocked.resume)


@contextlib.contextmanager
def direct(spec: fakehost.HostSpec, root: Path) -> Iterator[DirectKernel]:
    """Yield a host that this process's privileged functions write to."""
    host = DirectKernel(spec, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root_io, "write", host.write)
        patch.setattr(ioctls, "program", host.program)
        patch.setattr(ioctls, "set_port", host.set_port)
        patch.setattr(root_io, "run", host.run)
        # no change is delayed here
        patch.setattr(fpga_actions, "_PAUSE_S", 0)
        patch.setattr(action_executor, "_PAUSE_S", 0)
        yield host
