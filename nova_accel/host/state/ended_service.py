# SPDX-License-Identifier: Apache-2.0
"""Whether the last nova-compute of a host has ended, by its lock files."""

import contextlib
import fcntl
import os

from nova_accel.host.state import directories, service_lock


def identify(state_dir: str) -> str:
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
                _read_unlocked(service_lock.SUCCESSORS, parent, fcntl.LOCK_EX)
            return _read_unlocked(service_lock.NAME, parent, fcntl.LOCK_SH)
    except OSError:
        return ""


def _find_owner(parent: int) -> int:
    return os.stat(
        service_lock.NAME, dir_fd=parent, follow_symlinks=False
    ).st_uid


def _read_unlocked(name: str, parent: int, lock: int) -> str:
    """Return the content of a lock file.

    :param lock: kind of the lock that its holders exclude.
    :raises OSError: it is locked, or can't be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        return os.pread(descriptor, service_lock.MAX_BYTES, 0).decode(
            "ascii", "replace"
        )
    finally:
        os.close(descriptor)
