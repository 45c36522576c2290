# SPDX-License-Identifier: Apache-2.0
"""Bus numbers that a guest will see, predicted from its XML.

Measured with SeaBIOS 1.16 and OVMF 2022.11: firmware numbers the bridges of
bus 0 depth first by slot and function, then those of each expander from its
``busNr``. Ranges that overlap start without an error, and devices are missing
in the guest (its kernel logs "can not insert"). libvirt chooses 254, 252, …
for a ``busNr`` that is left out, whatever is below the expander.
"""

import itertools
from collections.abc import Iterator, Mapping

from lxml import etree

from virt_hooks.guest.topology import picture


def predict(text: str) -> Mapping[int, int]:
    """Return the guest's number of each bus, by the index of its controller.

    :param text: XML of a domain as libvirt has defined it, so that each
        controller has an address.
    :raises PictureError: the guest would lose devices: two ranges of buses
        overlap or end behind the last bus, an expander has no ``busNr``, or
        a controller is below none.
    """
    buses: dict[int, int] = {}
    last = -1
    for start, below in _list_roots(text):
        if start <= last:
            raise picture.PictureError(
                f"busNr {start} of PCI controller {below[0]} is in use: the"
                f" buses before it end at {last}"
            )
        buses.update(zip(below, itertools.count(start)))
        last = start + len(below) - 1
    if last > picture.LAST_BUS:
        raise picture.PictureError(
            f"its last bus would be {last}, and {picture.LAST_BUS} is the"
            " last number"
        )
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
    order = itertools.chain.from_iterable(b for _, b in _list_roots(text))
    buses = {index: number for number, index in enumerate(order)}
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


def _list_roots(text: str) -> list[tuple[int, list[int]]]:
    """Return bus 0 and each expander in the order of their numbers.

    Each is its number, and the indexes of it and all below it, in the order
    of theirs.
    """
    controllers = picture.parse(text).controllers
    starts: dict[int, int] = {0: 0}
    below: dict[int, list[picture.Controller]] = {}
    for controller in controllers:
        index = controller.index
        if controller.model is picture.Model.EXPANDER:
            if controller.start is None:
                raise picture.PictureError(f"expander {index} has no busNr")
            starts[index] = controller.start
        elif index:
            if controller.slot is None:
                raise picture.PictureError(
                    f"PCI controller {index} has no address yet"
                )
            below.setdefault(controller.bus, []).append(controller)

    def walk(index: int) -> Iterator[int]:
        yield index
        bridges = below.get(index, [])
        for bridge in sorted(bridges, key=lambda c: (c.slot or 0, c.function)):
            yield from walk(bridge.index)

    order = sorted(starts.items(), key=lambda item: item[1])
    roots = [(start, list(walk(index))) for index, start in order]
    lost = {c.index for c in controllers}.difference(*(b for _, b in roots))
    if lost:
        raise picture.PictureError(
            f"PCI controllers {', '.join(map(str, sorted(lost)))} are below"
            " none"
        )
    return roots
