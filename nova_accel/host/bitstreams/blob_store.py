# SPDX-License-Identifier: Apache-2.0
"""Bounded directory of files that are named by their SHA-512.

A file has such a name only when it is complete. A partial file has another
name, and its disk space is allocated in advance.
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
from nova_accel.catalog.fpga import bitstreams

LOG = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DIGEST = re.compile(r"[0-9a-f]{128}")
# Prefix of partial files.
_HALF = "half-"
_PARTIAL_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK = "lock-"
_ALL = "all"
# Seconds between two attempts to take a lock of another process.
_POLL_S = 0.02
# Seconds for which a verified digest is valid. A spawn needs a file several
# times within seconds; later a failing disk may have changed the content.
_VERIFIED_S = 60.0
_MIB = 1 << 20


@contextlib.contextmanager
def wrap_errors(image: str, place: str) -> Iterator[None]:
    """Turn errors of the file system into BitstreamError.

    :param place: the path, for errors without one.
    :raises BitstreamError: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        hint = (
            "make room on that file system, or lower nova.conf [nova_accel]"
            " bitstream_cache_mb"
            if error.errno in _NO_ROOM
            else "see that the user of nova-compute can write there, or"
            " change nova.conf [nova_accel] state_dir"
        )
        raise errors.BitstreamError(
            image,
            f"it can't be kept in {error.filename or place}:"
            f" {describe_error(error)}; {hint}",
            is_local=True,
        ) from error


def describe_error(error: OSError) -> str:
    """Return a text of an OSError: ``ENOSPC (No space left ...)``."""
    number = error.errno or 0
    return f"{errno.errorcode.get(number, number)} ({error.strerror or error})"


class PartialFile:
    """A file during its download; Nova's image API writes to it."""

    def __init__(self, image: str, path: str, sha512: str, size: int) -> None:
        """Open and lock an allocated file.

        :param image: id of the image, for errors.
        :param sha512: expected digest.
        :param size: expected size in bytes.
        """
        self.path = path
        self._image = image
        self._sha512 = sha512
        self._size = size
        self._received = 0
        self._digest = hashlib.sha512()
        self._file = open(path, "r+b", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, data: bytes) -> int:
        """Append bytes; return their number.

        :raises BitstreamError: there are more than the image has.
        """
        if self._received + len(data) > self._size:
            raise errors.BitstreamError(
                self._image,
                f"Glance sent more than the {self._size} bytes of its size;"
                " upload it again",
            )
        self._digest.update(data)
        rest = memoryview(data)
        with wrap_errors(self._image, self.path):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._received += len(data)
        return len(data)

    @property
    def is_complete(self) -> bool:
        """Return whether as many bytes were written as the image has."""
        return self._received >= self._size

    def truncate(self, size: int = 0) -> int:
        """Discard the content; Nova does so after an invalid signature."""
        self._file.seek(size)
        self._digest = hashlib.sha512()
        self._received = 0
        return size

    def check(self) -> None:
        """Verify size and digest, and sync the file to the disk.

        :raises BitstreamError: the content is truncated or has another
            digest.
        """
        if not self.is_complete:
            raise errors.BitstreamError(
                self._image,
                bitstreams.describe_truncation(self._received, self._size),
                is_local=True,
            )
        if self._digest.hexdigest() != self._sha512:
            raise errors.BitstreamError(
                self._image,
                "the SHA-512 digest of the downloaded content is not the"
                " expected one; correct its property accelerator_sha512, or"
                " upload the right content as a new image",
            )
        with wrap_errors(self._image, self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock and close the file."""
        # A forked child may have the descriptor, and with it the lock.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


class _Blob(NamedTuple):
    """A complete file; blobs sort by their last use."""

    used_ns: int
    name: str
    size: int


class _FileVersion(NamedTuple):
    """Status of a file; it differs after a write."""

    inode: int
    size: int
    written_ns: int


class _VerifiedFile(NamedTuple):
    """A file with a verified digest, valid until a monotonic time."""

    version: _FileVersion
    until: float

    def is_expired(self) -> bool:
        """Return whether the content must be verified again."""
        return time.monotonic() > self.until


class BlobStore:
    """Directory of such files; safe between threads and processes.

    Methods with an image's id raise BitstreamError for an error of the
    file system, the others OSError.

    :param directory: created if missing, accessible to its owner only.
    :param limit: maximum size of all files, partial ones included, in
        bytes.
    """

    def __init__(self, directory: str, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._locks_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._verified: dict[str, _VerifiedFile] = {}

    @contextlib.contextmanager
    def lock_image(self, image: str) -> Iterator[None]:
        """Lock an image's content on this host. Not reentrant."""
        # At most 256 lock files for any number of images.
        bucket = hashlib.sha256(image.encode()).hexdigest()[:2]
        with contextlib.ExitStack() as stack:
            with wrap_errors(image, self.directory):
                self._ensure_directory()
                stack.enter_context(self._locked(bucket))
            yield

    def find(self, sha512: str, size: int) -> str | None:
        """Return the path of a complete file, None if there is none.

        Its digest is verified, unless that was done in the last minute and
        the file was not written since. A damaged file is removed.
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
            verified = self._verified.get(sha512)
            if (
                verified is None
                or verified.version != version
                or verified.is_expired()
            ):
                if hashlib.file_digest(file, "sha512").hexdigest() != sha512:
                    self._remove_damaged(path, version.inode)
                    return None
                verified = _VerifiedFile(
                    version, time.monotonic() + _VERIFIED_S
                )
            _touch(descriptor)
            self._verified[sha512] = verified._replace(
                version=_version(descriptor)
            )
        return path if version.size == size else None

    @contextlib.contextmanager
    def add_file(
        self, image: str, sha512: str, size: int, keep: Collection[str] = ()
    ) -> Iterator[PartialFile]:
        """Yield a partial file; rename it at the end of the with block.

        An exception removes it. The caller calls its ``check``.

        :param image: id of the image, for errors.
        :param keep: digests of files that stay. Others are evicted if
            needed, least recently used first.
        :raises BitstreamError: there is no room for it.
        """
        with wrap_errors(image, self.directory):
            self._ensure_directory()
            partial = self._reserve(image, sha512, size, keep)
        try:
            yield partial
            with (
                wrap_errors(image, self.directory),
                self._locked(_ALL),
            ):
                os.replace(partial.path, self._path(sha512))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial.path)
            partial.close()

    def write_note(self, image: str, name: str, text: str) -> None:
        """Write a small file with another name, atomically."""
        path = os.path.join(self.directory, name)
        with wrap_errors(image, path), self._locked(_ALL):
            descriptor, temporary = tempfile.mkstemp(
                prefix=_HALF, dir=self.directory
            )
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)

    def remove_partial_files(self) -> None:
        """Remove the partial files of killed writers.

        None is removed while another process adds a file.

        :raises OSError: the directory can't be locked or listed.
        """
        with (
            contextlib.suppress(FileNotFoundError, BlockingIOError),
            self._locked(_ALL, can_wait=False),
        ):
            self._partial_bytes()

    def digests(self) -> frozenset[str]:
        """Return the digests of the complete files."""
        return frozenset(blob.name for blob in self._blobs())

    def _path(self, sha512: str) -> str:
        return os.path.join(self.directory, sha512)

    def _ensure_directory(self) -> None:
        os.makedirs(os.path.dirname(self.directory), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory, 0o700)
        if stat.S_IMODE(os.stat(self.directory).st_mode) & 0o077:
            os.chmod(self.directory, 0o700)

    @contextlib.contextmanager
    def _locked(self, name: str, *, can_wait: bool = True) -> Iterator[None]:
        """Lock between threads, then between processes.

        The file lock is polled: under eventlet the threads are green, and
        a wait in the kernel would stop all of them.

        :raises BlockingIOError: another process has the lock, and the caller
            can't wait.
        """
        with self._locks_lock:
            lock = self._locks.setdefault(name, threading.Lock())
        path = os.path.join(self.directory, _LOCK + name)
        with lock:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                while not _is_locked(descriptor):
                    if not can_wait:
                        raise BlockingIOError(errno.EWOULDBLOCK, path)
                    time.sleep(_POLL_S)
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _blobs(self) -> list[_Blob]:
        blobs = []
        for name in os.listdir(self.directory):
            if not _DIGEST.fullmatch(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(self._path(name))
                blobs.append(_Blob(status.st_mtime_ns, name, status.st_size))
        return sorted(blobs)

    def _reserve(
        self, image: str, sha512: str, size: int, keep: Collection[str]
    ) -> PartialFile:
        with self._locked(_ALL):
            self._make_room(image, sha512, size, keep)
            descriptor, path = tempfile.mkstemp(
                prefix=_HALF, dir=self.directory
            )
            try:
                _allocate(descriptor, size)
                return PartialFile(image, path, sha512, size)
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)

    def _make_room(
        self, image: str, sha512: str, size: int, keep: Collection[str]
    ) -> None:
        """Evict files until there is room, least recently used first."""
        others = [blob for blob in self._blobs() if blob.name != sha512]
        free = self.limit - size - self._partial_bytes()
        free -= sum(blob.size for blob in others)
        evictable = [blob for blob in others if blob.name not in keep]
        if free + sum(blob.size for blob in evictable) < 0:
            raise errors.BitstreamError(
                image,
                f"its {size} bytes have no room in {self.directory} beside"
                " the bitstreams that servers have or that are being"
                " downloaded; raise nova.conf [nova_accel] bitstream_cache_mb"
                " (now"
                f" {self.limit // _MIB})",
                is_local=True,
            )
        for blob in evictable:
            if free >= 0:
                return
            os.unlink(self._path(blob.name))
            free += blob.size

    def _partial_bytes(self) -> int:
        """Return the size of all partial files; remove abandoned ones.

        A writer has its file locked until its process ends.
        """
        total = 0
        for name in os.listdir(self.directory):
            if not name.startswith(_HALF):
                continue
            path = os.path.join(self.directory, name)
            # A link is neither followed nor counted.
            with contextlib.suppress(OSError):
                descriptor = os.open(path, _PARTIAL_FLAGS)
                try:
                    if _is_locked(descriptor):
                        os.unlink(path)
                    else:
                        total += os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
        return total

    def _remove_damaged(self, path: str, inode: int) -> None:
        """Remove a file, unless it was replaced meanwhile."""
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
    """Set a file's time of last use; a failure only affects eviction."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(descriptor, ns=(now, now))


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _allocate(descriptor: int, size: int) -> None:
    """Allocate the disk space of a file; fails early on a full disk."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)
