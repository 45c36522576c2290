# SPDX-License-Identifier: Apache-2.0
"""Files of another state directory than the default one."""

import errno
import os

from nova_accel.host import host_paths
from nova_accel.host.sysfs import fs

_DEFAULT = host_paths.STATE_DIR


class StateDirSource:
    """Files of a state directory of this machine, by the default paths.

    The default paths are among those that may be read; no other file exists.

    :param directory: ``[nova_accel] state_dir``.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._source = fs.DiskSource()

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        if _DEFAULT.startswith(f"{path}/"):
            return None
        return self._source.link(self._find(path))

    def content(self, path: str) -> bytes:
        return self._source.content(self._find(path))

    def names(self, path: str) -> list[str]:
        return self._source.names(self._find(path))

    def mode(self, path: str) -> int:
        return self._source.mode(self._find(path))

    def _find(self, path: str) -> str:
        """Return the path of a file; that of no file outside the directory."""
        if f"{path}/".startswith(f"{_DEFAULT}/"):
            return self._directory + path.removeprefix(_DEFAULT)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
