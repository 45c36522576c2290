# SPDX-License-Identifier: Apache-2.0
"""libvirt's only door."""

import dataclasses
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import libvirt

from nova_accel import pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostdevUse:
    """What the domains of a host, running or not, have in their XML.

    ``mdevs`` are uuids, ``functions`` PCI addresses.
    """

    mdevs: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()

    def holds(self, handle: str) -> bool:
        """Return whether a domain holds the partition of that handle."""
        return handle in self.mdevs or handle in self.functions

    def without(self, handles: Iterable[str]) -> "HostdevUse":
        """Return the same, but for partitions that were given back."""
        gone = frozenset(handles)
        return HostdevUse(
            mdevs=self.mdevs - gone, functions=self.functions - gone
        )


def read_hostdevs(connection: Any) -> HostdevUse:
    """Return the host devices in all domains of a libvirt connection.

    :param connection: an open ``libvirt.virConnect``, or Nova's proxy
        of one.
    :raises libvirt.libvirtError: libvirt can't list its domains.
    """
    mdevs: set[str] = set()
    functions: set[str] = set()
    for domain in connection.listAllDomains(0):
        try:
            text = domain.XMLDesc(0)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                continue  # it ended since it was listed
            raise
        use = parse_hostdevs(text)
        mdevs |= use.mdevs
        functions |= use.functions
    return HostdevUse(mdevs=frozenset(mdevs), functions=frozenset(functions))


def parse_hostdevs(text: str) -> HostdevUse:
    """Return the host devices in one domain's XML, as libvirt wrote it."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's own words
    addresses = [
        (hostdev.get("type"), address.attrib)
        for hostdev in root.iterfind("./devices/hostdev")
        for address in hostdev.iterfind("./source/address")
    ]
    # A function that is a guest's network card has an element of its own.
    addresses += [
        (address.get("type"), address.attrib)
        for address in root.iterfind(
            "./devices/interface[@type='hostdev']/source/address"
        )
    ]
    return HostdevUse(
        mdevs=frozenset(
            a["uuid"].lower() for kind, a in addresses if kind == "mdev"
        ),
        functions=frozenset(
            _address(a) for kind, a in addresses if kind == "pci"
        ),
    )


def _address(attributes: dict[str, str]) -> str:
    return str(
        pci.PciAddress(
            domain=int(attributes.get("domain", "0"), 0),
            bus=int(attributes["bus"], 0),
            slot=int(attributes["slot"], 0),
            function=int(attributes["function"], 0),
        )
    )
