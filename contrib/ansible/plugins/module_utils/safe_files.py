# SPDX-License-Identifier: Apache-2.0
"""Files that root reads and replaces below directories of other users.

The directory of nova.conf may belong to Nova's user, as on Debian, who can
replace a name in it by a link at any time. So each component of a path is
opened relative to the descriptor of its parent, and root follows a link only
in a directory that no other user can change. Text, owner and mode of a file
are those of one descriptor.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO without a writer must not block the open.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# As many links as the kernel follows in one path (MAXSYMLINKS, namei.h).
_MAX_LINKS = 40


class _Place:
    """Open directory and a name in it, to which a path leads."""

    def __init__(self, path, make_parents=False):
        """Walk the path.

        :param make_parents: create the missing directories.
        :raises OSError: a directory can't be opened, or a link can't be
            followed.
        """
        self._path = path
        self.directory = os.open("/", _DIRECTORY)
        try:
            self.name = self._walk(make_parents)
        except OSError as error:
            os.close(self.directory)
            error.filename = path
            raise

    def __enter__(self):
        """Return the place, which is closed at the end of the block."""
        return self

    def __exit__(self, *_error):
        """Close the directory."""
        os.close(self.directory)

    def _walk(self, make_parents):
        pending = self._path.split("/")[::-1]
        links = 0
        while True:
            name = pending.pop()
            if name in ("", ".") and pending:
                continue
            target = self._read_link(name)
            if target is None and not pending:
                return name
            if target is None:
                self._enter(name, make_parents)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            pending += target.split("/")[::-1]
            if target.startswith("/"):
                self._replace(os.open("/", _DIRECTORY))

    def _read_link(self, name):
        """Return the target of a link, None of anything else.

        :raises OSError: root must not follow it.
        """
        try:
            target = os.readlink(name, dir_fd=self.directory)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        status = os.fstat(self.directory)
        if status.st_uid or status.st_mode & 0o022:
            raise OSError(
                errno.ELOOP,
                f"{name} is a link in a directory of another user than root;"
                " replace it by a file or a directory",
            )
        return target

    def _enter(self, name, make_parents):
        if make_parents:
            try:
                os.mkdir(name, 0o755, dir_fd=self.directory)
            except FileExistsError:
                pass
        self._replace(os.open(name, _DIRECTORY, dir_fd=self.directory))

    def _replace(self, descriptor):
        os.close(self.directory)
        self.directory = descriptor

    def open_file(self):
        """Return a descriptor of the file.

        :raises OSError: it can't be opened, or is no regular file.
        """
        descriptor = os.open(self.name, _FILE, dir_fd=self.directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file", self._path)
        return descriptor


def read(path):
    """Return text and mode of a file; None and 0 if it does not exist."""
    try:
        with _Place(path) as place:
            descriptor = place.open_file()
    except FileNotFoundError:
        return None, 0
    with open(descriptor, encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        return file.read(), mode


def replace(path, text, mode):
    """Replace a file atomically, or create it with its directories.

    An old file gives owner and extended attributes, as the SELinux context.
    A new one belongs to root and to the group of its directory.

    :param mode: permissions of the file.
    """
    with _Place(path, make_parents=True) as place:
        temporary = f".{secrets.token_hex(8)}"
        descriptor = os.open(temporary, _NEW, 0o600, dir_fd=place.directory)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                _copy_owner(place, descriptor)
                os.fchmod(descriptor, mode)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            os.rename(
                temporary,
                place.name,
                src_dir_fd=place.directory,
                dst_dir_fd=place.directory,
            )
        except BaseException:
            os.unlink(temporary, dir_fd=place.directory)
            raise


def _copy_owner(place, descriptor):
    try:
        old = place.open_file()
    except FileNotFoundError:
        os.fchown(descriptor, -1, os.fstat(place.directory).st_gid)
        return
    try:
        status = os.fstat(old)
        os.fchown(descriptor, status.st_uid, status.st_gid)
        for name in _list_attributes(old):
            os.setxattr(descriptor, name, os.getxattr(old, name))
    finally:
        os.close(old)


def _list_attributes(descriptor):
    try:
        return os.listxattr(descriptor)
    except OSError:
        return []  # the file system has none


def remove(path):
    """Remove a file."""
    with _Place(path) as place:
        os.unlink(place.name, dir_fd=place.directory)
