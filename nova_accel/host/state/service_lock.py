# SPDX-License-Identifier: Apache-2.0
"""Lock file of the nova-compute of a host.

An old nova-compute in graceful shutdown may still spawn servers while its
successor runs. Neither knows the servers of the other and would remove
their partitions as orphans. The older process has the lock; each successor
has a shared lock on a second file, which shows it to the older process.
The locks are never released explicitly: the kernel releases them when the
process ends.
"""

import contextlib
import fcntl
import logging
import os
import threading
import uuid

from nova_accel.host.state import directories

LOG = logging.getLogger(__name__)

_NAME = "nova-compute.lock"
_SUCCESSORS = "nova-compute.next"
#: The files, in the order of their removal: the first one is the proof.
NAMES = (_SUCCESSORS, _NAME)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o644
# Maximum size of a process id and a token, in bytes.
_MAX_BYTES = 64
# Process ids are not unique across containers.
_TOKEN = uuid.uuid4().hex


def identify_ended(state_dir: str) -> str:
    """Return the identity of the last nova-compute with this library.

    Empty while one runs, and where that is not known: if none has ever
    locked the files of this directory, if they can't be read, or if one
    could not lock them now. The shared
    lock of this check is held for an instant; a nova-compute that starts
    just then takes its own with its next pass.
    """
    try:
        with directories.open_directory(state_dir) as parent:
            owners = {os.fstat(parent).st_uid, _find_owner(parent)}
            is_read_only = os.fstatvfs(parent).f_flag & os.ST_RDONLY
            if len(owners) > 1 or is_read_only:
                return ""
            with contextlib.suppress(FileNotFoundError):
                _read_unlocked(_SUCCESSORS, parent, fcntl.LOCK_EX)
            return _read_unlocked(_NAME, parent, fcntl.LOCK_SH)
    except OSError:
        return ""


def _find_owner(parent: int) -> int:
    return os.stat(_NAME, dir_fd=parent, follow_symlinks=False).st_uid


def _read_unlocked(name: str, parent: int, lock: int) -> str:
    """Return the content of a lock file.

    :param lock: kind of the lock that its holders exclude.
    :raises OSError: it is locked, or can't be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        return os.pread(descriptor, _MAX_BYTES, 0).decode("ascii", "replace")
    finally:
        os.close(descriptor)


class ServiceLock:
    """Lock that one nova-compute of a host holds. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Use ``nova-compute.lock`` in a directory; nothing is locked yet."""
        self.path = os.path.join(state_dir, _NAME)
        self._descriptor: int | None = None
        self._successor: int | None = None
        self._is_logged = False
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        """Return whether no other nova-compute runs; does not wait.

        If the file can't be locked at all, a warning is logged, and the
        result is True.
        """
        with self._lock:
            try:
                if self._descriptor is not None:
                    return self._is_last()
                return self._acquire()
            except OSError as error:
                self._log(
                    "Can't lock %s (%s): another nova-compute of this host"
                    " would not be noticed; make [nova_accel] state_dir"
                    " writable",
                    self.path,
                    error,
                )
                return True

    def _acquire(self) -> bool:
        place = os.path.dirname(os.path.abspath(self.path))
        with directories.open_directory(place, make_parents=True) as parent:
            descriptor = os.open(_NAME, _FLAGS, _MODE, dir_fd=parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {_TOKEN}".encode(), 0)
        except BlockingIOError:
            text = os.pread(descriptor, _MAX_BYTES, 0).decode(
                "ascii", "replace"
            )
            os.close(descriptor)
            holder, _, token = text.partition(" ")
            if token == _TOKEN:  # another service object of this process
                return self._is_last()
            self._announce()
            self._log(
                "Another nova-compute of this host still runs (process %s,"
                " which holds %s): orphaned partitions are not removed until"
                " it has ended",
                holder or "unknown",
                self.path,
            )
            return False
        except OSError:
            os.close(descriptor)
            raise
        if self._is_logged:
            LOG.warning("Locked %s: no other nova-compute runs", self.path)
        self._descriptor, self._is_logged = descriptor, False
        if self._successor is not None:
            os.close(self._successor)
            self._successor = None
        return self._is_last()

    def _announce(self) -> None:
        """Take the shared lock that shows this process to the older one."""
        if self._successor is not None:
            return
        with contextlib.suppress(OSError):
            descriptor = self._open_successors()
            # Blocks only while the older process is in _is_last.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._successor = descriptor

    def _is_last(self) -> bool:
        """Return whether no successor runs."""
        descriptor = self._open_successors()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._log(
                "Another nova-compute of this host has started (it has locked"
                " %s): orphaned partitions are not removed until one of them"
                " has ended",
                os.path.join(os.path.dirname(self.path), _SUCCESSORS),
            )
            return False
        finally:
            os.close(descriptor)
        self._is_logged = False
        return True

    def _open_successors(self) -> int:
        place = os.path.dirname(os.path.abspath(self.path))
        with directories.open_directory(place, make_parents=True) as parent:
            return os.open(_SUCCESSORS, _FLAGS, _MODE, dir_fd=parent)

    def _log(self, message: str, *arguments: object) -> None:
        """Log a warning once."""
        if not self._is_logged:
            LOG.warning(message, *arguments)
        self._is_logged = True
