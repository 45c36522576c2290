# SPDX-License-Identifier: Apache-2.0
"""PCI slots and root ports of a guest."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree import ElementTree

from nova_accel.model import pci

# libvirt's docs/pci-addresses.rst: a root port has one slot, numbered 0;
# on bus 0 of an i440FX, 0 is the host bridge, 1 the PIIX3 and 2 the
# primary video card.
_LAST_SLOT = 0x1F
# Types of launchSecurity (libvirt's formatdomain) of x86. The memory of the
# second group can't be mapped by the kernel's older interface of VFIO
# (virt/kvm/guest_memfd.c: it is not mapped in QEMU).
_ENCRYPTED = frozenset({"sev", "sev-snp", "tdx"})
_NEEDS_IOMMUFD = frozenset({"sev-snp", "tdx"})
_RESERVED_SLOTS = frozenset({0, 1, 2})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """PCI buses, slots, special devices and memory in the XML of a guest.

    ``machine`` is QEMU's machine type, empty for QEMU's default. ``buses``
    are the PCI buses in use once libvirt has numbered the controllers,
    ``slots`` the slots of bus 0 in use. ``encryption`` is the type of its
    launchSecurity, empty without one. ``cells`` is the number of its NUMA
    nodes, 0 without NUMA.
    """

    machine: str = ""
    has_graphics: bool = False
    has_ramfb: bool = False
    has_ap: bool = False
    buses: frozenset[int] = frozenset({0})
    slots: frozenset[int] = frozenset()
    encryption: str = ""
    cells: int = 0

    @property
    def has_private_memory(self) -> bool:
        """Return whether the memory of the guest is encrypted."""
        return self.encryption in _ENCRYPTED

    @property
    def needs_iommufd(self) -> bool:
        """Return whether devices reach its memory only by IOMMUFD."""
        return self.encryption in _NEEDS_IOMMUFD

    @property
    def is_express(self) -> bool:
        """Return whether functions are behind PCIe root ports."""
        return "q35" in self.machine or self.machine.startswith("virt")

    @property
    def is_conventional(self) -> bool:
        """Return whether bus 0 is an i440FX's, with slots for any device."""
        return not self.is_express and (
            self.machine == "pc" or self.machine.startswith("pc-")
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestPciAddress:
    """PCI address of a function in the guest.

    ``is_first`` is true for function 0 of a slot, which needs libvirt's
    ``multifunction`` attribute.
    """

    bus: int
    slot: int
    function: int
    is_first: bool


#: Guest addresses by handle: a function's address, or the uuid of an mdev.
Places = Mapping[str, GuestPciAddress]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestPciPlan:
    """Guest addresses by handle, and the root ports to add for them.

    ``ports`` are the indexes of the controllers, which are their buses.
    libvirt chooses the address of any other function.
    """

    ports: tuple[int, ...] = ()
    places: Places = dataclasses.field(default_factory=dict)


def parse_guest(text: str) -> Guest:
    """Parse a guest's XML, defined in libvirt or not yet."""
    root = ElementTree.fromstring(text)  # noqa: S314 - Nova's or libvirtd's
    kind = root.find("./os/type")
    security = root.find("./launchSecurity")
    addresses = [
        address
        for address in root.iterfind("./devices/*/address[@type='pci']")
        if _number(address, "domain") == 0
    ]
    return Guest(
        machine=(kind.get("machine") or "") if kind is not None else "",
        has_graphics=root.find("./devices/graphics") is not None,
        has_ramfb=any(
            root.find(f"./devices/{path}") is not None
            for path in (
                "hostdev[@ramfb='on']",
                "video/model[@type='ramfb']",
                "video/model[@ramfb='on']",
            )
        ),
        has_ap=root.find("./devices/hostdev[@model='vfio-ap']") is not None,
        buses=frozenset(_indexes(root))
        | {_number(address, "bus") for address in addresses},
        slots=frozenset(
            _number(address, "slot")
            for address in addresses
            if _number(address, "bus") == 0
        ),
        encryption="" if security is None else security.get("type") or "",
        cells=len(root.findall("./cpu/numa/cell")),
    )


def plan_layout(
    guest: Guest, groups: Iterable[Sequence[pci.PciAddress]]
) -> GuestPciPlan:
    """Return the guest addresses of the functions of some devices.

    Functions that share a slot of the host share one of the guest, with
    the same function numbers: drivers find the other functions of a card
    by them. A guest does not scan a slot without function 0, so libvirt
    chooses the addresses of such functions, and of single functions.
    """
    ports: list[int] = []
    places: dict[str, GuestPciAddress] = {}
    free_slots = _free_slots(guest)
    for functions in list_shared_slots(groups):
        free_slot = next(free_slots, None)
        if free_slot is None:
            break
        bus, slot = free_slot
        if bus:
            ports.append(bus)
        for address in functions:
            places[str(address)] = GuestPciAddress(
                bus=bus,
                slot=slot,
                function=address.function,
                is_first=address.function == 0,
            )
    return GuestPciPlan(ports=tuple(ports), places=places)


def list_shared_slots(
    groups: Iterable[Sequence[pci.PciAddress]],
) -> Iterator[tuple[pci.PciAddress, ...]]:
    """Yield the functions of each slot of the host that has several."""
    for group in groups:
        for _, functions in itertools.groupby(
            sorted(group), key=lambda a: (a.domain, a.bus, a.slot)
        ):
            addresses = tuple(functions)
            if len(addresses) > 1 and addresses[0].function == 0:
                yield addresses


def _free_slots(guest: Guest) -> Iterator[tuple[int, int]]:
    """Yield bus and number of each free slot of a guest."""
    if guest.is_express:
        for index in itertools.count(1):
            if index not in guest.buses:
                yield index, 0
    elif guest.is_conventional:
        taken = guest.slots | _RESERVED_SLOTS
        for slot in range(_LAST_SLOT, 0, -1):
            if slot not in taken:
                yield 0, slot


def _indexes(root: ElementTree.Element) -> set[int]:
    """Return the indexes that PCI controllers have, or will have.

    libvirt assigns the lowest free index to a controller without one.
    """
    controllers = root.findall("./devices/controller[@type='pci']")
    texts = [controller.get("index") for controller in controllers]
    indexes = {int(text) for text in texts if text is not None}
    if not any(
        c.get("model") in ("pci-root", "pcie-root") for c in controllers
    ):
        indexes.add(0)  # the root exists also without an element
    for _ in range(texts.count(None)):
        indexes.add(next(n for n in itertools.count() if n not in indexes))
    return indexes


def parse_cells(text: str) -> Mapping[int, int]:
    """Return the NUMA nodes of a guest by those of the host.

    A guest node whose memory may be on several nodes of the host is left
    out.

    :param text: XML of the guest's domain (libvirt's formatdomain,
        ``numatune``).
    """
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's
    return {
        int(nodeset): int(node.get("cellid") or "0")
        for node in root.iterfind("./numatune/memnode")
        if (nodeset := node.get("nodeset") or "").isdecimal()
    }


def parse_address(element: ElementTree.Element) -> pci.PciAddress:
    """Return the PCI address in an ``<address>`` of libvirt."""
    return pci.PciAddress(
        domain=_number(element, "domain"),
        bus=_number(element, "bus"),
        slot=_number(element, "slot"),
        function=_number(element, "function"),
    )


def _number(address: ElementTree.Element, name: str) -> int:
    return int(address.get(name) or "0", 0)
