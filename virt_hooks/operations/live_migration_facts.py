# SPDX-License-Identifier: Apache-2.0
"""Live migration abilities of a host: versions and drivers."""

import os

from nova_accel import errors
from nova_accel.claims import migration
from nova_accel.host.sysfs import fs, host_reader, modules

# libvirt's encoding of versions: 8006000 is 8.6.0 (virGetVersion).
_MAJOR, _MINOR = 1_000_000, 1_000


class HostAbilities:
    """Versions and drivers of one host; each call reads them again."""

    def __init__(self, root: str = "/") -> None:
        """Read the kernel's files below ``root``."""
        self._root = root

    def read_host(
        self, libvirt: int, qemu: int, has_post_copy: bool
    ) -> migration.MigrationHost:
        """Return the host; a field is empty if it is unknown.

        :param libvirt: its version in libvirt's encoding, like ``qemu``.
        """
        return migration.MigrationHost(
            libvirt=_version(libvirt),
            qemu=_version(qemu),
            kernel=os.uname().release,
            drivers=modules.read_versions(
                fs.Files(fs.DiskSource(self._root)), migration.DRIVERS
            ),
            has_post_copy=has_post_copy,
        )

    def read_driver(self, address: str) -> str:
        """Return the driver of a PCI function, empty for none or unknown."""
        reader = host_reader.HostReader(source=fs.DiskSource(self._root))
        try:
            function = reader.function(address)
        except errors.UnreadableError:
            return ""
        return (function.driver or "") if function else ""


def _version(number: int) -> migration.Version:
    if number <= 0:
        return ()
    return (number // _MAJOR, number // _MINOR % _MINOR, number % _MINOR)
