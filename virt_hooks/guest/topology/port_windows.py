# SPDX-License-Identifier: Apache-2.0
"""Windows that a guest's XML reserves on root ports.

libvirt has no element for them, and ``qemu:override`` since 8.2. The alias of
a PCI controller is its index. libvirt writes the override wherever it writes
the domain, also for a live migration, whose destination must have the same:
QEMU compares the configuration space of each port.
"""

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from lxml import etree

from virt_hooks.guest.topology import bars

# libvirt's formatdomain, "QEMU namespace".
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_Q = f"{{{_NAMESPACE}}}"
_OVERRIDE = f"{_Q}override"
_MEMORY, _PREFETCHABLE = "mem-reserve", "pref64-reserve"
_ALIAS = "pci."


def reserve(text: str, ports: Iterable[int], windows: bars.Windows) -> str:
    """Return a domain with windows reserved on some of its root ports.

    :param ports: indexes of their controllers.
    """
    sizes = {
        name: size
        for name, size in (
            (_MEMORY, windows.memory),
            (_PREFETCHABLE, windows.prefetchable),
        )
        if size
    }
    if not sizes:
        return text
    domain = etree.fromstring(text)
    # The namespace of a root element is fixed when it is made.
    root = etree.Element(domain.tag, domain.attrib, {"qemu": _NAMESPACE})
    root.extend(list(domain))
    override = root.find(_OVERRIDE)
    if override is None:
        override = etree.SubElement(root, _OVERRIDE)
    for index in ports:
        device = etree.SubElement(
            override, f"{_Q}device", alias=f"{_ALIAS}{index}"
        )
        frontend = etree.SubElement(device, f"{_Q}frontend")
        for name, size in sizes.items():
            etree.SubElement(
                frontend,
                f"{_Q}property",
                name=name,
                type="unsigned",
                value=str(size),
            )
    return str(etree.tostring(root, encoding="unicode"))


def parse(text: str) -> Mapping[int, bars.Windows]:
    """Return the windows that a domain reserves, by index of the port."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's
    reserved: dict[int, bars.Windows] = {}
    for device in root.iterfind(f"./{_OVERRIDE}/{_Q}device"):
        alias = device.get("alias") or ""
        sizes = {
            element.get("name"): int(element.get("value") or "0", 0)
            for element in device.iterfind(f"./{_Q}frontend/{_Q}property")
            if element.get("name") in (_MEMORY, _PREFETCHABLE)
        }
        index = alias.removeprefix(_ALIAS)
        if sizes and index.isdecimal():
            reserved[int(index)] = bars.Windows(
                memory=sizes.get(_MEMORY, 0),
                prefetchable=sizes.get(_PREFETCHABLE, 0),
            )
    return reserved
