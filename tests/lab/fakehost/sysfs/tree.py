# SPDX-License-Identifier: Apache-2.0
"""The nodes of a simulated sysfs: directories, links and attributes.

Paths are relative to the mount point (``bus/mdev/devices``); a leading
slash and a leading ``sys/`` are both accepted, so that callers may use the
names they know.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator

Show = Callable[[], "str | bytes"]
Store = Callable[[bytes], None]

#: Links followed before ELOOP, as the kernel's MAXSYMLINKS.
MAX_LINKS = 40


class Node:
    """Anything with a name. ``alive`` turns false when it is removed."""

    mode = 0

    def __init__(self) -> None:
        self.alive = True


class Dir(Node):
    """A directory: a kobject in the kernel."""

    mode = 0o755

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[str, Node] = {}


class Link(Node):
    """A symbolic link; ``target`` is relative, as in a real sysfs."""

    mode = 0o777

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target


class Attr(Node):
    """An attribute with a show and a store method, either may be None."""

    def __init__(
        self,
        show: Show | None = None,
        store: Store | None = None,
        mode: int | None = None,
    ) -> None:
        super().__init__()
        self.show = show
        self.store = store
        derived = (0o444 if show else 0) | (0o200 if store else 0)
        self.mode = derived if mode is None else mode

    def content(self) -> bytes:
        """Return what a read at offset 0 gives; raises OSError EIO."""
        if self.show is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        text = self.show()
        return text.encode() if isinstance(text, str) else text


def constant(value: object, mode: int | None = None) -> Attr:
    """Return a read-only attribute that always shows ``value``."""
    data = value if isinstance(value, bytes) else f"{value}\n".encode()
    return Attr(lambda: data, mode=mode)


def normal(path: str) -> str:
    """Return ``path`` without leading slash and ``sys/``."""
    clean = posixpath.normpath("/" + path.strip("/")).lstrip("/")
    return clean[4:] if clean.startswith("sys/") else clean


class Tree:
    """The whole file system; every method takes the caller's lock."""

    def __init__(self) -> None:
        self.root = Dir()

    def find(self, path: str) -> Node | None:
        """Return the node at ``path`` without following links."""
        node: Node = self.root
        for name in filter(None, path.strip("/").split("/")):
            if not isinstance(node, Dir) or name not in node.children:
                return None
            node = node.children[name]
        return node

    def node(self, path: str) -> Node:
        """Return the node at ``path``; raises OSError ENOENT."""
        node = self.find(path)
        if node is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def dir(self, path: str) -> Dir:
        """Return the directory at ``path``; raises ENOENT or ENOTDIR."""
        node = self.node(path)
        if not isinstance(node, Dir):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def resolve(self, path: str) -> str:
        """Return ``path`` with every link followed.

        A path that does not exist comes back resolved as far as it goes.
        Raises OSError ELOOP.
        """
        todo = normal(path).split("/")
        done: list[str] = []
        links = 0
        while todo:
            name = todo.pop(0)
            if name == "..":
                done = done[:-1]
                continue
            node = self.find("/".join([*done, name]))
            if not isinstance(node, Link):
                done.append(name)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            todo = [*node.target.split("/"), *todo]
        return "/".join(done)

    def mkdir(self, path: str) -> Dir:
        """Return the directory at ``path``, made with its parents."""
        node = self.root
        for name in filter(None, path.strip("/").split("/")):
            child = node.children.setdefault(name, Dir())
            if not isinstance(child, Dir):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            node = child
        return node

    def add(self, path: str, node: Node) -> None:
        """Put ``node`` at ``path`` and make the parents."""
        parent, name = posixpath.split(path)
        self.mkdir(parent).children[name] = node

    def link(self, path: str, target: str) -> None:
        """Make a link at ``path`` to ``target``, both from the root."""
        parent = posixpath.dirname(path)
        relative = posixpath.relpath("/" + target, "/" + parent)
        self.add(path, Link(relative))

    def remove(self, path: str) -> None:
        """Remove the node and all below it; missing is no error."""
        parent, name = posixpath.split(path)
        directory = self.find(parent)
        if isinstance(directory, Dir) and name in directory.children:
            for node in _below(directory.children.pop(name)):
                node.alive = False


def _below(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Dir):
        for child in node.children.values():
            yield from _below(child)
