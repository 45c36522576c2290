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

NAME = "nova-compute.lock"
SUCCESSORS = "nova-compute.next"
#: The files, in the order of their removal: the first one is the proof.
NAMES = (SUCCESSORS, NAME)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o644
# Maximum size of a process id and a token, in bytes.
MAX_BYTES = 64
# Process ids are not unique across containers.
_TOKEN = uuid.uuid4().hex


class ServiceLock:
    """Lock that one nova-compute of a host holds. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Use ``nova-compute.lock`` in a directory; nothing is locked yet."""
        self.path = os.path.join(state_dir, NAME)
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
            descriptor = os.open(NAME, _FLAGS, _MODE, dir_fd=parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {_TOKEN}".encode(), 0)
        except BlockingIOError:
            text = os.pread(descriptor, MAX_BYTES, 0).decode(
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
                os.path.join(os.path.dirname(self.path), SUCCESSORS),
            )
            return False
        finally:
            os.close(descriptor)
        self._is_logged = False
        return True

    def _open_successors(self) -> int:
        place = os.path.dirname(os.path.abspath(self.path))
        with directories.open_directory(place, make_parents=True) as parent:
            return os.open(SUCCESSORS, _FLAGS, _MODE, dir_fd=parent)

    def _log(self, message: str, *arguments: object) -> None:
        """Log a warning once."""
        if not self._is_logged:
            LOG.warning(message, *arguments)
        self._is_logged = True
