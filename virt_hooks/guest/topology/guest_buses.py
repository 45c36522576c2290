# SPDX-License-Identifier: Apache-2.0
"""Bus numbers that a guest will see, predicted from its XML.

Measured with SeaBIOS 1.16 and OVMF 2022.11: firmware numbers the bridges of
bus 0 depth first by slot and function, then those of each expander from its
``busNr``. Ranges that overlap start without an error, and devices are missing
in the guest (its kernel logs "can not insert"). libvirt chooses 254, 252, …
for a ``busNr`` that is left out, whatever is below the expander.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from lxml import etree

from virt_hooks.guest.topology import picture


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Bridge:
    """A controller that has an address: where it is, and its index."""

    slot: int
    function: int
    index: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Bridges of a guest by the bus that they are on.

    ``starts`` are the first numbers of bus 0 and of each expander, by index.
    """

    starts: Mapping[int, int]
    below: Mapping[int, list[_Bridge]]

    def walk(self, index: int) -> Iterator[int]:
        """Yield a bus and all below it, in the order of their numbers."""
        yield index
        for bridge in sorted(self.below.get(index, ())):
            yield from self.walk(bridge.index)

    def list_roots(self) -> list[int]:
        """Return bus 0 and the expanders, in the order of their numbers."""
        return sorted(self.starts, key=lambda index: self.starts[index])


def predict(text: str) -> Mapping[int, int]:
    """Return the guest's number of each bus, by the index of its controller.

    :param text: XML of a domain as libvirt has defined it, so that each
        controller has an address.
    :raises PictureError: the guest would lose devices: two ranges of buses
        overlap or end behind the last bus, an expander has no ``busNr``, or
        a controller is below none.
    """
    tree = _parse_tree(text)
    buses: dict[int, int] = {}
    last = -1
    for root in tree.list_roots():
        start = tree.starts[root]
        if start <= last:
            raise picture.PictureError(
                f"busNr {start} of PCI controller {root} is in use: the"
                f" buses before it end at {last}"
            )
        buses.update(zip(tree.walk(root), itertools.count(start)))
        last = max(buses.values())
    if last > picture.LAST_BUS:
        raise picture.PictureError(
            f"its last bus would be {last}, and {picture.LAST_BUS} is the"
            " last number"
        )
    _check_complete(text, buses)
    return buses


def check(text: str) -> None:
    """Check that a defined domain has the bus numbers that it was given.

    Then the address of each device in libvirt's XML is the guest's, too.

    :raises PictureError: as of ``predict``, or a bus has another number.
    """
    wrong = {i: bus for i, bus in predict(text).items() if i != bus}
    if wrong:
        index, bus = min(wrong.items())
        raise picture.PictureError(
            f"PCI controller {index} gets bus {bus} in the guest, so the"
            " addresses of its devices are wrong"
        )


def renumber(text: str) -> str:
    """Return a defined domain with the bus numbers that its guest will see.

    The tree stays as it is. It is for domains to which libvirt has added
    controllers.

    :raises PictureError: there are too many buses, or a controller is below
        none.
    """
    tree = _parse_tree(text)
    order = itertools.chain.from_iterable(map(tree.walk, tree.list_roots()))
    buses = {index: number for number, index in enumerate(order)}
    _check_complete(text, buses)
    if len(buses) > picture.LAST_BUS + 1:
        raise picture.PictureError(f"it would need {len(buses)} buses")
    root = etree.fromstring(text)
    for controller in root.iterfind("./devices/controller[@type='pci']"):
        number = str(buses[int(controller.get("index"))])
        controller.set("index", number)
        if controller.get("model") == picture.Model.EXPANDER.value:
            controller.find("target").set("busNr", number)
    for address in root.iterfind("./devices/*/address[@type='pci']"):
        bus = int(address.get("bus"), 0)
        address.set("bus", f"0x{buses[bus]:02x}")
    return str(etree.tostring(root, encoding="unicode"))


def has_expander(text: str) -> bool:
    """Return whether a domain has an expander."""
    return any(
        controller.get("model") == picture.Model.EXPANDER.value
        for controller in _list_controllers(text)
    )


def _parse_tree(text: str) -> _Tree:
    starts: dict[int, int] = {0: 0}
    below: dict[int, list[_Bridge]] = {}
    for controller in _list_controllers(text):
        index = int(controller.get("index") or "0")
        if controller.get("model") == picture.Model.EXPANDER.value:
            starts[index] = _bus_number(controller, index)
        elif index:
            bus, bridge = _parse_bridge(controller, index)
            below.setdefault(bus, []).append(bridge)
    return _Tree(starts=starts, below=below)


def _check_complete(text: str, buses: Mapping[int, int]) -> None:
    if lost := sorted(_list_indexes(text) - buses.keys()):
        raise picture.PictureError(
            f"PCI controllers {', '.join(map(str, lost))} are below none"
        )


def _list_indexes(text: str) -> set[int]:
    return {
        int(index)
        for controller in _list_controllers(text)
        if (index := controller.get("index")) is not None
    }


def _list_controllers(text: str) -> Iterator[ElementTree.Element]:
    root = ElementTree.fromstring(text)  # noqa: S314 - Nova's or libvirtd's
    return root.iterfind("./devices/controller[@type='pci']")


def _bus_number(controller: ElementTree.Element, index: int) -> int:
    target = controller.find("target")
    number = target.get("busNr") if target is not None else None
    if number is None:
        raise picture.PictureError(f"expander {index} has no busNr")
    return int(number)


def _parse_bridge(
    controller: ElementTree.Element, index: int
) -> tuple[int, _Bridge]:
    """Return the bus that a controller is on, and its place there."""
    address = controller.find("address[@type='pci']")
    if address is None:
        raise picture.PictureError(
            f"PCI controller {index} has no address yet"
        )
    bus, slot, function = (
        int(address.get(name) or "0", 0)
        for name in ("bus", "slot", "function")
    )
    return bus, _Bridge(slot, function, index)
