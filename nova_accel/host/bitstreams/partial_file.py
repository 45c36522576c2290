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
                f"more than the {self._size} bytes came that Glance says it"
                " has; upload it again",
            )
        self._digest.update(data)
        rest = memoryview(data)
        with wrap_errors(self._image, self.path):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._received += len(data)
        return len(data)

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
        if self._received != self._size:
            raise errors.BitstreamError(
                self._image,
                bitstreams.describe_truncation(self._received, self._size),
            )
        if self._digest.hexdigest() != self._sha512:
            raise errors.BitstreamError(
                self._image,
                "what came has not the SHA-512 digest that it must have;"
                " correct its property accelerator_sha512, or upload the"
                " right content as a new image",
            )
        with wrap_errors(self._image, self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock and close the file."""
        # A forked child may have the descriptor, and with it the lock.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
