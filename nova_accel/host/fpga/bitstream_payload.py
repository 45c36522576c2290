# SPDX-License-Identifier: Apache-2.0
"""Root's verified copy of a bitstream file.

Only ``privileged`` calls these functions; it validates the arguments.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog.fpga import bitstreams

# Maximum size of a bitstream; the largest have some 100 MiB.
MOST_BYTES = 2 << 30
# Directory of the private copies, below the root. Only root may write there
# (Filesystem Hierarchy Standard 3.0, 3.15).
_PRIVATE = "run"


def read(path: str, sha512: str) -> bytes:
    """Return the content of a file with an expected digest.

    :raises OSError: it can't be read, is a link (ELOOP), no regular file
        (EINVAL), too large (EFBIG), or has another digest (EBADMSG).
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _refused(errno.EINVAL)
        if status.st_size > MOST_BYTES:
            raise _refused(errno.EFBIG)
        content = file.read(status.st_size)
    if hashlib.sha512(content).hexdigest() != sha512:
        raise _refused(errno.EBADMSG)
    return content


def read_payload(path: str, sha512: str) -> bytes:
    """Return the part of a bitstream file that the kernel's ioctl loads.

    :raises OSError: see ``read``; EINVAL also for a damaged header.
    """
    content = read(path, sha512)
    try:
        return bytes(bitstreams.extract_payload(content))
    except errors.MalformedError as error:
        raise _refused(errno.EINVAL) from error


@contextlib.contextmanager
def private_copy(root: str, content: bytes) -> Iterator[str]:
    """Yield the path of a temporary file that only root can access.

    :raises OSError: it can't be written.
    """
    parent = os.path.join(root, _PRIVATE)
    os.makedirs(parent, 0o755, exist_ok=True)
    # XRT's loader passes its arguments through a shell: the name must not
    # have any of the shell's special characters.
    directory = tempfile.mkdtemp(prefix="nova-accel-", dir=parent)
    try:
        path = os.path.join(directory, "bitstream")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o400), "wb") as file:
            file.write(content)
        yield path
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
