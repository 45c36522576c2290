# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel in this process, its files mirrored in a directory.

For tests of many thousand lives, which a mount would be too slow for. It
stands below the library's privileged functions: what these would write to
the kernel comes here, and what they and all readers look at is a plain
directory, brought up to date after each change. What the kernel refuses to
show is a link there that can't be read.
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
from nova_accel.host.execute import (
    action_executor,
    privileged,
    program_fpga,
    vendor_tools,
)
from nova_accel.host.fpga import ioctls
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.lab.fakehost.devnodes import PLACE, CharDevice, Hanging
from tests.lab.fakehost.errnos import Blocked
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.technologies import fpga_tools
from tests.lab.fakehost.tree import Attr, Dir, Link, Node, Tree

#: Reading its first page fails with EIO, whoever does.
UNREADABLE = "/proc/self/mem"
#: Where we pretend that a caller's memory is: argument and bitstream.
ARGUMENT, BITSTREAM = 1 << 20, 1 << 30
#: What nobody looks at here.
UNSEEN = frozenset(
    {
        *("config", "resource", "uevent", "errors", "modalias", "irq"),
        *("local_cpulist", "dma_mask_bits", "msi_bus", "ari_enabled"),
        *("max_link_speed", "max_link_width", "enable", "power_state"),
        *("current_link_speed", "current_link_width", PLACE),
    }
)


class Mirror:
    """A directory that shows what a tree does."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._shown: dict[str, str | bytes | None] = {}
        self._nodes: dict[str, Attr] = {}
        os.makedirs(self._place, exist_ok=True)

    def sync(self, tree: Tree) -> None:
        """Bring the directory up to date."""
        wanted: dict[str, str | bytes | None] = {}
        self._gather(tree.root, "", wanted)
        shown = self._shown
        for path in [p for p in shown if p not in wanted]:
            self._remove(path)
            del shown[path]
        for path, content in wanted.items():
            if path not in shown:
                self._make(path, content)
            elif shown[path] != content:
                if isinstance(content, str) or isinstance(shown[path], str):
                    self._remove(path)
                self._make(path, content)
        self._shown = wanted

    def _gather(
        self,
        directory: Dir,
        above: str,
        wanted: dict[str, str | bytes | None],
    ) -> None:
        known = self._shown
        for name, node in directory.children.items():
            path = f"{above}/{name}"
            if isinstance(node, Attr):
                if name in UNSEEN:
                    continue
                is_old = path in known and self._nodes.get(path) is node
                if is_old and _is_constant(node):
                    wanted[path] = known[path]
                    continue
                content = _content(node)
                if content is not None:
                    self._nodes[path] = node
                    wanted[path] = content
            elif isinstance(node, Link):
                wanted[path] = node.target
            elif isinstance(node, Dir) and name not in UNSEEN:
                wanted[path] = None
                self._gather(node, path, wanted)

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
    """Return an attribute's content, None for one that is not there."""
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
        #: Nodes in which a call hangs.
        self.hung: set[str] = set()
        #: What a card does next time, whatever the bitstream says.
        self.flaky: dict[tuple[str, int], fpga.Directive] = {}
        for tool in ("fpgaconf", "xrt-smi"):
            # never run, but looked at
            nowhere = Path("/nonexistent")
            fpga_tools.write_tool(root, tool, sys.executable, nowhere)
        self.sync()

    def sync(self) -> None:
        """End what waited and can end, and show everything."""
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            self._try(resume)
        self._mirror.sync(self.kernel.tree)

    def plug(self) -> None:
        """Put cards that are gone in again."""
        self._spec.plug(self.kernel)
        self.sync()

    def part(self, card: str, number: int) -> fpga.Part:
        """Return the hardware of a region."""
        return self.kernel.fpga.cards[card].parts[number]

    def store(self, path: str, text: str) -> None:
        """Write to a file below /sys, as somebody else might.

        Nothing of it is shown before the next ``sync``.
        """
        if number := self._store(path, text):
            raise OSError(number, os.strerror(number), path)

    # -- below the library -----------------------------------------------

    def write(self, path: str, text: str) -> int:
        """Stand for ``privileged._write``."""
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
        """Stand for ``ioctls.program``."""
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
        """Stand for ``ioctls.set_port``."""
        request = 0x4004B681 if is_released else 0x4004B682
        return self._call(path, request, {ARGUMENT: struct.pack("=i", port)})

    def run(self, command: list[str], seconds: float) -> int:
        """Stand for ``vendor_tools.run``: 0, ETIMEDOUT, or ToolError."""
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
            raise errors.ToolError(" ".join(command), 1, ended.said)
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
        """Return a bitstream with what a flaky card makes of it."""
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
    """Yield a host that all privileged functions of this process change."""
    found = DirectKernel(spec, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privileged, "_write", found.write)
        patch.setattr(ioctls, "program", found.program)
        patch.setattr(ioctls, "set_port", found.set_port)
        patch.setattr(vendor_tools, "run", found.run)
        # nothing here comes later than at once
        patch.setattr(program_fpga, "_PAUSE_S", 0)
        patch.setattr(action_executor, "_PAUSE_S", 0)
        yield found
