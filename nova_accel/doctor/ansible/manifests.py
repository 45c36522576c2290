# SPDX-License-Identifier: Apache-2.0
"""Manifests of the roles: what they have changed on this host.

``contrib/ansible/plugins/module_utils/manifest_file.py`` writes them.
"""

import dataclasses
import errno
import os
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.host.state import directories
from nova_accel.model import json_codec

DIRECTORY = "/var/lib/nova-accel/drivers"
_BOOT = "/proc/sys/kernel/random/boot_id"
_SUFFIX = ".json"
# The list of all packages of a host is in that of an interrupted run.
_MAX_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """File of a role's own; ``sha256`` is that of its text."""

    sha256: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedService:
    """State of a service of systemd before a role changed it."""

    exists: bool
    enabled: bool
    active: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverManifest:
    """Changes of one role.

    ``files`` are its own files, ``edited`` those of other packages. ``boot``
    is the boot of the last change that takes effect at a start.
    ``packages_before`` and ``pending`` are of an interrupted run.
    """

    role: str
    boot: str = ""
    files: Mapping[str, RecordedFile] = dataclasses.field(default_factory=dict)
    edited: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    services: Mapping[str, RecordedService] = dataclasses.field(
        default_factory=dict
    )
    packages_before: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def is_interrupted(self) -> bool:
        """Return whether the last run did not end."""
        return bool(self.packages_before or self.pending)

    def is_reboot_pending(self, boot: str) -> bool:
        """Return whether a change waits for the next start.

        :param boot: id of the running boot.
        """
        return bool(boot) and self.boot == boot


_FORMAT = json_codec.Format(kind=DriverManifest)


def read(directory: str = "") -> Mapping[str, DriverManifest]:
    """Return the manifests of this host by role.

    :param directory: empty for ``DIRECTORY``.
    :raises UnreadableError: the directory or a manifest can't be read.
    :raises MalformedError: a manifest is damaged, or of another release.
    """
    return {m.role: m for m in _read_all(directory or DIRECTORY)}


def _read_all(directory: str) -> Iterator[DriverManifest]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(directory, error) from error
    for name in names:
        if name.endswith(_SUFFIX):
            yield _read(os.path.join(directory, name))


def _read(path: str) -> DriverManifest:
    try:
        return _FORMAT.decode(directories.read_path(path, _MAX_BYTES))
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise errors.MalformedError(
            "manifest",
            path,
            f"a file that a role has written ({error})",
        ) from error


def _unreadable(path: str, error: OSError) -> errors.UnreadableError:
    return errors.UnreadableError(path, error.errno or errno.EIO)


def read_boot() -> str:
    """Return the id of the running boot, empty if it is unknown."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
