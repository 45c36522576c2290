# SPDX-License-Identifier: Apache-2.0
"""Files of a captured host, in memory."""

import errno
import os
from collections.abc import Mapping


class RecordedLink(str):
    """Where a recorded link points."""

    __slots__ = ()


class RecordedDirectory(tuple[str, ...]):
    """The names in a recorded directory."""

    __slots__ = ()


# What was found at a path: a file's text, the errno of a failed read, a
# link, a directory, or the first bytes of a file that holds no text.
Record = str | int | RecordedLink | RecordedDirectory | bytes


class RecordedFiles:
    """A host's files as ``fs.Files.records`` remembered them, in memory.

    :param records: by path, as ``fs.Files.records`` gives them. Directories
        on the way to a path need no record of their own.
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = dict(records)
        self._children: dict[str, set[str]] = {"/": set()}
        for path in records:
            self._add(path)

    def link(self, path: str) -> str | None:
        """Return where a link points, None for what is no link."""
        found = self._find(path)
        if found == errno.ENOTDIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return str(found) if isinstance(found, RecordedLink) else None

    def content(self, path: str) -> bytes:
        """Return a file's bytes; a link is not followed (ELOOP)."""
        found = self._find(path)
        if isinstance(found, RecordedLink):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if isinstance(found, int):
            raise OSError(found, os.strerror(found))
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, bytes):
            return found
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, those not recorded left out."""
        found = self._find(path)
        if isinstance(found, int):
            raise OSError(found, os.strerror(found))
        if isinstance(found, str | bytes):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return sorted(self._children.get(path, set()) | set(found or ()))

    def _add(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            siblings = self._children.setdefault(parent or "/", set())
            if name in siblings:
                return
            siblings.add(name)
            path = parent or "/"

    def _find(self, path: str) -> Record | None:
        if path not in self._records and path not in self._children:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._records.get(path)
