# SPDX-License-Identifier: Apache-2.0
"""PCI controllers of a guest, and the places of its devices.

A picture is drawn for a guest (``mirror``), or is that of a domain that
libvirt has defined (``parse``).

The guest sees the host's tree, restricted to its devices: an expander
(``pcie-expander-bus``) for each root complex, and a switch for each bridge
that two or more of its devices share, and for root ports of NVLink peers.

Firmware numbers the buses depth first, those of bus 0 from 1 and those of an
expander from its ``busNr``, and reports no overlap: devices are missing then.
So indexes are given in the same order without a gap, and ``busNr`` is the
index of the expander: libvirt's bus of each device is the guest's, too. A gap
would be filled by libvirt with root ports of bus 0.
"""

import dataclasses
import enum
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from nova_accel import errors
from nova_accel.model import flavors
from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import host_tree

# Of one PCI domain; QEMU has no other.
LAST_BUS = 0xFF
# Slots of an expander and ports of a switch (libvirt's
# src/conf/domain_addr.c, virDomainPCIAddressBusSetModel()).
MAX_PORTS = 32
#: Empty root ports with room for attached devices, in a guest on one bus.
ONE_BUS_PORTS = 2


class Model(enum.Enum):
    """Models of PCI controllers, as libvirt spells them.

    OTHER has none of a picture's own.
    """

    EXPANDER = "pcie-expander-bus"
    ROOT_PORT = "pcie-root-port"
    UPSTREAM = "pcie-switch-upstream-port"
    DOWNSTREAM = "pcie-switch-downstream-port"
    OTHER = ""


class PictureError(errors.AcceleratorError):
    """The guest can't have a mirror of these devices.

    :param reason: what is missing, with its numbers.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the guest can't mirror the host's PCIe: {reason}")
        self.reason = reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One PCI controller.

    ``index`` is its bus; it is itself in ``slot`` of ``bus``. ``slot`` is
    None before libvirt has chosen one of bus 0, as for an expander. ``cell``
    is the NUMA node of the guest that an expander belongs to, None without
    one. ``start`` is the ``busNr`` that its domain has, None for another.
    """

    index: int
    model: Model
    bus: int = 0
    slot: int | None = None
    function: int = 0
    cell: int | None = None
    start: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """PCI controllers of a guest, and the guest address of each handle.

    ``expanders`` has the index of each root complex of the host (or of each
    NUMA node, see ``mirror``); it is empty for a domain. ``spare_ports`` are
    the indexes of empty root ports below expanders, in their order; without
    an expander the last ones of bus 0, as libvirt gives the first away.
    """

    controllers: tuple[Controller, ...] = ()
    places: Mapping[str, guest_pci.GuestPciAddress] = dataclasses.field(
        default_factory=dict
    )
    expanders: Mapping[str, int] = dataclasses.field(default_factory=dict)
    spare_ports: tuple[int, ...] = ()

    def to_xml(self) -> tuple[str, ...]:
        """Return the XML element of each controller."""
        return tuple(map(_to_xml, self.controllers))

    def list_above(self, bus: int) -> Iterator[int]:
        """Yield a bus and those above it, without bus 0."""
        above = {c.index: c.bus for c in self.controllers}
        while bus:
            yield bus
            bus = above.get(bus, 0)

    def list_root_ports(self) -> tuple[int, ...]:
        ports = (c for c in self.controllers if c.model is Model.ROOT_PORT)
        return tuple(port.index for port in ports)

    def list_expanders(self) -> tuple[Controller, ...]:
        return tuple(c for c in self.controllers if c.model is Model.EXPANDER)


def mirror(
    devices: Iterable[host_tree.HostDevice],
    cells: Mapping[int, int],
    spare_ports: int,
    first_index: int,
    topology: flavors.GuestTopology = flavors.GuestTopology.PCIE,
    peers: host_tree.Peers = host_tree.NO_PEERS,
) -> Picture:
    """Return the mirror of the devices of a guest.

    The same devices in any order have the same picture.

    :param cells: NUMA nodes of the guest, by those of the host.
    :param spare_ports: number of empty root ports below each expander.
    :param first_index: number of root ports on bus 0, plus one.
    :param topology: with NUMA the devices of one NUMA node are side by side
        below one expander.
    :raises PictureError: the guest has too few buses, or a bridge too few
        ports.
    """
    if topology is flavors.GuestTopology.NONE:
        return Picture()
    is_numa = topology is flavors.GuestTopology.NUMA
    group = (
        host_tree.group_by_node
        if is_numa
        else functools.partial(host_tree.build_trees, peers=peers)
    )
    builder = _Builder(first_index)
    for name, tree in group(devices).items():
        nodes = {
            device.numa_node
            for device in tree.list_devices()
            if device.numa_node in cells
        }
        cell = min(
            (cells[node] for node in nodes if node is not None), default=None
        )
        builder.add_root(name, tree, cell, spare_ports)
    return Picture(
        controllers=tuple(builder.controllers),
        places=builder.places,
        expanders=builder.expanders,
        spare_ports=tuple(builder.spare_ports),
    )


def parse(text: str) -> Picture:
    """Return the picture of a domain that libvirt has defined."""
    root = ElementTree.fromstring(text)  # noqa: S314 - Nova's or libvirtd's
    controllers = tuple(
        map(
            _parse_controller,
            root.iterfind("./devices/controller[@type='pci']"),
        )
    )
    places = {
        handle: guest_pci.parse_address(address)
        for hostdev in root.iterfind("./devices/hostdev")
        if (handle := parse_handle(hostdev))
        and (address := hostdev.find("./address[@type='pci']")) is not None
    }
    used = {
        guest_pci.parse_address(address).bus
        for address in root.iterfind("./devices/*/address[@type='pci']")
    }
    starts = {c.index for c in controllers if c.model is Model.EXPANDER}
    ports = sorted(
        c.index
        for c in controllers
        if c.model is Model.ROOT_PORT
        and c.bus in (starts or {0})
        and c.index not in used
    )
    return Picture(
        controllers=controllers,
        places={
            handle: guest_pci.GuestPciAddress(
                bus=at.bus, slot=at.slot, function=at.function, is_first=False
            )
            for handle, at in places.items()
        },
        spare_ports=tuple(ports if starts else ports[-ONE_BUS_PORTS:]),
    )


def parse_handle(hostdev: ElementTree.Element) -> str:
    """Return the uuid or the host's address of a hostdev, empty without."""
    address = hostdev.find("./source/address")
    if address is None:
        return ""
    uuid = address.get("uuid")
    return uuid.lower() if uuid else str(guest_pci.parse_address(address))


def _parse_controller(element: ElementTree.Element) -> Controller:
    model = element.get("model")
    target, address = element.find("target"), element.find("address")
    start = None if target is None else target.get("busNr")
    cell = element.findtext("./target/node")
    at = None if address is None else guest_pci.parse_address(address)
    return Controller(
        index=int(element.get("index") or "0"),
        model=next((m for m in Model if m.value == model), Model.OTHER),
        bus=at.bus if at else 0,
        slot=at.slot if at else None,
        function=at.function if at else 0,
        cell=None if cell is None else int(cell),
        start=None if start is None else int(start),
    )


def place(port: int, device: host_tree.HostDevice) -> guest_pci.Places:
    """Return the places of a device below a port, by handle.

    Drivers find the other functions of a card by their numbers.
    """
    has_members = bool(device.members)
    functions = {
        handle: int(handle[-1]) if has_members else 0
        for handle in device.handles
    }
    return {
        handle: guest_pci.GuestPciAddress(
            bus=port,
            slot=0,
            function=function,
            is_first=has_members and function == 0,
        )
        for handle, function in functions.items()
    }


class _Builder:
    """Gives indexes depth first."""

    def __init__(self, first_index: int) -> None:
        self._indexes = itertools.count(first_index)
        self.controllers: list[Controller] = []
        self.places: dict[str, guest_pci.GuestPciAddress] = {}
        self.expanders: dict[str, int] = {}
        self.spare_ports: list[int] = []

    def add_root(
        self,
        name: str,
        tree: host_tree.Branch,
        cell: int | None,
        spare_ports: int,
    ) -> None:
        """Add the expander of a root complex, with all below it."""
        count = len(tree.branches) + spare_ports
        if count > MAX_PORTS:
            raise PictureError(
                f"{count} root ports below {name}, and an expander has"
                f" {MAX_PORTS}"
            )
        expander = self._add(Model.EXPANDER, 0, None, cell)
        self.expanders[name] = expander
        for slot, branch in enumerate(tree.branches):
            self._fill(self._add(Model.ROOT_PORT, expander, slot), branch)
        for slot in range(len(tree.branches), count):
            self.spare_ports.append(self._add(Model.ROOT_PORT, expander, slot))

    def _fill(self, port: int, branch: host_tree.Branch) -> None:
        """Add a device or a switch below a port."""
        if branch.device is not None:
            self.places.update(place(port, branch.device))
            return
        if len(branch.branches) > MAX_PORTS:
            raise PictureError(
                f"{len(branch.branches)} devices below one bridge, and a"
                f" switch has {MAX_PORTS} ports"
            )
        upstream = self._add(Model.UPSTREAM, port, 0)
        for slot, below in enumerate(branch.branches):
            self._fill(self._add(Model.DOWNSTREAM, upstream, slot), below)

    def _add(
        self,
        model: Model,
        bus: int,
        slot: int | None,
        cell: int | None = None,
    ) -> int:
        index = next(self._indexes)
        if index > LAST_BUS:
            raise PictureError(f"it needs more than {LAST_BUS + 1} buses")
        self.controllers.append(
            Controller(index=index, model=model, bus=bus, slot=slot, cell=cell)
        )
        return index


def _to_xml(controller: Controller) -> str:
    element = ElementTree.Element(
        "controller",
        type="pci",
        index=str(controller.index),
        model=controller.model.value,
    )
    if controller.model is Model.EXPANDER:
        target = ElementTree.SubElement(
            element, "target", busNr=str(controller.index)
        )
        if controller.cell is not None:
            ElementTree.SubElement(target, "node").text = str(controller.cell)
    if controller.slot is not None:
        ElementTree.SubElement(
            element,
            "address",
            type="pci",
            domain="0x0000",
            bus=f"0x{controller.bus:02x}",
            slot=f"0x{controller.slot:02x}",
            function="0x0",
        )
    return ElementTree.tostring(element, encoding="unicode")
