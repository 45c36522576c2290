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
    is_durable: bool = False,
    make_parents: bool = False,
) -> None:
    """Replace a file atomically.

    :param mode: permissions of the file, independent of the umask.
    :param is_durable: sync the file and its directory to the disk.
    :param make_parents: create the missing directories of the path.
    :raises OSError: it can't be written; the old file stays.
    """
    directory, name = os.path.split(os.path.abspath(path))
    with (
        directories.open_directory(
            directory, make_parents=make_parents
        ) as parent,
        contextlib.ExitStack() as undo,
    ):
        # The name has no suffix, so readers of a directory skip it.
        temporary = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
        undo.callback(_remove, temporary, parent)
        with open(descriptor, "wb") as new:
            os.fchmod(descriptor, mode)
            new.write(content)
            if is_durable:
                new.flush()
                os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        undo.pop_all()
        if is_durable:
            sync_directory(parent)


def sync_directory(directory: int) -> None:
    """Sync a directory's entries to the disk, if its filesystem can."""
    with contextlib.suppress(OSError):
        os.fsync(directory)


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
