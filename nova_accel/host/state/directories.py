# SPDX-License-Identifier: Apache-2.0
"""Directories opened by descriptor, one component of the path at a time.

Commands that root runs write below directories of nova-compute's user, who
can replace any part of such a path by a link while root is at work. So
nothing is done by path here: each component is opened relative to the
descriptor of its parent and never through a link, and callers work
relative to the last descriptor. Root follows a link only in a directory
that no other user can change.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_MODE = 0o755
# The mode of a directory that still has to be given its owner and its mode.
# Root has no other directories with the sticky bit and this mode: whoever
# else owns the parent can't pass one of root's own off as a new one.
_NEW = 0o1700
_ROOT = 0
# As many links as the kernel follows in one path (MAXSYMLINKS, namei.h).
_MAX_LINKS = 40
_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# To pass through a directory needs no permission to list it.
_PASS = _FLAGS | os.O_PATH
_READ = _FLAGS | os.O_RDONLY


@contextlib.contextmanager
def opened(path: str, *, is_made: bool = False) -> Iterator[int]:
    """Yield the descriptor of a directory.

    :param is_made: make the missing directories of the path. They belong
        to the owner of the directory in which they are made.
    :raises OSError: it can't be opened or made; ELOOP is also for a link
        that root must not follow.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = _walk(stack, path, is_made=is_made)
        except OSError as error:
            error.filename = path
            raise
        yield descriptor


def read_file(name: str, parent: int, limit: int) -> bytes:
    """Return the content of a regular file of an open directory.

    :param limit: of its length, in bytes.
    :raises OSError: it can't be read; ELOOP is for a link.
    :raises ValueError: it is no regular file, or too long.
    """
    # A FIFO is opened without a writer, and refused.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        content = bytearray()
        while part := os.read(descriptor, limit + 1 - len(content)):
            content += part
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    return bytes(content)


def read_path(path: str, limit: int) -> bytes:
    """Return the content of a regular file, with ``read_file()``'s errors."""
    place, name = os.path.split(os.path.abspath(path))
    with opened(place) as parent:
        return read_file(name, parent, limit)


def _walk(stack: contextlib.ExitStack, path: str, *, is_made: bool) -> int:
    current = _open(stack, "/", _PASS)
    pending = _components(os.path.abspath(path))
    links = 0
    while pending:
        name = pending.pop()
        parent = current
        try:
            current = _open(stack, name, _PASS, parent)
        except FileNotFoundError:
            if not is_made:
                raise
            current = _make(stack, name, parent)
        except NotADirectoryError:
            target = _read_link(name, current)
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            pending += _components(target)
            if target.startswith("/"):
                current = _open(stack, "/", _PASS)
            continue
        if is_made:
            _finish(current, parent)
    return _open(stack, ".", _READ, current)


def _open(
    stack: contextlib.ExitStack,
    name: str,
    flags: int,
    parent: int | None = None,
) -> int:
    descriptor = os.open(name, flags, dir_fd=parent)
    stack.callback(os.close, descriptor)
    return descriptor


def _components(path: str) -> list[str]:
    """Return the components of a path, the first one last."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _make(stack: contextlib.ExitStack, name: str, parent: int) -> int:
    # Another process may have made it since.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _NEW, dir_fd=parent)
    return _open(stack, name, _PASS, parent)


def _finish(descriptor: int, parent: int) -> None:
    """Give a new directory the owner of its parent, and the usual mode.

    Any process that makes directories does so with a new one that it
    passes, whose maker may be slower, or may have been killed.
    """
    status = os.fstat(descriptor)
    is_new = stat.S_IMODE(status.st_mode) & 0o1777 == _NEW
    if not is_new or status.st_uid != os.geteuid():
        return
    with contextlib.ExitStack() as stack:
        writable = _open(stack, ".", _READ, descriptor)
        if os.geteuid() == _ROOT:
            owner = os.fstat(parent)
            os.fchown(writable, owner.st_uid, owner.st_gid)
        os.fchmod(writable, _MODE)  # whatever the umask is


def _read_link(name: str, parent: int) -> str:
    """Return the target of a link.

    :raises OSError: ENOTDIR for what is no link, ELOOP for a link that
        root must not follow.
    """
    try:
        target = os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        number = errno.ENOTDIR
        raise NotADirectoryError(number, os.strerror(number)) from None
    status = os.fstat(parent)
    is_roots = status.st_uid == _ROOT and not status.st_mode & 0o022
    if os.geteuid() == _ROOT and not is_roots:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target
