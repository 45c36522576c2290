# SPDX-License-Identifier: Apache-2.0
"""Single reads and writes of kernel files; errors as errno values.

Only ``privileged`` calls these functions; it builds the paths.
"""

import errno
import os

# Bytes to read of a kernel file.
_PAGE = 4096


def read(path: str) -> tuple[int, str]:
    """Return 0 and a kernel file's text, or the errno of the refusal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, encoding="ascii", errors="replace") as opened:
            return 0, opened.read(_PAGE).strip()
    except OSError as error:
        return error.errno or errno.EIO, ""


def write(path: str, text: str) -> int:
    """Write to a kernel file; return 0, or the errno of the refusal."""
    try:
        # O_NOFOLLOW: no kernel file that is written here is a link.
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(descriptor)
    return 0


def read_bytes(path: str) -> tuple[int, bytes]:
    """Return 0 and a kernel file's bytes, or the errno of the refusal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb", buffering=0) as opened:
            return 0, opened.read(_PAGE) or b""
    except OSError as error:
        return error.errno or errno.EIO, b""
