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
    """Add what gives a server's claims to its guest.

    :param config: a ``LibvirtConfigGuest``, otherwise complete.
    :raises ClaimError: the guest can't have them as the flavor wants.
    """
    found = tuple(claims)
    if not found:
        return
    for xml in hostdev.plan_elements(
        found, guest_pci.parse_guest(config.to_xml()), options, libvirt_version
    ):
        config.add_device(RawElement(xml))


def read_use(host: Any, instance: Any) -> connection.HostdevUse:
    """Return what a server's domain has; nothing, where there is none.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    with contextlib.suppress(exception.InstanceNotFound):
        return connection.parse_hostdevs(
            host.get_guest(instance).get_xml_desc()
        )
    return connection.HostdevUse()


def is_holding(host: Any, instance: Any, claim: model.Claim) -> bool:
    """Return whether a server's guest runs with a partition.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    try:
        found = host.get_guest(instance)
        if not found.is_active():
            return False
        xml = found.get_xml_desc()
    except exception.InstanceNotFound:
        return False
    return connection.parse_hostdevs(xml).holds(claim.handle)


class RawElement(vconfig.LibvirtConfigGuestDevice):
    """An element that is written already."""

    def __init__(self, xml: str) -> None:
        super().__init__(root_name=etree.fromstring(xml).tag)
        self._xml = xml

    def format_dom(self) -> Any:
        """Return the element."""
        return etree.fromstring(self._xml)
