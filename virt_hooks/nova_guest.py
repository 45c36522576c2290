# SPDX-License-Identifier: Apache-2.0
"""Our elements in the configuration of a guest that Nova builds."""

from collections.abc import Iterable
from typing import Any

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_accel import flavors, model
from virt_hooks import guest, hostdev


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
        found, guest.parse_guest(config.to_xml()), options, libvirt_version
    ):
        config.add_device(_Element(xml))


class _Element(vconfig.LibvirtConfigGuestDevice):
    """An element that is written already."""

    def __init__(self, xml: str) -> None:
        super().__init__(root_name=etree.fromstring(xml).tag)
        self._xml = xml

    def format_dom(self) -> Any:
        """Return the element."""
        return etree.fromstring(self._xml)
