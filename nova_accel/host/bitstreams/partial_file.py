# SPDX-License-Identifier: Apache-2.0
"""Partial files, and errors of full disks."""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.fpga import bitstreams

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def disk(image: str, place: str) -> Iterator[None]:
    """Give what a file system refuses the words of this library.

    :param place: the path, where the error names none.
    :raises BitstreamError: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        mend = (
            "make room on that file system, or lower nova.conf [nova_accel]"
            " bitstream_cache_mb"
            if error.errno in _NO_ROOM
            else "see that the user of nova-compute can write there, or"
            " change nova.conf [nova_accel] state_dir"
        )
        raise errors.BitstreamError(
            image,
            f"it can't be kept in {error.filename or place}: {words(error)};"
            f" {mend}",
            is_local=True,
        ) from error


def words(error: OSError) -> str:
    """Return an error of the file system: ``ENOSPC (No space left ...)``."""
    number = error.errno or 0
    return f"{errno.errorcode.get(number, number)} ({error.strerror or error})"


class PartialFile:
    """A file that is not yet whole; Nova's image API writes into it."""

    def __init__(self, image: str, path: str, sha512: str, size: int) -> None:
        """Take a file that has all its room, and hold it."""
        self.path = path
        self._image = image
        self._sha512 = sha512
        self._size = size
        self._came = 0
        self._digest = hashlib.sha512()
        self._file = open(path, "r+b", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, data: bytes) -> int:
        """Add the next bytes, and return how many.

        :raises BitstreamError: there are more than the image has.
        """
        if self._came + len(data) > self._size:
            raise errors.BitstreamError(
                self._image,
                f"more than the {self._size} bytes came that Glance says it"
                " has; upload it again",
            )
        self._digest.update(data)
        rest = memoryview(data)
        with disk(self._image, self.path):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._came += len(data)
        return len(data)

    def truncate(self, size: int = 0) -> int:
        """Drop what came: Nova does so where a signature is wrong."""
        self._file.seek(size)
        self._digest = hashlib.sha512()
        self._came = 0
        return size

    def check(self) -> None:
        """Check that all of it came, and put it on the disk.

        :raises BitstreamError: it is cut off, or something else.
        """
        if self._came != self._size:
            raise errors.BitstreamError(
                self._image, bitstreams.cut_off(self._came, self._size)
            )
        if self._digest.hexdigest() != self._sha512:
            raise errors.BitstreamError(
                self._image,
                "what came has not the SHA-512 digest that it must have;"
                " correct its property accelerator_sha512, or upload the"
                " right content as a new image",
            )
        with disk(self._image, self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        # A child of this process that was forked meanwhile has it, too.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
