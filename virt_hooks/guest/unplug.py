# SPDX-License-Identifier: Apache-2.0
"""Hot unplug of hostdevs, and its undo."""

import time
from collections.abc import Collection
from typing import Any

from nova.compute import power_state

from nova_accel import errors
from virt_hooks.guest import connection, libvirt_guest

# How often the guest is looked at while it gives its devices away, in
# seconds; a Linux guest takes one or two.
_STEP_S = 0.25


def unplug(
    host: Any, guest: Any, handles: Collection[str], seconds: float
) -> None:
    """Take devices out of a guest that runs; its definition keeps them.

    All of them or none: what had gone is put back on a failure.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param guest: a ``nova.virt.libvirt.guest.Guest`` that runs.
    :param handles: mdev uuids and PCI addresses.
    :param seconds: how long the guest gets to agree.
    :raises DomainsError: it can't give them away, or does not.
    """
    found = connection.find_hostdevs(guest.get_xml_desc(), handles)
    if not found:
        return
    if guest.get_power_state(host) == power_state.PAUSED:
        raise errors.DomainsError(
            guest.name,
            "its guest is paused and can't give its accelerators away;"
            " unpause it first",
        )
    if connection.are_in_one_slot(found):
        raise errors.DomainsError(
            guest.name,
            "its guest sees functions of one card in one slot, which libvirt"
            " can't take out of it while it runs; stop the server instead",
        )
    try:
        with connection.answering(guest.name):
            for element in found:
                guest.detach_device(
                    libvirt_guest.RawElement(element), live=True
                )
            _await_gone(guest, handles, seconds)
    except errors.DomainsError:
        plug(guest, handles)
        raise


def plug(guest: Any, handles: Collection[str]) -> None:
    """Put back into a guest that runs what its definition has of these.

    It stands where it stood before. What the guest has already stays.

    :raises DomainsError: libvirt can't.
    """
    with connection.answering(guest.name):
        if not guest.is_active():
            return
        use = connection.parse_hostdevs(guest.get_xml_desc())
        missing = {handle for handle in handles if not use.holds(handle)}
        if not missing:
            return
        kept = guest.get_xml_desc(dump_inactive=True)
        for element in connection.find_hostdevs(kept, missing):
            guest.attach_device(libvirt_guest.RawElement(element), live=True)


def _await_gone(guest: Any, handles: Collection[str], seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        use = connection.parse_hostdevs(guest.get_xml_desc())
        left = sorted(handle for handle in handles if use.holds(handle))
        if not left:
            return
        if time.monotonic() >= until:
            break
        time.sleep(_STEP_S)
    raise errors.DomainsError(
        guest.name,
        f"its guest did not give {', '.join(left)} away in {seconds:g} s;"
        " see whether its system is up and supports hot unplug, or stop the"
        " server instead",
    )
