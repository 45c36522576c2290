# SPDX-License-Identifier: Apache-2.0
"""Bounded directory of files that are named by their SHA-512.

Nothing is ever seen under such a name but a whole file of that content:
what is not yet whole has another name and all its room from the start.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from nova_accel import errors
from nova_accel.host.bitstreams import partial_file

LOG = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{128}")
_HALF = "half-"
_LOCK = "lock-"
_ALL = "all"
# How often a lock is asked for that another process holds.
_POLL_S = 0.02
# How long a look at a content counts. A spawn asks some times within
# seconds; what a failing disk changed without a write is found after it.
_LOOK_S = 60.0
_MIB = 1 << 20


class _Blob(NamedTuple):
    """One whole file, the one used longest ago first."""

    used_ns: int
    name: str
    size: int


class _FileVersion(NamedTuple):
    """What differs once something wrote to a file."""

    inode: int
    size: int
    written_ns: int


class _VerifiedFile(NamedTuple):
    """A file whose content was right, and until when that counts."""

    version: _FileVersion
    until: float

    def is_old(self) -> bool:
        """Return whether the content has to be looked at again."""
        return time.monotonic() > self.until


class BlobStore:
    """A directory of such files; safe between threads and processes.

    Methods that take an image's id raise BitstreamError for whatever the
    file system refuses, the others OSError.

    :param directory: made if it is missing, for its owner only.
    :param limit: the most bytes of files in it, those not whole included.
    """

    def __init__(self, directory: str, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._looks: dict[str, _VerifiedFile] = {}

    @contextlib.contextmanager
    def held(self, image: str) -> Iterator[None]:
        """Let one at a time work on an image's content, on this host.

        Not to be asked for by who has it already.
        """
        # At most 256 lock files, whatever the images.
        bucket = hashlib.sha256(image.encode()).hexdigest()[:2]
        with contextlib.ExitStack() as stack:
            with partial_file.disk(image, self.directory):
                self._ensure_directory()
                stack.enter_context(self._locked(bucket))
            yield

    def find(self, sha512: str, size: int) -> str | None:
        """Return the path of a whole file, None where there is none.

        Its content is looked at, unless that was a moment ago and nothing
        wrote to the file since: a damaged one is removed.
        """
        path = self._path(sha512)
        try:
            descriptor = os.open(
                path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            version = _version(descriptor)
            look = self._looks.get(sha512)
            if look is None or look.version != version or look.is_old():
                if hashlib.file_digest(file, "sha512").hexdigest() != sha512:
                    self._remove_damaged(path, version.inode)
                    return None
                look = _VerifiedFile(version, time.monotonic() + _LOOK_S)
            _touch(descriptor)
            self._looks[sha512] = look._replace(version=_version(descriptor))
        return path if version.size == size else None

    @contextlib.contextmanager
    def adding(
        self, image: str, sha512: str, size: int, keep: Collection[str] = ()
    ) -> Iterator[partial_file.PartialFile]:
        """Give a file to write to; at the end it gets its name.

        At the end means: where no error was raised. The caller has called
        its ``check``.

        :param image: whose content it is, for errors.
        :param keep: digests of files that stay; others go for it, those
            used longest ago first.
        :raises BitstreamError: there is no room for it, or what came is
            not what was announced.
        """
        with partial_file.disk(image, self.directory):
            self._ensure_directory()
            half = self._reserve(image, sha512, size, keep)
        try:
            yield half
            with partial_file.disk(image, self.directory), self._locked(_ALL):
                os.replace(half.path, self._path(sha512))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half.path)
            half.close()

    def write_note(self, image: str, name: str, text: str) -> None:
        """Write a small file of another name, at once or not at all."""
        path = os.path.join(self.directory, name)
        with partial_file.disk(image, path), self._locked(_ALL):
            descriptor, half = tempfile.mkstemp(
                prefix=_HALF, dir=self.directory
            )
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            os.replace(half, path)

    def digests(self) -> frozenset[str]:
        """Return the digests of the files that are there."""
        return frozenset(one.name for one in self._kept())

    def _path(self, sha512: str) -> str:
        return os.path.join(self.directory, sha512)

    def _ensure_directory(self) -> None:
        os.makedirs(os.path.dirname(self.directory), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory, 0o700)
        if stat.S_IMODE(os.stat(self.directory).st_mode) & 0o077:
            os.chmod(self.directory, 0o700)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Lock between threads, then between processes.

        In this order, and never waiting inside the kernel: under eventlet
        the threads are green, and one that waits there stops them all.
        """
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        path = os.path.join(self.directory, _LOCK + name)
        with lock:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                while not _is_locked(descriptor):
                    time.sleep(_POLL_S)
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _kept(self) -> list[_Blob]:
        found = []
        for name in os.listdir(self.directory):
            if not _DIGEST.fullmatch(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(self._path(name))
                found.append(_Blob(status.st_mtime_ns, name, status.st_size))
        return sorted(found)

    def _reserve(
        self, image: str, sha512: str, size: int, keep: Collection[str]
    ) -> partial_file.PartialFile:
        with self._locked(_ALL):
            self._make_room(image, sha512, size, keep)
            descriptor, path = tempfile.mkstemp(
                prefix=_HALF, dir=self.directory
            )
            try:
                _allocate(descriptor, size)
                return partial_file.PartialFile(image, path, sha512, size)
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)

    def _make_room(
        self, image: str, sha512: str, size: int, keep: Collection[str]
    ) -> None:
        others = [one for one in self._kept() if one.name != sha512]
        free = self.limit - size - self._halves()
        free -= sum(one.size for one in others)
        can_go = [one for one in others if one.name not in keep]
        if free + sum(one.size for one in can_go) < 0:
            raise errors.BitstreamError(
                image,
                f"its {size} bytes have no room in {self.directory} beside"
                " those that servers have or that come just now; raise"
                " nova.conf [nova_accel] bitstream_cache_mb (now"
                f" {self.limit // _MIB})",
                is_local=True,
            )
        for one in can_go:
            if free >= 0:
                return
            os.unlink(self._path(one.name))
            free += one.size

    def _halves(self) -> int:
        """Return the bytes of files not yet whole; abandoned ones go.

        Who writes such a file holds it: a process that ended does not.
        """
        total = 0
        for name in os.listdir(self.directory):
            if not name.startswith(_HALF):
                continue
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _is_locked(descriptor):
                        os.unlink(path)
                    else:
                        total += os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
        return total

    def _remove_damaged(self, path: str, inode: int) -> None:
        """Remove a file, unless a good one took its place just now."""
        LOG.warning("%s is damaged: it is fetched again", path)
        with (
            self._locked(_ALL),
            contextlib.suppress(FileNotFoundError),
        ):
            if os.lstat(path).st_ino == inode:
                os.unlink(path)


def _version(descriptor: int) -> _FileVersion:
    status = os.fstat(descriptor)
    return _FileVersion(status.st_ino, status.st_size, status.st_mtime_ns)


def _touch(descriptor: int) -> None:
    """Note that a file was used now; without that it goes sooner."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(descriptor, ns=(now, now))


def _is_locked(descriptor: int) -> bool:
    """Return whether nobody else held a file; now the caller does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _allocate(descriptor: int, size: int) -> None:
    """Give a file all its room: a full disk is found out now."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)
