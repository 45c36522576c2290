# SPDX-License-Identifier: Apache-2.0
"""Bounded file access below a root directory; each file is read once."""

import errno
import os
import re
import stat
from collections.abc import Mapping
from typing import Protocol

from nova_accel import errors
from nova_accel.host.sysfs.recorded_files import (
    Record,
    RecordedDirectory,
    RecordedFiles,
    RecordedLink,
)

__all__ = [
    "LIMIT",
    "PCI_IDS",
    "TOP",
    "VGPU_CONFIG",
    "DiskSource",
    "FileSource",
    "Files",
    "Record",
    "RecordedDirectory",
    "RecordedFiles",
    "RecordedLink",
    "is_allowed",
    "is_head",
    "limit",
]

# Kernel attributes are at most one page (4 KiB; PAGE_SIZE in
# fs/sysfs/file.c, 64 KiB on some architectures). Whatever is larger is no
# attribute.
LIMIT = 64 * 1024
# Nothing outside this directory is read, except for the files below.
TOP = "/sys"
# NVIDIA's table of vGPU types, where its host driver installs it: 700 kB
# in release 535, and it grows with each.
VGPU_CONFIG = "/usr/share/nvidia/vgpu/vgpuConfig.xml"
# Names of PCI devices: 1.6 MB in 2026, by package hwdata or pci.ids.
PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
# The release of the running kernel, at most 64 bytes (utsname(2)).
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
_LIMITS = {
    **dict.fromkeys((VGPU_CONFIG, *PCI_IDS), 4 * 1024 * 1024),
    KERNEL_RELEASE: 64,
}
_ON_THE_WAY = frozenset(
    path[:end]
    for path in _LIMITS
    for end in range(1, len(path))
    if path[end] == "/"
)
# A function's configuration space begins with its vendor and device ids
# (PCI Local Bus Specification, 6.1). No more of it is ever read.
_HEAD = re.compile(rf"{TOP}/.*/[0-9a-f:]+\.[0-7]/config")
_HEAD_SIZE = 4
# As many links as the kernel follows in one path (MAXSYMLINKS, namei.h).
_MAX_LINKS = 40
# A process's own memory: its first page is never mapped, so reading it
# fails with EIO. Trees made by hand stand a link to it for an attribute
# that the kernel refuses to give.
_UNREADABLE = "/proc/self/mem"


def limit(path: str) -> int:
    """Return how many bytes the file at a path may have."""
    return _LIMITS.get(path, LIMIT)


def is_head(path: str) -> bool:
    """Return whether a path is of a file whose first bytes suffice."""
    return _HEAD.fullmatch(path) is not None


def is_allowed(path: str) -> bool:
    """Return whether a path, free of links, may be looked at."""
    return (
        path.startswith(f"{TOP}/")
        or path == TOP
        or path in _LIMITS
        or path in _ON_THE_WAY
    )


class FileSource(Protocol):
    """Where files come from. Paths start with ``/``, below the root.

    Each method raises OSError as the kernel does.
    """

    def link(self, path: str) -> str | None:
        """Return where a link points, None for what is no link."""
        ...

    def content(self, path: str) -> bytes:
        """Return a regular file's bytes, at most one over the limit.

        Of configuration space only the first bytes are returned.
        """
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        ...


class DiskSource:
    """The files below a directory of this machine.

    :param root: ``/``, or the directory of a simulated or unpacked host.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._root = os.path.realpath(root).rstrip("/")

    def link(self, path: str) -> str | None:
        """Return where a link points, None for what is no link."""
        try:
            return os.readlink(self._root + path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def content(self, path: str) -> bytes:
        """Return a file's bytes; a link is not followed (ELOOP)."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._root + path, flags)
        try:
            # A regular file gives all it has in one read (read(2)).
            most = _HEAD_SIZE if is_head(path) else limit(path) + 1
            content = os.read(descriptor, most)
            if not content:
                _check_regular(descriptor)
            return content
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(self._root + path)


def _check_regular(descriptor: int) -> None:
    """Check that what gave nothing is a file: a FIFO would, too."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class Files:
    """A source's files, each read at most once: one look at a host.

    Links are followed as chroot would: neither an absolute target nor any
    number of ``..`` leads out of the root; and what leads out of ``/sys``
    does not exist (ENOENT), except for VGPU_CONFIG and PCI_IDS.
    """

    def __init__(self, source: FileSource) -> None:
        self.source = source
        self._links: dict[str, str | int | None] = {}
        self._texts: dict[str, str | int] = {}
        self._heads: dict[str, bytes | int] = {}
        self._names: dict[str, tuple[str, ...] | int] = {}
        self._resolved: dict[str, str | int] = {}

    def text(self, path: str) -> str:
        """Return a file's text, as the kernel wrote it.

        :raises UnreadableError: with the errno of the failed read; EFBIG
            for a file over its limit, EILSEQ for one that is no UTF-8.
        """
        place = self._place(path)
        if place not in self._texts:
            self._texts[place] = self._read_text(place)
        found = self._texts[place]
        if isinstance(found, int):
            raise errors.UnreadableError(place, found)
        return found

    def head(self, path: str) -> bytes:
        """Return the first bytes of configuration space: both ids.

        :raises UnreadableError: with the errno of the failed read; EINVAL
            for a path that is of no such file.
        """
        place = self._place(path)
        if place not in self._heads:
            self._heads[place] = self._read_head(place)
        found = self._heads[place]
        if isinstance(found, int):
            raise errors.UnreadableError(place, found)
        return found

    def is_mounted(self) -> bool:
        """Return whether what is missing below /sys says anything.

        It does not where no sysfs is mounted, as in some containers.
        """
        try:
            return bool(self.names(TOP))
        except errors.UnreadableError as error:
            return error.number == errno.ENOENT  # a host made by hand

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted.

        :raises UnreadableError: with the errno of the failed read.
        """
        place = self.resolve(path)
        if place in _ON_THE_WAY:  # not for the neighbours of a file
            raise errors.UnreadableError(path, errno.ENOENT)
        if place not in self._names:
            try:
                self._names[place] = tuple(sorted(self.source.names(place)))
            except OSError as error:
                self._names[place] = error.errno or errno.EIO
        found = self._names[place]
        if isinstance(found, int):
            raise errors.UnreadableError(place, found)
        return found

    def link(self, path: str) -> str:
        """Return the last part of a link's target.

        The target itself need not exist.

        :raises UnreadableError: with the errno of the failed read; EINVAL
            for what is no link.
        """
        place = self._place(path)
        target = self._target(place)
        if target is None:
            raise errors.UnreadableError(place, errno.EINVAL)
        return target.rstrip("/").rpartition("/")[2]

    def resolve(self, path: str) -> str:
        """Return the path with every link in it followed.

        :raises UnreadableError: a part of it does not exist (ENOENT) or
            can't be looked at, or links go in a circle (ELOOP).
        """
        if path not in self._resolved:
            try:
                self._resolved[path] = self._follow(path)
            except errors.UnreadableError as error:
                self._resolved[path] = error.number
        found = self._resolved[path]
        if isinstance(found, int):
            raise errors.UnreadableError(path, found)
        return found

    def is_gone(self, path: str) -> bool:
        """Return whether a directory, looked at only now, isn't there."""
        try:
            self.names(path)
        except errors.UnreadableError as error:
            return error.number == errno.ENOENT
        return False

    def without(self, places: tuple[str, ...]) -> "Files":
        """Return the same look, but for what is below some directories.

        That is looked at anew when it is asked for.

        :param places: paths free of links, as ``resolve`` returns them,
            each without a slash behind.
        """
        prefixes = tuple(f"{place}/" for place in places)

        def is_kept(path: str) -> bool:
            return not path.startswith(prefixes) and path not in places

        kept = Files(self.source)
        kept._links = {p: v for p, v in self._links.items() if is_kept(p)}
        kept._texts = {p: v for p, v in self._texts.items() if is_kept(p)}
        kept._heads = {p: v for p, v in self._heads.items() if is_kept(p)}
        kept._names = {p: v for p, v in self._names.items() if is_kept(p)}
        kept._resolved = {
            p: v for p, v in self._resolved.items() if is_kept(p)
        }
        return kept

    def texts(self, name: str) -> Mapping[str, str | int]:
        """Return what was read of all files of one name, by path.

        A text, or the errno of the failed read.
        """
        return {
            path: found
            for path, found in self._texts.items()
            if path.endswith(f"/{name}")
        }

    def heads(self) -> Mapping[str, bytes | int]:
        """Return the first bytes read so far, by path, or the errno."""
        return dict(self._heads)

    def records(self) -> Mapping[str, Record]:
        """Return everything looked at so far, by path.

        A text, an errno for what could not be read, a link, a directory
        or first bytes: enough to make each of these looks again elsewhere.
        """
        seen: dict[str, Record] = {}
        for path, target in self._links.items():
            if target is None:
                seen[path] = RecordedDirectory()
            elif isinstance(target, str):
                seen[path] = RecordedLink(target)
            elif target != errno.ENOENT:
                seen[path] = target
        for path, listed in self._names.items():
            if listed == errno.ENOTDIR:
                seen[path] = ""  # a file where a directory was expected
            elif isinstance(listed, int):
                seen[path] = listed
            else:
                seen[path] = RecordedDirectory(listed)
        return seen | self._texts | self._heads

    def _place(self, path: str) -> str:
        """Return a path whose directories are free of links."""
        parent, _, name = path.rpartition("/")
        place = f"{self.resolve(parent or '/')}/{name}".replace("//", "/")
        if not is_allowed(place):
            raise errors.UnreadableError(path, errno.ENOENT)
        return place

    def _target(self, place: str) -> str | None:
        if place not in self._links:
            try:
                self._links[place] = self.source.link(place)
            except OSError as error:
                self._links[place] = error.errno or errno.EIO
        target = self._links[place]
        if isinstance(target, int):
            raise errors.UnreadableError(place, target)
        return target

    def _follow(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        if parent in self._resolved and name not in ("", ".", ".."):
            place = f"{self.resolve(parent)}/{name}"
            if self._target(place) is None:
                return place
        waiting = path.split("/")[::-1]
        done: list[str] = []
        hops = 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            place = "/" + "/".join([*done, part])
            if not is_allowed(place):
                raise errors.UnreadableError(path, errno.ENOENT)
            target = self._target(place)
            if target is None:
                done.append(part)
                continue
            hops += 1
            if hops > _MAX_LINKS:
                raise errors.UnreadableError(path, errno.ELOOP)
            if target.startswith("/"):
                done = []
            waiting += target.split("/")[::-1]
        return "/" + "/".join(done)

    def _read_head(self, place: str) -> bytes | int:
        if not is_head(place):
            return errno.EINVAL
        try:
            return self.source.content(place)[:_HEAD_SIZE]
        except OSError as error:
            # A link stands for what the kernel refuses (see _UNREADABLE).
            is_link = error.errno == errno.ELOOP
            return errno.EIO if is_link else error.errno or errno.EIO

    def _read_text(self, place: str) -> str | int:
        try:
            return _decode(self.source.content(place), limit(place))
        except OSError as error:
            if error.errno != errno.ELOOP:
                return error.errno or errno.EIO
        try:
            if self._target(place) == _UNREADABLE:
                return errno.EIO
            behind = self.resolve(place)
            return _decode(self.source.content(behind), limit(behind))
        except errors.UnreadableError as error:
            return error.number
        except OSError as error:
            return error.errno or errno.EIO


def _decode(content: bytes, most: int) -> str | int:
    if len(content) > most:
        return errno.EFBIG
    try:
        return content.decode()
    except UnicodeDecodeError:
        return errno.EILSEQ
