# SPDX-License-Identifier: Apache-2.0
"""Reader of the places that claimed devices have in the host's PCIe tree.

Only the files of these devices are read, each with a time limit
(``bounded_calls``).
"""

import contextlib
from collections.abc import Iterable, Iterator

from nova_accel import errors, model
from nova_accel.geometry import address_space, topology
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci
from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import (
    distances,
    host_tree,
    picture,
    port_windows,
)


class DeviceReader:
    """Reads the devices of claims; each call reads them again."""

    def __init__(self, root: str) -> None:
        """Read the kernel's files below ``root``."""
        self._source = fs.DiskSource(root)

    def read(
        self, claims: Iterable[model.Claim]
    ) -> tuple[host_tree.HostDevice, ...]:
        """Return the devices of claims that are on the PCI bus.

        :raises PictureError: the place of one can't be read.
        """
        files = fs.Files(self._source)
        return tuple(
            _read_device(files, *slot)
            for claim in claims
            for slot in _list_slots(claim)
        )

    def read_cards(
        self, addresses: Iterable[str]
    ) -> tuple[host_tree.HostDevice, ...]:
        """Return cards, each with its address as the handle.

        :raises PictureError: the place of one can't be read.
        """
        files = fs.Files(self._source)
        return tuple(
            _read_device(files, address, address, ())
            for address in addresses
            if pci.is_address(address)
        )

    def read_windows(
        self, claim: model.Claim, firmware: address_space.Firmware
    ) -> port_windows.Windows:
        """Return the windows that a function of a claim needs.

        Those of a claim with several functions are not known: they are
        attached only while their guest is stopped.
        """
        if _has_emulated_bars(claim):
            return port_windows.Windows()
        files = fs.Files(self._source)
        return port_windows.parse_resource(
            _read_resource(files, claim.handle), firmware
        )

    def list_windows(
        self,
        devices: Iterable[model.Device],
        firmware: address_space.Firmware,
    ) -> frozenset[port_windows.Windows]:
        """Return the windows that devices need which can be attached.

        All VFs of a device have the same BARs. Mdevs, and VFs with a vGPU
        type, have none of the host's; devices of several functions are not
        attached to running guests.
        """
        files = fs.Files(self._source)
        return frozenset(
            port_windows.parse_resource(
                _read_resource(files, address), firmware
            )
            for device in devices
            if device.technology in model.UNDIVIDED and not device.members
            for address in device.slots[:1]
            if pci.is_address(address)
        )

    def sum_functions(self, handles: Iterable[str]) -> address_space.Demand:
        """Return what the BARs of functions need; mdevs have none."""
        files = fs.Files(self._source)
        return address_space.sum_functions(
            _read_resource(files, handle)
            for handle in handles
            if pci.is_address(handle)
        )

    def sum_bars(self, claims: Iterable[model.Claim]) -> address_space.Demand:
        """Return what the BARs of claims need, as far as it is known."""
        return self.sum_functions(
            function
            for claim in claims
            if not _has_emulated_bars(claim)
            for function in claim.handles
        )

    def read_distances(self) -> distances.Distances:
        """Return the distances between the NUMA nodes of the host."""
        return distances.read(fs.Files(self._source))


def _has_emulated_bars(claim: model.Claim) -> bool:
    """Return whether a driver of the host shows a guest other BARs.

    Those of an mdev, and of a VF that has a vGPU type.
    """
    return claim.technology == "mdev" or bool(claim.type_id)


def _list_slots(
    claim: model.Claim,
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield address, handle and other functions of each slot of a claim.

    Functions share a slot of the guest if they are of one slot and one claim,
    and the first of them is function 0.
    """
    if claim.technology == "mdev":
        if pci.is_address(claim.parent):
            yield claim.parent, claim.handle, ()
        return
    addresses = [pci.parse_address(a) for a in claim.handles]
    shared = list(guest_pci.list_shared_slots([addresses]))
    for first, *members in shared:
        yield str(first), str(first), tuple(map(str, members))
    for address in addresses:
        if not any(address in functions for functions in shared):
            yield str(address), str(address), ()


def _read_device(
    files: fs.Files, address: str, handle: str, members: tuple[str, ...]
) -> host_tree.HostDevice:
    directory = f"{host_reader.FUNCTIONS}/{address}"
    try:
        path = files.resolve(directory)
    except errors.UnreadableError as error:
        raise picture.PictureError(
            f"the bridges above {address} can't be read: {error}"
        ) from error
    bridges = topology.parse_bridges(path)
    if not bridges:
        raise picture.PictureError(f"no bridges are above {address}: {path}")
    return host_tree.HostDevice(
        bridges, address, handle, members, _read_node(files, directory)
    )


def _read_node(files: fs.Files, directory: str) -> int | None:
    """Return the NUMA node of a function, None if it is unknown (-1)."""
    with contextlib.suppress(errors.UnreadableError, ValueError):
        node = int(files.text(f"{directory}/numa_node"))
        return node if node >= 0 else None
    return None


def _read_resource(files: fs.Files, address: str) -> str:
    """Return the resource file of a function, empty if unknown."""
    try:
        return files.text(f"{host_reader.FUNCTIONS}/{address}/resource")
    except errors.UnreadableError:
        return ""
