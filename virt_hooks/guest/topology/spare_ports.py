# SPDX-License-Identifier: Apache-2.0
"""Empty root ports of a guest, for attached devices."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_accel import errors, model
from nova_accel.geometry import address_space
from virt_hooks.guest import guest_pci, libvirt_guest
from virt_hooks.guest.topology import (
    address_bits,
    device_reader,
    host_tree,
    picture,
    port_windows,
)

LOG = logging.getLogger(__name__)

# Of machine type virt, whose firmware was not measured, as of one BAR.
_NO_ROOM = 1 << 30


class SparePorts:
    """Empty ports of guests, and their windows for devices of this host."""

    def __init__(self, reader: device_reader.DeviceReader, host: Any) -> None:
        """:param host: Nova's ``nova.virt.libvirt.host.Host``."""
        self._reader, self._host = reader, host

    def reserve(self, text: str, devices: Iterable[model.Device]) -> str:
        """Return a domain whose empty ports have room for devices.

        A guest that is resumed has its windows.
        """
        if port_windows.parse(text):
            return text
        drawn = picture.parse(text)
        space = address_bits.read_space(text, self._host)
        demand = self._reader.sum_functions(drawn.places)
        windows = port_windows.choose(
            space,
            demand,
            self._reader.list_windows(devices, space.firmware),
            len(drawn.spare_ports),
        )
        ports: dict[int, port_windows.Windows] = {}
        # On one bus firmware has room for vGPUs.
        if space.firmware.lacks_io and (
            drawn.list_expanders() or demand.total
        ):
            ports = dict.fromkeys(
                drawn.list_root_ports(), port_windows.Windows()
            )
        if ports or windows != port_windows.Windows():
            ports |= dict.fromkeys(drawn.spare_ports, windows)
        return port_windows.reserve(text, ports, space.firmware)

    def count_bits(
        self,
        text: str,
        claims: Sequence[model.Claim],
        devices: Iterable[model.Device],
        drawn: picture.Picture,
    ) -> int:
        """Return the address bits with which empty ports have room, 0 for any.

        At most those of the host. Without a whole card the guest may migrate
        live, to another processor: it gets none for them.
        """
        if not any(c.technology == "passthrough" for c in claims):
            return 0
        ports = len(drawn.spare_ports) or picture.ONE_BUS_PORTS
        space = dataclasses.replace(
            address_space.parse_space(text),
            bits=address_bits.read_host_bits(self._host),
        )
        demand = self._reader.sum_bars(claims)
        windows = self._reader.list_windows(devices, space.firmware)
        size = port_windows.choose(space, demand, windows, ports).prefetchable
        return port_windows.count_bits(space, demand, size, ports)

    def place(self, attached: libvirt_guest.Attached) -> guest_pci.Places:
        """Return a free port for an attached claim, empty for any.

        :raises ClaimError: it has BARs for which the port has no room while
            the guest runs.
        """
        drawn = picture.parse(attached.text)
        has_expander = bool(drawn.list_expanders())
        places = self._choose(drawn, attached) if has_expander else {}
        machine = guest_pci.parse_guest(attached.text)
        if not (attached.is_running and machine.is_express):
            return places
        space = address_bits.read_space(attached.text, self._host)
        need = self._reader.read_windows(attached.claim, space.firmware)
        ports = port_windows.parse(attached.text)
        other = port_windows.Windows(prefetchable=space.find_large_window())
        bus = min((place.bus for place in places.values()), default=0)
        windows = ports.get(bus, other)
        if windows.holds(need):
            return places
        if not has_expander and not attached.claim.members:
            for bus in drawn.spare_ports:
                if ports.get(bus, other).holds(need):
                    at = guest_pci.GuestPciAddress(
                        bus=bus, slot=0, function=0, is_first=False
                    )
                    return {attached.claim.handle: at}
        largest = max(need.memory, need.prefetchable)
        if "q35" in machine.machine or largest >= _NO_ROOM:
            raise errors.ClaimError(
                attached.uuid,
                f"{attached.claim.handle} needs a root port with"
                f" {need.describe()}, and its guest has one with"
                f" {windows.describe()} while it runs; stop the server first",
                public="the memory of the device does not fit into its guest"
                " while it runs; stop the server first",
            )
        return places

    def _choose(
        self, drawn: picture.Picture, attached: libvirt_guest.Attached
    ) -> guest_pci.Places:
        places: guest_pci.Places = {}
        try:
            devices = self._reader.read((attached.claim,))
            if len(devices) == 1 and not (
                attached.is_running and devices[0].members
            ):
                places = choose(
                    drawn,
                    devices[0],
                    self._reader.read(attached.others),
                    guest_pci.parse_cells(attached.text),
                )
        except picture.PictureError as error:
            LOG.info("%s", error)
        if not places:
            LOG.info(
                "%s is attached to server %s on any bus: no port is free below"
                " its root complex",
                attached.claim.handle,
                attached.uuid,
            )
        return places


def choose(
    drawn: picture.Picture,
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
    node = device.numa_node
    siblings = [d for d in others if d.handle in drawn.places]
    same = [d for d in siblings if d.root_complex == device.root_complex]
    tops = {port: [*drawn.list_above(port)][-1] for port in drawn.spare_ports}
    candidates = []
    if node is not None:
        same += [d for d in siblings if d.numa_node == node]
        candidates = [
            expander.index
            for expander in drawn.list_expanders()
            if expander.cell is not None and expander.cell == cells.get(node)
        ]
    below = [[*drawn.list_above(drawn.places[d.handle].bus)] for d in same]
    for expander in (*(above[-1] for above in below if above), *candidates):
        for port, top in tops.items():
            if top == expander:
                return picture.place(port, device)
    return {}
