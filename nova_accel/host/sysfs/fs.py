# SPDX-License-Identifier: Apache-2.0
"""Bounded file access below a root directory; each file is read once.

Only some paths can be read, see ``allowed_paths``. The files are on this
host's disk, or in the memory of a captured host.
"""

import errno
import functools
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from nova_accel import errors
from nova_accel.host import bounded_calls, file_cache
from nova_accel.host.sysfs import allowed_paths

# Other modules use these names.
LIMIT = allowed_paths.LIMIT
TOP = allowed_paths.TOP
VGPU_CONFIG = allowed_paths.VGPU_CONFIG
PCI_IDS = allowed_paths.PCI_IDS
KERNEL_RELEASE = allowed_paths.KERNEL_RELEASE
# A function's configuration space begins with its vendor and device ids
# (PCI Local Bus Specification, 6.1). No more of it is ever read.
_HEAD = re.compile(rf"{TOP}/.*/[0-9a-f:]+\.[0-7]/config")
_HEAD_SIZE = 4
# As many links as the kernel follows in one path (MAXSYMLINKS, namei.h).
_MAX_LINKS = 40
# A process's own memory: its first page is never mapped, so reading it
# fails with EIO. Trees made by hand have a link to it in place of an
# attribute that the kernel refuses to give.
_UNREADABLE = "/proc/self/mem"

# The function that a path belongs to: its last PCI address.
_FUNCTION = re.compile(
    r".*/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)"
)


def is_config_space(path: str) -> bool:
    """Return whether a path is a function's configuration space.

    Only its first bytes are read.
    """
    return _HEAD.fullmatch(path) is not None


class FileSource(Protocol):
    """Files of a host. Paths are absolute, relative to the host's root.

    Each method raises OSError as the kernel does.
    """

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        ...

    def content(self, path: str) -> bytes:
        """Return a regular file's bytes, at most one over the limit.

        Of configuration space only the first four bytes are returned.
        """
        ...

    def names(self, path: str) -> list[str]: ...

    def mode(self, path: str) -> int: ...

    def __hash__(self) -> int: ...


class DiskSource:
    """The files below a directory of this machine.

    Each access has a time limit, see ``bounded_calls``: it fails with
    ETIMEDOUT while the card does not answer.

    :param root: ``/``, or the directory of a simulated or unpacked host.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._root = os.path.realpath(root).rstrip("/")

    @property
    def is_this_machine(self) -> bool:
        """Return whether these are the files of this machine itself."""
        return not self._root

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        return bounded_calls.read(self._root + path, _read_link)

    def content(self, path: str) -> bytes:
        """Return a file's bytes; a link is not followed (ELOOP)."""
        # One read returns all of a kernel attribute (read(2)), but only a
        # page of a file of /proc (fs/seq_file.c).
        reads_all = path.startswith(TOP)
        most = LIMIT + 1 if reads_all else allowed_paths.LARGE + 1
        if is_config_space(path):
            most = _HEAD_SIZE
        elif path == KERNEL_RELEASE:
            most = allowed_paths.RELEASE + 1
        return self._read(path, most, reads_all)

    def head(self, path: str, size: int) -> bytes:
        """Return the first bytes of a file, as ``content`` does."""
        return self._read(path, size, True)

    def names(self, path: str) -> list[str]:
        return bounded_calls.read(self._root + path, _list_names)

    def mode(self, path: str) -> int:
        return bounded_calls.read(self._root + path, _read_mode)

    def _read(self, path: str, most: int, reads_all: bool) -> bytes:
        return bounded_calls.read(
            self._root + path, _read_content, most, reads_all
        )


def _read_link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _read_content(path: str, most: int, reads_all: bool) -> bytes:
    """Return up to ``most`` bytes of a file.

    :param reads_all: whether one read returns all of them.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        content = os.read(descriptor, most)
        if not content:
            _check_regular(descriptor)
        while not reads_all and len(content) < most:
            part = os.read(descriptor, most - len(content))
            if not part:
                break
            content += part
        return content
    finally:
        os.close(descriptor)


def _list_names(path: str) -> list[str]:
    return os.listdir(path)


def _read_mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _check_regular(descriptor: int) -> None:
    """Check that an empty file is regular: a FIFO reads empty, too."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


# Each path is looked up several times; more of them than most hosts have.
@functools.lru_cache(1 << 16)
def _get_function(path: str) -> str:
    """Return the address of the function that a file belongs to, or ""."""
    match = _FUNCTION.match(path)
    return match[1] if match else ""


class Files:
    """Files of a source, each read at most once.

    The results are cached by PCI function, so that those of a card can be
    read again; see ``copy`` and ``read_again``.

    Links are resolved as in a chroot: neither an absolute target nor any
    number of ``..`` leaves the root. A path outside ``/sys`` does not
    exist (ENOENT), except for those of ``paths``.
    """

    def __init__(
        self,
        source: FileSource,
        paths: allowed_paths.AllowedPaths = allowed_paths.NOVA,
    ) -> None:
        self.source = source
        self._paths = paths
        #: By address of the function; that of all other files is "".
        self._caches: dict[str, file_cache.FileCache] = {}
        #: Functions whose caches no other copy has.
        self._owned: set[str] = set()

    def _cache(self, path: str) -> file_cache.FileCache:
        name = _get_function(path)
        if name not in self._caches:
            self._caches[name] = file_cache.FileCache()
        return self._caches[name]

    def text(self, path: str) -> str:
        """Return a file's text, as the kernel wrote it.

        :raises UnreadableError: with the errno of the failed read; EFBIG
            for a file over its limit, EILSEQ for one that is no UTF-8.
        """
        place = self._place(path)
        return file_cache.read_once(
            self._cache(place).texts, place, self.read_text
        )

    def head(self, path: str) -> bytes:
        """Return the first four bytes of configuration space: both ids.

        :raises UnreadableError: with the errno of the failed read; EINVAL
            if the path is not configuration space.
        """
        place = self._place(path)
        return file_cache.read_once(
            self._cache(place).heads, place, self._read_head
        )

    def is_mounted(self) -> bool:
        """Return whether sysfs is mounted; some containers have none.

        Without it, a missing file does not prove that a device is absent.
        """
        try:
            return bool(self.names(TOP))
        except errors.UnreadableError as error:
            return error.number == errno.ENOENT  # a tree made by hand

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted.

        :raises UnreadableError: with the errno of the failed read.
        """
        place = self.resolve(path)
        if not self._paths.is_listed(place):
            raise errors.UnreadableError(path, errno.ENOENT)
        return file_cache.read_once(
            self._cache(place).names, place, self._list
        )

    def exists(self, path: str) -> bool:
        """Return whether a path exists; a link's target need not exist.

        :raises UnreadableError: that can't be read.
        """
        try:
            self._target(self._place(path))
        except errors.UnreadableError as error:
            if error.number in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        return True

    def mode(self, path: str) -> int:
        """Return the permission bits of a device node, such as 0o666.

        :raises UnreadableError: with the errno of the failed read; EINVAL
            if the path is not below /dev.
        """
        place = self._place(path)
        if not allowed_paths.is_node(place):
            raise errors.UnreadableError(place, errno.EINVAL)
        modes = self._cache(place).modes
        return int(file_cache.read_once(modes, place, self._read_mode), 8)

    def link(self, path: str) -> str:
        """Return the last part of a link's target.

        The target itself need not exist.

        :raises UnreadableError: with the errno of the failed read; EINVAL
            if the path is no link.
        """
        place = self._place(path)
        target = self._target(place)
        if target is None:
            raise errors.UnreadableError(place, errno.EINVAL)
        return target.rstrip("/").rpartition("/")[2]

    def resolve(self, path: str) -> str:
        """Return the path with every link in it resolved.

        :raises UnreadableError: a component does not exist (ENOENT) or
            can't be read, or there are too many links (ELOOP).
        """
        return file_cache.read_once(
            self._cache(path).resolved, path, self._resolve
        )

    def is_gone(self, path: str) -> bool:
        """Return whether a directory does not exist.

        A directory that was listed before is not listed again.
        """
        try:
            self.names(path)
        except errors.UnreadableError as error:
            return error.number == errno.ENOENT
        return False

    def allow(self, paths: allowed_paths.AllowedPaths) -> None:
        """Allow other paths from now on, for a command."""
        self._paths = paths

    def copy(self) -> "Files":
        """Return files with the same results; ``read_again`` separates them.

        What one of both reads for the first time, the other has, too.
        """
        copy = Files(self.source, self._paths)
        copy._caches = dict(self._caches)
        return copy

    def read_again(
        self,
        name: str,
        paths: file_cache.Paths = file_cache.ALL,
        listed: Collection[str] = (),
    ) -> bool:
        """Read the cached results of a function again, not for copies.

        :param name: its address, or "" for files that belong to no function.
        :param paths: resolved paths of the results to read again.
        :param listed: resolved directories whose names are read again, too.
        :returns: whether any result has changed.
        """
        cache, names = self._own(name), file_cache.Paths(listed)
        for place in paths.select(cache.late):
            del cache.late[place]
        has_moved = file_cache.read_again(cache.links, paths, self._read_link)
        if has_moved:
            cache.resolved = {}
        return any(
            (
                has_moved,
                file_cache.read_again(cache.names, paths, self._list),
                file_cache.read_again(cache.names, names, self._list),
                file_cache.read_again(cache.texts, paths, self.read_text),
                file_cache.read_again(cache.heads, paths, self._read_head),
                file_cache.read_again(cache.modes, paths, self._read_mode),
            )
        )

    def _own(self, name: str) -> file_cache.FileCache:
        """Return the cache of a function, shared with no copy."""
        if name not in self._owned:
            self._owned.add(name)
            self._caches[name] = self._caches.get(
                name, file_cache.FileCache()
            ).copy()
        return self._caches[name]

    def take_from(self, other: "Files", name: str) -> None:
        """Use what another copy has read of a function."""
        self._caches[name] = other._caches.get(name, file_cache.FileCache())

    def without_contents(self) -> "Files":
        """Return these files with their names and links, but no contents."""
        copy = Files(self.source, self._paths)
        copy._caches = {
            name: file_cache.FileCache(
                links=cache.links, names=cache.names, resolved=cache.resolved
            )
            for name, cache in self._caches.items()
        }
        return copy

    def late(self) -> Mapping[str, str]:
        """Return the places that gave no answer in time.

        Each has the path of the read that hangs, another one of its card.
        """
        return {
            place: path
            for cache in self._caches.values()
            for place, path in cache.late.items()
        }

    def known_text(self, place: str) -> str:
        """Return a text that was read before, stripped; empty if none was.

        :param place: a resolved path.
        """
        text = self._cache(place).texts.get(place)
        return text.strip() if isinstance(text, str) else ""

    def refresh_alike(self, places: Iterable[str]) -> bool:
        """Read again one of the files that read the same, for all of them.

        Files are compared that have the same name in directories of the
        same name. A file that can't be read now keeps its text.

        :param places: resolved paths; those not read before are skipped.
        :returns: whether any text has changed.
        """
        texts: dict[tuple[str, str | int], str | int] = {}
        for place in places:
            results = self._cache(place).texts
            if place not in results:
                continue
            before = results[place]
            key = "/".join(place.split("/")[-2:]), before
            if key not in texts:
                text = self.read_text(place)
                texts[key] = before if isinstance(text, int) else text
            if texts[key] != before:
                self._own(_get_function(place)).texts[place] = texts[key]
        return any(text != before for (_, before), text in texts.items())

    def texts(self, *names: str) -> Mapping[str, str | int]:
        """Return the cached files of some names: path to text or errno."""
        ends = tuple(f"/{name}" for name in names)
        return {
            path: text
            for cache in self._caches.values()
            for path, text in cache.texts.items()
            if path.endswith(ends)
        }

    def heads(self) -> Mapping[str, bytes | int]:
        """Return the cached configuration space: path to bytes or errno."""
        return {
            path: head
            for cache in self._caches.values()
            for path, head in cache.heads.items()
        }

    @property
    def caches(self) -> Collection[file_cache.FileCache]:
        """Return all cached results."""
        return self._caches.values()

    def _place(self, path: str) -> str:
        """Return the path with the links of its directories resolved."""
        parent, _, name = path.rpartition("/")
        place = f"{self.resolve(parent or '/')}/{name}".replace("//", "/")
        if not self._paths.is_allowed(place):
            raise errors.UnreadableError(path, errno.ENOENT)
        return place

    def _target(self, place: str) -> str | None:
        return file_cache.read_once(
            self._cache(place).links, place, self._read_link
        )

    def _read_link(self, place: str) -> str | int | None:
        try:
            return self.source.link(place)
        except OSError as error:
            return self._note_error(place, error)

    def _list(self, place: str) -> tuple[str, ...] | int:
        try:
            return tuple(sorted(self.source.names(place)))
        except OSError as error:
            return self._note_error(place, error)

    def _read_mode(self, place: str) -> str | int:
        try:
            return oct(self.source.mode(place))
        except OSError as error:
            return self._note_error(place, error)

    def _resolve(self, path: str) -> str | int:
        try:
            return self._follow(path)
        except errors.UnreadableError as error:
            return error.number

    def _follow(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        resolved = self._cache(parent).resolved
        if parent in resolved and name not in ("", ".", ".."):
            place = f"{self.resolve(parent)}/{name}"
            if self._target(place) is None:
                return place
        pending = path.split("/")[::-1]
        done: list[str] = []
        hops = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            place = "/" + "/".join([*done, part])
            if not self._paths.is_allowed(place):
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
            pending += target.split("/")[::-1]
        return "/" + "/".join(done)

    def _read_head(self, place: str) -> bytes | int:
        if not is_config_space(place):
            return errno.EINVAL
        try:
            return self.source.content(place)[:_HEAD_SIZE]
        except OSError as error:
            # A link is an attribute that can't be read (see _UNREADABLE).
            is_link = error.errno == errno.ELOOP
            return errno.EIO if is_link else self._note_error(place, error)

    def read_text(self, place: str) -> str | int:
        """Return a file's present text, or the errno of the failed read.

        :param place: a resolved path.
        """
        try:
            return self._decode(self.source.content(place), place)
        except OSError as error:
            if error.errno != errno.ELOOP:
                return self._note_error(place, error)
        try:
            if self._target(place) == _UNREADABLE:
                return errno.EIO
            target = self.resolve(place)
            return self._decode(self.source.content(target), target)
        except errors.UnreadableError as error:
            return error.number
        except OSError as error:
            return self._note_error(place, error)

    def _note_error(self, place: str, error: OSError) -> int:
        """Return the errno of a failed access."""
        if error.errno == errno.ETIMEDOUT:
            self._cache(place).late[place] = error.filename or place
        return error.errno or errno.EIO

    def _decode(self, content: bytes, place: str) -> str | int:
        if len(content) > self._paths.limit(place):
            return errno.EFBIG
        try:
            return self._paths.reduce_text(place, content.decode())
        except UnicodeDecodeError:
            return errno.EILSEQ
