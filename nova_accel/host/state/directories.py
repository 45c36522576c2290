# SPDX-License-Identifier: Apache-2.0
"""Directories opened by descriptor, one component of the path at a time.

Root's commands write below directories that nova-compute's user owns. That
user can replace a component of such a path by a link at any time. So each
component is opened relative to the descriptor of its parent, and never
through a link; callers use names relative to the last descriptor. Root
follows a link only in a directory that no other user can change. Files are
read, and replaced atomically, below such a descriptor.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator

# Other users must not see which server has which device.
_MODE = 0o750
# Mode of a new directory before its owner and mode are set. No other
# directory of root's has this mode with the sticky bit, so the owner of the
# parent can't pass one of them off as new.
_NEW = 0o1700
_ROOT = 0
# As many links as the kernel follows in one path (MAXSYMLINKS, namei.h).
_MAX_LINKS = 40
_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opens a directory on the path without permission to list it.
_PASS = _FLAGS | os.O_PATH
_READ = _FLAGS | os.O_RDONLY
# Name of a partial file: that of the file that it becomes, which former
# releases left out, and a random number. It has no suffix, so readers of a
# directory skip it.
_PARTIAL = re.compile(r"\.(?:(?P<target>.+)\.)?[0-9a-f]{16}")


@contextlib.contextmanager
def open_directory(path: str, *, make_parents: bool = False) -> Iterator[int]:
    """Yield the descriptor of a directory.

    :param make_parents: create the missing directories of the path, each with
        the owner of its parent.
    :raises OSError: it can't be opened or created; ELOOP also for a link
        that root must not follow.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = _walk(stack, path, make_parents=make_parents)
        except OSError as error:
            error.filename = path
            raise
        yield descriptor


def read_file(name: str, parent: int, limit: int) -> bytes:
    """Return the content of a regular file of an open directory.

    :param limit: maximum length in bytes.
    :raises OSError: it can't be read; ELOOP for a link.
    :raises ValueError: it is no regular file, or too long.
    """
    # O_NONBLOCK: a FIFO without a writer must not block the open.
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
    """Return the content of a regular file; raises as ``read_file``."""
    directory, name = os.path.split(os.path.abspath(path))
    with open_directory(directory) as parent:
        return read_file(name, parent, limit)


def _walk(
    stack: contextlib.ExitStack, path: str, *, make_parents: bool
) -> int:
    current = _open(stack, "/", _PASS)
    pending = _components(os.path.abspath(path))
    links = 0
    while pending:
        name = pending.pop()
        parent = current
        try:
            current = _open(stack, name, _PASS, parent)
        except FileNotFoundError:
            if not make_parents:
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
        if make_parents:
            _set_owner_and_mode(current, parent)
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
    """Return the components of a path in reverse order."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _make(stack: contextlib.ExitStack, name: str, parent: int) -> int:
    # Another process may have created it meanwhile.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _NEW, dir_fd=parent)
    return _open(stack, name, _PASS, parent)


def _set_owner_and_mode(descriptor: int, parent: int) -> None:
    """Set the owner of a new directory to its parent's, and its mode.

    This also completes a directory whose creator is slower or was killed.
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
        os.fchmod(writable, _MODE)  # independent of the umask


def _read_link(name: str, parent: int) -> str:
    """Return the target of a link.

    :raises OSError: ENOTDIR if it is no link, ELOOP for a link that root
        must not follow.
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


def replace_file(
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
        open_directory(directory, make_parents=make_parents) as parent,
        contextlib.ExitStack() as undo,
    ):
        descriptor, partial = _create_partial(name, parent)
        undo.callback(_remove_file, partial, parent)
        with open(descriptor, "wb") as new:
            os.fchmod(descriptor, mode)
            new.write(content)
            new.flush()
            if is_durable:
                os.fsync(descriptor)
            # Before the file is closed, which unlocks it.
            os.replace(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        undo.pop_all()
        if is_durable:
            sync_directory(parent)


def _create_partial(target: str, parent: int) -> tuple[int, str]:
    """Return descriptor and name of a new partial file, locked.

    Without a lock, ``remove_partial_files`` may take it for abandoned: it
    is created again if that has just removed it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        name = f".{target}.{secrets.token_hex(8)}"
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        with contextlib.suppress(OSError):  # the filesystem has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)


def remove_partial_files(path: str, target: str = "") -> list[str]:
    """Remove the partial files that writers left which were killed.

    A file whose writer lives is locked, and stays. No link is followed.

    :param target: remove only those of this file; of all files if empty.
    :returns: the names of the removed files.
    :raises OSError: the directory can't be listed.
    """
    removed = []
    with open_directory(path) as directory:
        for name in sorted(os.listdir(directory)):
            match = _PARTIAL.fullmatch(name)
            if match is None or target not in ("", match["target"]):
                continue
            with contextlib.suppress(OSError):
                if _remove_unlocked(name, directory):
                    removed.append(name)
    return removed


def _remove_unlocked(name: str, directory: int) -> bool:
    """Remove a regular file that no process has locked.

    :raises OSError: it can't be removed; EWOULDBLOCK for a locked one.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)
    return True


def sync_directory(directory: int) -> None:
    """Sync a directory's entries to the disk, if its filesystem can."""
    with contextlib.suppress(OSError):
        os.fsync(directory)


def _remove_file(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
