# SPDX-License-Identifier: Apache-2.0
"""Persistent definitions of mdevs, which mdevctl starts with the host.

Nova's own driver defines its mdevs with autostart since Nova 29. An adopted
mdev is made by this library, once its card is in its mode: a definition stays
for the undo, without autostart.
"""

from typing import Any

from nova_accel.inventory.adoption import records
from virt_hooks import error_guards
from virt_hooks.guest import nodedev


class Definitions:
    """Definitions of one libvirt."""

    def __init__(self, host: Any) -> None:
        """Use Nova's ``nova.virt.libvirt.host.Host``."""
        self._host = host

    def set_autostart(self, plan: records.Plan, *, is_on: bool) -> None:
        """Set whether the mdevs of a plan are started with the host.

        A failure is logged. mdevs without a definition, which earlier
        releases of Nova made, stay as they are.
        """
        with error_guards.log_errors("can't list mdevs in libvirt"):
            connection = self._host.get_connection()
            listed = connection.listDevices("mdev", 0)
            for server in plan.servers:
                for mdev in server.partitions:
                    name = nodedev.mdev_name(mdev.handle, listed)
                    if name is not None:
                        self._set(connection, name, is_on)

    def _set(self, connection: Any, name: str, is_on: bool) -> None:
        with error_guards.log_errors(
            "can't set autostart of %s; use mdevctl modify", name
        ):
            device = connection.nodeDeviceLookupByName(name)
            if device.isPersistent() and device.autostart() != is_on:
                device.setAutostart(is_on)
