# SPDX-License-Identifier: Apache-2.0
"""Files of a captured host, in memory."""

import errno
import os
from collections.abc import Mapping


class RecordedLink(str):
    """Target of a recorded link."""

    __slots__ = ()


class RecordedDirectory(tuple[str, ...]):
    """Names in a recorded directory."""

    __slots__ = ()


class RecordedMode(str):
    """Permission bits of a recorded path, in octal; nothing was read."""

    __slots__ = ()


# Result of reading a path: a file's text, the errno of the failure, a
# link, a directory, permission bits, or the first bytes of a binary file.
Record = str | int | RecordedLink | RecordedDirectory | bytes


class RecordedFiles:
    """Files that ``fs.Files.records`` returned on another host.

    :param records: results by path. Directories above a path need no
        record.
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = dict(records)
        self._children: dict[str, set[str]] = {"/": set()}
        for path in records:
            self._add(path)

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        record = self._find(path)
        if record in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(record, os.strerror(record))
        return str(record) if isinstance(record, RecordedLink) else None

    def content(self, path: str) -> bytes:
        """Return a file's bytes; a link is not followed (ELOOP)."""
        record = self._find(path)
        if isinstance(record, RecordedLink):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        if isinstance(record, RecordedMode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if isinstance(record, str):
            return record.encode()
        if isinstance(record, bytes):
            return record
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, those not recorded left out."""
        record = self._find(path)
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        if isinstance(record, str | bytes):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return sorted(self._children.get(path, set()) | set(record or ()))

    def mode(self, path: str) -> int:
        """Return a path's permission bits; ENODATA if not recorded."""
        record = self._find(path)
        if isinstance(record, RecordedMode):
            return int(record, 8)
        number = record if isinstance(record, int) else errno.ENODATA
        raise OSError(number, os.strerror(number))

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
