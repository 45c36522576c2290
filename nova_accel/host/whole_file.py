# SPDX-License-Identifier: Apache-2.0
"""A file that others read while it is written: the old or the new one."""

import contextlib
import os
import tempfile


def replace(
    path: str, content: bytes, mode: int, is_lasting: bool = False
) -> None:
    """Replace a file at once, whatever this process's umask is.

    :param is_lasting: force it to the disk; what is written again soon
        need not be.
    :raises OSError: it can't be written; what was there stays.
    """
    place = os.path.dirname(os.path.abspath(path))
    # Hidden, for those who look for names that end in a certain way.
    descriptor, half = tempfile.mkstemp(prefix=".", dir=place)
    with contextlib.ExitStack() as left:
        left.callback(_remove, half)
        with open(descriptor, "wb") as new:
            os.fchmod(descriptor, mode)
            new.write(content)
            if is_lasting:
                new.flush()
                os.fsync(descriptor)
        os.replace(half, path)
        left.pop_all()
    if is_lasting:
        sync(place)


def sync(place: str) -> None:
    """Put the names in a directory on the disk, where that can be done."""
    with contextlib.suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
