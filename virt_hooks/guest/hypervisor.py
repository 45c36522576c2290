# SPDX-License-Identifier: Apache-2.0
"""libvirt and QEMU that run the guests of a host.

They are read from Nova's connection: nova-compute may run in a container
beside another kernel and another QEMU.
"""

import dataclasses
from typing import Any
from xml.etree import ElementTree

from nova_accel.catalog import features
from virt_hooks.guest import guest_pci

# Value of the enum of domain capabilities (libvirt's formatdomaincaps,
# "Host device assignment").
_YES = "yes"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hypervisor:
    """Versions of libvirt and QEMU, and how they assign PCI functions.

    ``has_iommufd`` is whether libvirt can assign them by IOMMUFD; it is False
    where no guest asked. ``uses_iommufd`` is whether the host is configured
    to assign all of them so.
    """

    libvirt: features.Version
    qemu: features.Version = ()
    has_iommufd: bool = False
    uses_iommufd: bool = False

    def explain_old(self, subject: str, feature: features.Feature) -> str:
        """Return which program is too old for a feature, empty for none."""
        for program, version in (
            (features.LIBVIRT, self.libvirt),
            (features.QEMU, self.qemu),
        ):
            minimum = feature.minimum(program)
            if version < minimum:
                installed = features.join(version) or "an unknown version"
                return (
                    f"{subject} needs {program} {features.join(minimum)}, this"
                    f" host has {installed}: update it"
                )
        return ""


class HypervisorReader:
    """Reads the hypervisor of a host for a guest."""

    def __init__(self, host: Any, uses_iommufd: bool = False) -> None:
        """Read through the connection of Nova's ``libvirt.host.Host``.

        :param uses_iommufd: see ``Hypervisor``.
        """
        self._host = host
        self._uses_iommufd = uses_iommufd

    def read(self, guest: guest_pci.Guest) -> Hypervisor:
        """Return the hypervisor, with IOMMUFD only if the guest needs it.

        :raises libvirt.libvirtError: libvirt can't be read.
        """
        connection = self._host.get_connection()
        needs_iommufd = self._uses_iommufd or guest.has_private_memory
        return Hypervisor(
            libvirt=features.parse_number(connection.getLibVersion()),
            qemu=features.parse_number(connection.getVersion()),
            has_iommufd=needs_iommufd
            and parse_iommufd(
                connection.getDomainCapabilities(None, None, None, None, 0)
            ),
            uses_iommufd=self._uses_iommufd,
        )


def parse_iommufd(text: str) -> bool:
    """Return whether libvirt can assign PCI functions by IOMMUFD.

    The kernel of its host has the device ``/dev/iommu`` then, and QEMU was
    built with IOMMUFD.

    :param text: domain capabilities, as libvirt wrote them.
    """
    root = ElementTree.fromstring(text)  # noqa: S314 - written by libvirtd
    return any(
        value.text == _YES
        for value in root.iterfind(
            "./devices/hostdev/enum[@name='iommufd']/value"
        )
    )
