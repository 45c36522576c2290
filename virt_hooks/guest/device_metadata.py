# SPDX-License-Identifier: Apache-2.0
"""Accelerators in the device metadata that a guest reads.

Nova stores the metadata of a server's tagged devices in its database; the
metadata service and the config drive print them as ``devices`` of
``meta_data.json``. They print network interfaces, disks and shares only
(nova/api/metadata/base.py, _get_device_metadata), so an accelerator is a
disk without a serial number and a path, with the tags TAG and its profile.
"""

from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

from nova import objects

from nova_accel import model
from nova_accel.model import pci
from virt_hooks import error_guards
from virt_hooks.guest import connection

#: First tag of each accelerator; the second is its profile.
TAG = "accelerator"
_FIELDS = ("domain", "bus", "slot", "function")


class DeviceMetadata:
    """Builds the device metadata of servers with accelerators."""

    def __init__(
        self, host: Any, claims_of: Callable[[str], Iterable[model.Claim]]
    ) -> None:
        """:param host: Nova's ``nova.virt.libvirt.host.Host``.
        :param claims_of: returns the claims of a server's uuid.
        """
        self._host, self._claims_of = host, claims_of

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
            metadata = add_claims(
                metadata,
                self._claims_of(instance.uuid),
                self._host.get_guest(instance).get_xml_desc(),
            )
        return metadata


def add_claims(metadata: Any, claims: Iterable[model.Claim], text: str) -> Any:
    """Return device metadata with the accelerators of a server.

    Those that the guest does not have are left out, and hosts and their
    devices are not named.

    :param metadata: a ``nova.objects.InstanceDeviceMetadata``, or None.
    :param text: XML of the server's domain.
    """
    devices = list(metadata.devices) if metadata else []
    for claim in sorted(claims, key=lambda c: (c.provider, c.slot)):
        elements = connection.find_hostdevs(text, {claim.handle})
        devices += [_build_device(claim, element) for element in elements]
    if not devices:
        return metadata
    return objects.InstanceDeviceMetadata(devices=devices)


def _build_device(claim: model.Claim, element: str) -> Any:
    # Nova warns of a disk without the field when a tagged volume is detached.
    device = objects.DiskMetadata(serial=None, tags=[TAG, claim.profile])
    address = parse_guest_address(element)
    if address is not None:
        device.bus = objects.PCIDeviceBus(address=str(address))
    return device


def parse_guest_address(element: str) -> pci.PciAddress | None:
    """Return the PCI address that a guest sees a hostdev at.

    None for a device off the PCI bus, and before libvirt has chosen one.
    """
    hostdev = ElementTree.fromstring(element)  # noqa: S314 - libvirtd's
    address = hostdev.find("./address[@type='pci']")
    if address is None:
        return None
    return pci.PciAddress(
        **{name: int(address.get(name) or "0", 0) for name in _FIELDS}
    )
