# SPDX-License-Identifier: Apache-2.0
"""Empty root ports below the expanders of a guest, for attached devices."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import clusters, host_tree, picture

_ROOT_PORT = picture.Model.ROOT_PORT.value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestPorts:
    """Expanders of a guest.

    ``free_ports`` has the empty root ports of each expander, ``cells`` the
    NUMA node of each, ``expanders`` the expander of each device by its
    handle.
    """

    free_ports: Mapping[int, tuple[int, ...]]
    cells: Mapping[int, int]
    expanders: Mapping[str, int]


def parse(text: str) -> GuestPorts:
    """Return the expanders of a domain that libvirt has defined."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's
    above: dict[int, int] = {}
    ports: dict[int, list[int]] = {}
    cells: dict[int, int] = {}
    for controller in root.iterfind("./devices/controller[@type='pci']"):
        index = int(controller.get("index") or "0")
        if controller.get("model") == picture.Model.EXPANDER.value:
            ports[index] = []
            node = controller.findtext("./target/node")
            if node is not None:
                cells[index] = int(node)
        elif (bus := _find_bus(controller)) is not None:
            above[index] = bus
            if controller.get("model") == _ROOT_PORT and bus in ports:
                ports[bus].append(index)
    used = {_find_bus(device) for device in root.iterfind("./devices/*")}
    return GuestPorts(
        free_ports={
            expander: tuple(sorted(set(indexes) - used))
            for expander, indexes in ports.items()
        },
        cells=cells,
        expanders=dict(_list_expanders(root, above, ports)),
    )


def choose(
    ports: GuestPorts,
    device: host_tree.HostDevice,
    others: Iterable[host_tree.HostDevice],
    cells: Mapping[int, int],
) -> guest_pci.Places:
    """Return the places of an attached device, empty without a free port.

    It is below the expander of a device with the same root complex, else of
    one with the same NUMA node, else of that node of the guest.

    :param others: the devices that the guest has.
    :param cells: NUMA nodes of the guest by those of the host.
    """
    siblings = [d for d in others if d.handle in ports.expanders]
    same = [d for d in siblings if d.root_complex == device.root_complex]
    if device.numa_node is not None:
        same += [d for d in siblings if d.numa_node == device.numa_node]
    candidates = [ports.expanders[d.handle] for d in same]
    cell = (
        cells.get(device.numa_node) if device.numa_node is not None else None
    )
    candidates += [e for e, node in ports.cells.items() if node == cell]
    free = (port for e in candidates for port in ports.free_ports[e])
    port = next(free, None)
    return {} if port is None else picture.place(port, device)


def _list_expanders(
    root: ElementTree.Element,
    above: Mapping[int, int],
    ports: Mapping[int, object],
) -> Iterator[tuple[str, int]]:
    """Yield handle and expander of each device below one."""
    for hostdev in root.iterfind("./devices/hostdev"):
        bus = _find_bus(hostdev)
        while bus and bus not in ports:
            bus = above.get(bus)
        if bus:
            yield clusters.parse_handle(hostdev), bus


def _find_bus(device: ElementTree.Element) -> int | None:
    """Return the bus that a device is on, None for none."""
    address = device.find("address[@type='pci']")
    return None if address is None else int(address.get("bus") or "0", 0)
