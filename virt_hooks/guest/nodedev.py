# SPDX-License-Identifier: Apache-2.0
"""Names and XML of mediated devices as libvirt's node devices."""

import re
from collections.abc import Collection, Iterable
from xml.etree import ElementTree

from nova_accel.model import pci

# An address on s390's channel subsystem: 0.0.0052.
_CHANNEL = re.compile(r"[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]{4}")
# libvirt's name of the matrix device that vfio_ap makes mdevs on.
_NAMES = {"matrix": "ap_matrix"}


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
