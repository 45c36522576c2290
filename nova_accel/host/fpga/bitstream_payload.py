# SPDX-License-Identifier: Apache-2.0
"""Root's verified copy of a bitstream file.

Only ``privileged`` calls what is here: it has checked the arguments.
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
from nova_accel.fpga import bitstreams

# No FPGA takes that much: the largest bitstreams have some 100 MiB.
MOST_BYTES = 2 << 30
# Where private copies lie, below the root: nobody but root may write there
# (Filesystem Hierarchy Standard 3.0, 3.15).
_PRIVATE = "run"


def read(path: str, sha512: str) -> bytes:
    """Return a file's content, if its digest is the expected one.

    :raises OSError: it can't be read, is a link (ELOOP), no regular file
        (EINVAL), too large (EFBIG), or another one (EBADMSG).
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _refused(errno.EINVAL)
        if found.st_size > MOST_BYTES:
            raise _refused(errno.EFBIG)
        content = opened.read(found.st_size)
    if hashlib.sha512(content).hexdigest() != sha512:
        raise _refused(errno.EBADMSG)
    return content


def read_payload(path: str, sha512: str) -> bytes:
    """Return what the kernel's own interface takes of a file.

    :raises OSError: as ``read``; EINVAL also for a damaged header.
    """
    content = read(path, sha512)
    try:
        return bytes(bitstreams.payload(content))
    except errors.MalformedError as error:
        raise _refused(errno.EINVAL) from error


@contextlib.contextmanager
def private_copy(root: str, content: bytes) -> Iterator[str]:
    """Yield the path of a file that only root can reach, for a while.

    :raises OSError: it can't be written.
    """
    above = os.path.join(root, _PRIVATE)
    os.makedirs(above, 0o755, exist_ok=True)
    # XRT's loader lets a shell look at its arguments once more: no name
    # here has a character that a shell knows.
    place = tempfile.mkdtemp(prefix="nova-accel-", dir=above)
    try:
        path = os.path.join(place, "bitstream")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o400), "wb") as opened:
            opened.write(content)
        yield path
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
