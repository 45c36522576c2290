# SPDX-License-Identifier: Apache-2.0
"""Hostdevs of a definition, plugged into a running guest or unplugged.

A running guest gets a device at the PCI address that the definition has, so
that the guest sees it at the same address after its next start.
"""

import time
from collections.abc import Collection
from typing import Any

import nova.conf
from nova.compute import power_state

from nova_accel import errors
from virt_hooks.guest import (
    connection,
    libvirt_guest,
)

# Seconds between two checks of a guest that releases devices; a Linux
# guest needs one or two seconds.
_STEP_S = 0.25


def unplug(host: Any, guest: Any, handles: Collection[str]) -> None:
    """Unplug devices from a running guest; its definition keeps them.

    The guest has [libvirt] device_detach_timeout to release the devices.

    All of them or none: after an error the unplugged ones are plugged in
    again.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param guest: a ``nova.virt.libvirt.guest.Guest`` that runs.
    :param handles: mdev uuids and PCI addresses.
    :raises DomainsError: the guest can't release them, or does not.
    """
    with connection.translated_errors(guest.name):
        elements = connection.find_hostdevs(guest.get_xml_desc(), handles)
    if not elements:
        return
    if guest.get_power_state(host) == power_state.PAUSED:
        raise errors.DomainsError(
            guest.name,
            "its guest is paused and can't release its accelerators;"
            " unpause it first",
        )
    if connection.share_one_slot(elements):
        raise errors.DomainsError(
            guest.name,
            "its guest sees functions of one card in one slot, which libvirt"
            " can't remove while it runs; stop the server instead",
        )
    try:
        with connection.translated_errors(guest.name):
            for element in elements:
                guest.detach_device(
                    libvirt_guest.RawElement(element), live=True
                )
            _await_gone(guest, handles)
    except errors.DomainsError:
        plug(guest, handles)
        raise


def plug(guest: Any, handles: Collection[str]) -> None:
    """Plug the devices of a definition into its running guest again.

    They get the same PCI addresses. Devices that the guest has stay.

    :raises DomainsError: libvirt can't.
    """
    with connection.translated_errors(guest.name):
        if not guest.is_active():
            return
        use = connection.parse_hostdevs(guest.get_xml_desc())
        missing = {handle for handle in handles if not use.holds(handle)}
        if not missing:
            return
        definition = guest.get_xml_desc(dump_inactive=True)
        for element in connection.find_hostdevs(definition, missing):
            guest.attach_device(libvirt_guest.RawElement(element), live=True)


def _await_gone(guest: Any, handles: Collection[str]) -> None:
    seconds = nova.conf.CONF.libvirt.device_detach_timeout
    deadline = time.monotonic() + seconds
    while True:
        use = connection.parse_hostdevs(guest.get_xml_desc())
        remaining = sorted(handle for handle in handles if use.holds(handle))
        if not remaining:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(_STEP_S)
    remedy = (
        f"in {seconds:g} s; check that its system is up and supports hot"
        " unplug, or stop the server instead"
    )
    raise errors.DomainsError(
        guest.name,
        f"its guest did not release {', '.join(remaining)} {remedy}",
        public=f"its system did not release the accelerators {remedy}",
    )
