# SPDX-License-Identifier: Apache-2.0
"""Mediated devices as libvirt's node devices."""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any
from xml.etree import ElementTree

from nova_accel.model import pci

LOG = logging.getLogger(__name__)

# libvirt waits up to a minute for udev to report a new mdev
# (node_device_driver.c, LINUX_NEW_DEVICE_WAIT_TIME); mdevctl itself takes
# a tenth of a second.
_TIMEOUT_S = 10.0
# An address on s390's channel subsystem: 0.0.0052.
_CHANNEL = re.compile(r"[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]{4}")
# libvirt's name of the matrix device that vfio_ap makes mdevs on.
_NAMES = {"matrix": "ap_matrix"}


class NodeDevices:
    """Mediated devices created and removed through libvirt's node devices.

    Every method returns False if libvirt can't: without mdevctl, with a
    parent that libvirt does not know, on any error of libvirt. After the
    first call that times out, no further call is made.
    """

    def __init__(
        self, connect: Callable[[], Any], timeout: float = _TIMEOUT_S
    ) -> None:
        """Use the connection that ``connect`` returns.

        :param timeout: how long one call may take, in seconds.
        """
        self._connect = connect
        self._timeout = timeout
        self._is_stuck = False

    def create(self, parent: str, type_id: str, uuid: str) -> bool:
        """Create a transient mdev; return whether libvirt did.

        :param parent: the name of its directory in sysfs.
        """

        def create() -> None:
            host = self._connect()
            parents = frozenset(host.listDevices("mdev_types", 0))
            name = parent_name(parent, parents)
            host.nodeDeviceCreateXML(to_xml(name, type_id, uuid), 0)

        return self._is_done(f"create mdev {uuid}", create)

    def remove(self, uuid: str) -> bool:
        """Remove an mdev; return whether libvirt did."""

        def remove() -> None:
            host = self._connect()
            name = mdev_name(uuid, host.listDevices("mdev", 0))
            if name is None:
                raise LookupError("it does not know the mdev")
            host.nodeDeviceLookupByName(name).destroy()

        return self._is_done(f"remove mdev {uuid}", remove)

    def _is_done(self, name: str, change: Callable[[], None]) -> bool:
        """Run a change in a thread; return whether it succeeded in time."""
        if self._is_stuck:
            return False
        outcome: list[str] = []

        def run() -> None:
            try:
                change()
            except Exception as error:  # the caller writes to sysfs then
                outcome.append(str(error) or repr(error))
            else:
                outcome.append("")

        worker = threading.Thread(target=run, name="nodedev", daemon=True)
        worker.start()
        worker.join(self._timeout)
        if not outcome:
            self._is_stuck = True
            outcome.append(f"no answer in {self._timeout:g} s")
        if outcome[0]:
            LOG.info(
                "libvirt can't %s, writing to sysfs instead: %s",
                name,
                outcome[0],
            )
        return not outcome[0]


def parent_names(parent: str) -> tuple[str, ...]:
    """Return the names that an mdev parent may have as a node device.

    The likeliest first: ``pci_0000_41_00_4`` for a PCI function,
    ``css_0_0_0052`` for a subchannel, ``ap_matrix`` for the matrix. For
    others libvirt prefixes the name with the subsystem (node_device_udev.c,
    udevGenerateDeviceName); of the only such parent that it supports,
    ``mtty``, both are the same.

    :param parent: the name of the directory in sysfs.
    """
    if parent in _NAMES:
        return (_NAMES[parent],)
    plain = _name(parent)
    if pci.is_address(parent):
        return (f"pci_{plain}",)
    if _CHANNEL.fullmatch(parent):
        return (f"css_{plain}",)
    return (f"{plain}_{plain}", plain)


def parent_name(parent: str, names: Collection[str]) -> str:
    """Return the name of an mdev parent among node devices' names.

    :raises LookupError: it is not among them.
    """
    for name in parent_names(parent):
        if name in names:
            return name
    raise LookupError(f"libvirt does not know {parent} as a parent")


def mdev_name(uuid: str, names: Iterable[str]) -> str | None:
    """Return the name of an mdev among node devices' names, or None.

    It is ``mdev_<uuid>``, since libvirt 7.3 with the parent appended.
    """
    prefix = f"mdev_{_name(uuid)}"
    return next(
        (n for n in names if n == prefix or n.startswith(f"{prefix}_")), None
    )


def to_xml(parent: str, type_id: str, uuid: str) -> str:
    """Return the ``<device>`` element to create an mdev with.

    :param parent: the node device's name, one of parent_names().
    :param type_id: the kernel's name of the type: ``nvidia-222``.
    """
    root = ElementTree.Element("device")
    # The schema requires a name; libvirt replaces it.
    ElementTree.SubElement(root, "name").text = f"mdev_{_name(uuid)}"
    ElementTree.SubElement(root, "parent").text = parent
    capability = ElementTree.SubElement(root, "capability", type="mdev")
    ElementTree.SubElement(capability, "type", id=type_id)
    ElementTree.SubElement(capability, "uuid").text = uuid
    return ElementTree.tostring(root, encoding="unicode")


def _name(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", text)
