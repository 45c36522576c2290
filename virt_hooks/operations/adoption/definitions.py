# SPDX-License-Identifier: Apache-2.0
"""Persistent definitions of mdevs, which mdevctl starts with the host.

Nova's own driver defines its mdevs with autostart since Nova 29, and starts
all that are defined when nova-compute starts, which ends if a card has no
room. An adopted mdev is made by this library, once its card is in its mode:
its definition stays for the undo, without autostart, and goes with the mdev.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from nova_accel.inventory.adoption import records
from nova_accel.model import pci
from virt_hooks import error_guards
from virt_hooks.guest import nodedev

#: Changes the definition of an mdev; the last is its node device, or None.
_Change = Callable[[Any, records.AdoptedPartition, Any], None]


class Definitions:
    """Definitions of one libvirt. An error is logged."""

    def __init__(self, host: Any) -> None:
        """Use Nova's ``nova.virt.libvirt.host.Host``."""
        self._host = host

    def disable_autostart(self, plan: records.Plan) -> None:
        """Have the mdevs of a plan not started with the host.

        mdevs without a definition, which earlier releases of Nova made, stay
        as they are.
        """
        self._change("set autostart of", _list_mdevs(plan), _disable)

    def restore(self, plan: records.Plan) -> None:
        """Define the mdevs of a plan, and have them started with the host.

        Those that were made since the adoption have no definition yet.
        """
        self._change("define", _list_mdevs(plan), _enable)

    def remove_unused(
        self, plan: records.Plan, handles: Collection[str]
    ) -> None:
        """Remove definitions of mdevs of a plan that do not exist any more.

        :param handles: partitions that servers have.
        """
        unused = [m for m in _list_mdevs(plan) if m.handle not in handles]
        if unused:
            self._change("undefine", unused, _undefine)

    def _change(
        self,
        name: str,
        mdevs: Iterable[records.AdoptedPartition],
        change: _Change,
    ) -> None:
        with error_guards.log_errors("can't list mdevs in libvirt"):
            connection = self._host.get_connection()
            listed = connection.listDevices("mdev", 0)
            for mdev in mdevs:
                with error_guards.log_errors(
                    "can't %s mdev %s; use mdevctl", name, mdev.handle
                ):
                    device = nodedev.mdev_name(mdev.handle, listed)
                    change(
                        connection,
                        mdev,
                        device and connection.nodeDeviceLookupByName(device),
                    )


def _disable(
    _connection: Any, _mdev: records.AdoptedPartition, device: Any
) -> None:
    if device and device.isPersistent() and device.autostart():
        device.setAutostart(False)


def _enable(
    connection: Any, mdev: records.AdoptedPartition, device: Any
) -> None:
    """Define an mdev with autostart.

    :raises LookupError: libvirt does not know its parent.
    """
    if not device or not device.isPersistent():
        parents = frozenset(connection.listDevices("mdev_types", 0))
        parent = nodedev.parent_name(mdev.parent, parents)
        text = nodedev.to_xml(parent, mdev.type_id, mdev.handle)
        device = connection.nodeDeviceDefineXML(text, 0)
    device.setAutostart(True)


def _undefine(
    _connection: Any, _mdev: records.AdoptedPartition, device: Any
) -> None:
    if device and not device.isActive():
        device.undefine(0)


def _list_mdevs(plan: records.Plan) -> list[records.AdoptedPartition]:
    """Return the mdevs of a plan, which may have functions, too."""
    return [
        partition
        for server in plan.servers
        for partition in server.partitions
        if not pci.is_address(partition.handle)
    ]
