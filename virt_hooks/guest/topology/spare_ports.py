# SPDX-License-Identifier: Apache-2.0
"""Empty root ports below the expanders of a guest, for attached devices."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.geometry import address_space
from virt_hooks.guest import device_metadata, guest_pci, libvirt_guest
from virt_hooks.guest.topology import (
    address_bits,
    device_reader,
    host_tree,
    picture,
    port_windows,
)

LOG = logging.getLogger(__name__)


class SparePorts:
    """Empty ports of guests, and their windows for devices of this host."""

    def __init__(self, reader: device_reader.DeviceReader, host: Any) -> None:
        """:param host: Nova's ``nova.virt.libvirt.host.Host``."""
        self._reader, self._host = reader, host

    def reserve(self, text: str, devices: Iterable[model.Device]) -> str:
        """Return a domain whose empty ports have room for devices.

        A guest that is resumed has its windows.

        :param devices: those that this host offers.
        """
        if port_windows.parse(text):
            return text
        drawn = picture.parse(text)
        windows = port_windows.choose(
            address_bits.read_space(text, self._host),
            self._reader.sum_functions(drawn.places),
            self._reader.list_windows(devices),
            len(drawn.spare_ports),
        )
        return port_windows.reserve(text, drawn.spare_ports, windows)

    def place(self, attached: libvirt_guest.Attached) -> guest_pci.Places:
        """Return a free port for an attached claim, empty for any.

        :raises ClaimError: it has a BAR for which the guest has no room
            while it runs.
        """
        places = self._choose(attached)
        is_express = guest_pci.parse_guest(attached.text).is_express
        if attached.is_running and is_express:
            reserved = port_windows.parse(attached.text)
            port = min((p.bus for p in places.values()), default=0)
            self._check_bars(
                attached, reserved.get(port, port_windows.Windows())
            )
        return places

    def _choose(self, attached: libvirt_guest.Attached) -> guest_pci.Places:
        drawn = picture.parse(attached.text)
        if not drawn.list_expanders():
            return {}
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
                    device_metadata.parse_cells(attached.text),
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

    def _check_bars(
        self,
        attached: libvirt_guest.Attached,
        reserved: port_windows.Windows,
    ) -> None:
        """Check that the windows of a port have room for a device.

        :param reserved: those of the port that it gets.
        """
        if reserved.holds(self._reader.read_windows(attached.claim)):
            return
        handle, largest = self._reader.find_largest_bar(attached.claim)
        size = address_space.format_size(largest)
        has_uefi = address_space.parse_space(attached.text).has_uefi
        if largest >= port_windows.NO_ROOM or not has_uefi:
            raise errors.ClaimError(
                attached.uuid,
                f"{handle} has a BAR of {size}, and no root port of its guest"
                " has room for it while the guest runs; stop the server first",
                public="the memory of the device does not fit into its guest"
                " while it runs; stop the server first",
            )
        if largest >= port_windows.UNSURE:
            LOG.warning(
                "the guest of server %s may have no room for %s while it runs:"
                " its BAR is %s; if its driver fails, reboot the server",
                attached.uuid,
                handle,
                size,
            )


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
