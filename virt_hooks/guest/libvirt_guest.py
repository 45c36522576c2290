# SPDX-License-Identifier: Apache-2.0
"""Hostdev elements in the guests that Nova builds."""

import contextlib
from collections.abc import Iterable
from typing import Any

from lxml import etree
from nova import exception
from nova.virt.libvirt import config as vconfig

from nova_accel import model
from nova_accel.model import flavors
from virt_hooks.guest import connection, guest_pci, hostdev


def add_claims(
    config: Any,
    claims: Iterable[model.Claim],
    options: flavors.Options,
    libvirt_version: int,
) -> None:
    """Add the devices of a server's claims to its guest's configuration.

    :param config: a ``LibvirtConfigGuest``, otherwise complete.
    :raises ClaimError: the guest can't have them with these options.
    """
    claims = tuple(claims)
    if not claims:
        return
    guest = guest_pci.parse_guest(config.to_xml())
    for xml in hostdev.plan_elements(claims, guest, options, libvirt_version):
        config.add_device(RawElement(xml))


def read_use(host: Any, instance: Any) -> connection.HostdevUse:
    """Return the hostdevs of a server's domain, none without a domain.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    with contextlib.suppress(exception.InstanceNotFound):
        return connection.parse_hostdevs(
            host.get_guest(instance).get_xml_desc()
        )
    return connection.HostdevUse()


def is_holding(host: Any, instance: Any, claim: model.Claim) -> bool:
    """Return whether a server's running guest has a partition.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    try:
        guest = host.get_guest(instance)
        if not guest.is_active():
            return False
        xml = guest.get_xml_desc()
    except exception.InstanceNotFound:
        return False
    return connection.parse_hostdevs(xml).holds(claim.handle)


class RawElement(vconfig.LibvirtConfigGuestDevice):
    """Device of Nova's configuration with its XML given as text."""

    def __init__(self, xml: str) -> None:
        super().__init__(root_name=etree.fromstring(xml).tag)
        self._xml = xml

    def format_dom(self) -> Any:
        """Return the element."""
        return etree.fromstring(self._xml)
