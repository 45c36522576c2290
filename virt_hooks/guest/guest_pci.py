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
_RESERVED_SLOTS = frozenset({0, 1, 2})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What a guest's XML says of itself.

    ``machine`` is QEMU's machine type, empty where QEMU chooses. ``buses``
    are the PCI buses that are taken once libvirt has numbered the
    controllers, ``slots`` the slots of bus 0 that are spoken for.
    """

    machine: str = ""
    has_graphics: bool = False
    has_ramfb: bool = False
    has_ap: bool = False
    buses: frozenset[int] = frozenset({0})
    slots: frozenset[int] = frozenset()

    @property
    def is_express(self) -> bool:
        """Return whether functions stand behind PCIe root ports."""
        return "q35" in self.machine or self.machine.startswith("virt")

    @property
    def is_conventional(self) -> bool:
        """Return whether bus 0 is an i440FX's, for cards of any kind."""
        return not self.is_express and (
            self.machine == "pc" or self.machine.startswith("pc-")
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestPciAddress:
    """Where the guest sees a function; ``is_first`` means it opens a slot.

    libvirt wants multifunction said of function 0.
    """

    bus: int
    slot: int
    function: int
    is_first: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestPciPlan:
    """Places by function, and the root ports to be added for them.

    ``ports`` are the indexes of the controllers, which are their buses.
    A function without a place is put where libvirt likes.
    """

    ports: tuple[int, ...] = ()
    places: Mapping[pci.PciAddress, GuestPciAddress] = dataclasses.field(
        default_factory=dict
    )


def parse_guest(text: str) -> Guest:
    """Return what a guest's XML says, defined already or not yet."""
    root = ElementTree.fromstring(text)  # noqa: S314 - this service's words
    kind = root.find("./os/type")
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
    )


def plan_layout(
    guest: Guest, groups: Iterable[Sequence[pci.PciAddress]]
) -> GuestPciPlan:
    """Return where the functions of some devices stand in a guest.

    Functions that share a slot of the host share one of the guest, under
    the numbers they have on the host: a driver finds the companions of its
    card by them. A slot without function 0 can't be seen by a guest, so
    such functions go separate ways, and so does a lone one.
    """
    ports: list[int] = []
    places: dict[pci.PciAddress, GuestPciAddress] = {}
    free = _free(guest)
    for functions in _slots(groups):
        found = next(free, None)
        if found is None:
            break
        bus, slot = found
        if bus:
            ports.append(bus)
        for address in functions:
            places[address] = GuestPciAddress(
                bus=bus,
                slot=slot,
                function=address.function,
                is_first=address.function == 0,
            )
    return GuestPciPlan(ports=tuple(ports), places=places)


def _slots(
    groups: Iterable[Sequence[pci.PciAddress]],
) -> Iterator[tuple[pci.PciAddress, ...]]:
    """Yield the functions that can share a slot."""
    for group in groups:
        for _, functions in itertools.groupby(
            sorted(group), key=lambda a: (a.domain, a.bus, a.slot)
        ):
            found = tuple(functions)
            if len(found) > 1 and found[0].function == 0:
                yield found


def _free(guest: Guest) -> Iterator[tuple[int, int]]:
    """Yield bus and slot of places that nothing stands in."""
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

    libvirt gives each controller without one the lowest that is free.
    """
    controllers = root.findall("./devices/controller[@type='pci']")
    said = [c.get("index") for c in controllers]
    found = {int(index) for index in said if index is not None}
    if not any(
        c.get("model") in ("pci-root", "pcie-root") for c in controllers
    ):
        found.add(0)  # the root is there whether it is written down or not
    for _ in range(said.count(None)):
        found.add(next(n for n in itertools.count() if n not in found))
    return found


def _number(address: ElementTree.Element, name: str) -> int:
    return int(address.get(name) or "0", 0)
