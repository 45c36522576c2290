# SPDX-License-Identifier: Apache-2.0
"""Accelerators in the device metadata that a guest reads.

Nova stores the metadata of a server's tagged devices in its database; the
metadata service and the config drive print them as ``devices`` of
``meta_data.json``. They print network interfaces, disks and shares only
(nova/api/metadata/base.py, _get_device_metadata), so an accelerator is a
disk without a serial number and a path, with the tags TAG, its profile, and
its description as JSON (``device_description``).
"""

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from nova import objects

from nova_accel import model
from nova_accel.discovery import snapshot
from nova_accel.model import names, pci
from virt_hooks import error_guards
from virt_hooks.guest import connection, guest_pci
from virt_hooks.operations import extra_operations
from virt_hooks.operations.metadata import device_description, host_links

#: First tag of each accelerator; the second is its profile.
TAG = "accelerator"


class DeviceMetadata:
    """Builds the device metadata of servers with accelerators."""

    def __init__(self, context: extra_operations.OperationContext) -> None:
        self._host = context.partitions.host
        self._accel = context.partitions.accel
        self._layouts = context.layouts

    def build(
        self,
        stock: error_guards.Stock,
        context: Any,
        instance: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        """Return Nova's metadata with the accelerators of a server.

        After an error it is logged, and Nova's metadata is returned.
        """
        metadata = stock()
        with error_guards.log_errors(
            "can't add accelerators to the metadata of server %s",
            instance.uuid,
        ):
            text = self._host.get_guest(instance).get_xml_desc()
            metadata = add_claims(
                metadata,
                instance.uuid,
                self._accel.claims_of(instance.uuid),
                text,
                self._accel.host,
                self._layouts.predict_buses(text),
            )
        return metadata


def add_claims(
    metadata: Any,
    server: str,
    claims: Iterable[model.Claim],
    text: str,
    state: snapshot.Snapshot,
    buses: Mapping[int, int] = types.MappingProxyType({}),
) -> Any:
    """Return device metadata with the accelerators of a server.

    Those that the guest does not have are left out, and hosts and their
    devices are not named.

    :param metadata: a ``nova.objects.InstanceDeviceMetadata``, or None.
    :param server: its uuid.
    :param text: XML of the server's domain.
    :param state: the last reading of the host.
    :param buses: numbers of buses that the guest sees, by libvirt's.
    """
    functions = [
        (claim, parse_guest_address(element, buses))
        for claim in sorted(claims, key=lambda c: (c.provider, c.slot))
        for element in connection.find_hostdevs(text, {claim.handle})
    ]
    if functions:
        described = _list_devices(
            functions, guest_pci.parse_cells(text), state
        )
        descriptions = device_description.describe(server, described)
        devices = map(_build_device, functions, descriptions)
        metadata = objects.InstanceDeviceMetadata(
            devices=[*(metadata.devices if metadata else ()), *devices]
        )
    return metadata


_Function = tuple[model.Claim, pci.PciAddress | None]


def _build_device(function: _Function, description: str) -> Any:
    claim, address = function
    tags = [TAG, claim.profile, description]
    # Nova warns of a disk without the field when a tagged volume is detached.
    device = objects.DiskMetadata(serial=None, tags=list(filter(None, tags)))
    if address is not None:
        device.bus = objects.PCIDeviceBus(address=str(address))
    return device


def _list_devices(
    functions: Sequence[_Function],
    cells: Mapping[int, int],
    state: snapshot.Snapshot,
) -> tuple[device_description.GuestDevice, ...]:
    """Return a guest device for each function."""
    reader = state.open_reader()
    devices = {d.address: d for d in state.state.devices}
    cards = {
        claim.device: _find_card(claim, devices.get(claim.device))
        for claim, _ in functions
    }

    def build(
        claim: model.Claim, address: pci.PciAddress | None
    ) -> device_description.GuestDevice:
        card = cards[claim.device]
        device = devices.get(claim.device)
        gpu = state.gpus.get(card)
        node = device.numa_node if device else None
        return device_description.GuestDevice(
            profile=claim.profile,
            address=str(address or ""),
            card=card,
            model=device.model if device else "",
            vendor_id=device.vendor_id if device else "",
            numa_node=node,
            cell=None if node is None else cells.get(node),
            place=host_links.read(reader, card),
            peers=_find_peers(device, {*cards.values()}),
            driver_version=gpu.driver_version if gpu else "",
        )

    return tuple(build(claim, address) for claim, address in functions)


def _find_card(claim: model.Claim, device: model.Device | None) -> str:
    """Return the name of a claim's card."""
    return (device.parent if device else "") or claim.device


def _find_peers(
    device: model.Device | None, cards: Iterable[str]
) -> frozenset[str] | None:
    """Return the cards to which a device has an NVLink, None if unknown."""
    if device is None or names.NVLINK_PREFIX in device.unread_traits:
        return None
    return frozenset(
        card for card in cards if names.nvlink_trait(card) in device.traits
    )


def parse_guest_address(
    element: str, buses: Mapping[int, int] = types.MappingProxyType({})
) -> pci.PciAddress | None:
    """Return the PCI address that a guest sees a hostdev at.

    None for a device off the PCI bus, and before libvirt has chosen one.

    :param buses: numbers of buses that the guest sees, by libvirt's.
    """
    hostdev = ElementTree.fromstring(element)  # noqa: S314 - libvirtd's
    address = hostdev.find("./address[@type='pci']")
    if address is None:
        return None
    place = guest_pci.parse_address(address)
    return dataclasses.replace(place, bus=buses.get(place.bus, place.bus))
