# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of files."""

import contextlib
import os
import secrets

from nova_accel.host.state import directories


def replace(
    path: str,
    content: bytes,
    mode: int,
    is_lasting: bool = False,
    is_made: bool = False,
) -> None:
    """Replace a file at once, whatever this process's umask is.

    :param is_lasting: force it to the disk; what is written again soon
        need not be.
    :param is_made: make the missing directories of its path.
    :raises OSError: it can't be written; what was there stays.
    """
    place, name = os.path.split(os.path.abspath(path))
    with (
        directories.opened(place, is_made=is_made) as parent,
        contextlib.ExitStack() as undo,
    ):
        # Hidden, for those who look for names that end in a certain way.
        half = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(half, flags, 0o600, dir_fd=parent)
        undo.callback(_remove, half, parent)
        with open(descriptor, "wb") as new:
            os.fchmod(descriptor, mode)
            new.write(content)
            if is_lasting:
                new.flush()
                os.fsync(descriptor)
        os.replace(half, name, src_dir_fd=parent, dst_dir_fd=parent)
        undo.pop_all()
        if is_lasting:
            sync(parent)


def sync(directory: int) -> None:
    """Put the names in a directory on the disk, where that can be done."""
    with contextlib.suppress(OSError):
        os.fsync(directory)


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
