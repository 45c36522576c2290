# SPDX-License-Identifier: Apache-2.0
"""Hostdevs added to a domain's definition, or removed from it.

The guest that runs follows the definition: what it gets stands where
libvirt has put it there, so that it finds it again after the next start.
"""

from collections.abc import Collection
from typing import Any

from nova import exception

from nova_accel import errors, model
from nova_accel.model import flavors
from virt_hooks.guest import (
    connection,
    guest_pci,
    hostdev,
    libvirt_guest,
    unplug,
)

_ROOT_PORT = "<controller"


def add(host: Any, instance: Any, claim: model.Claim) -> None:
    """Give a server's domain what a claim stands for, and read it back.

    Its definition first, then the guest if it runs. A server without a
    domain gets it with the one that Nova makes next.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :raises DomainsError: libvirt refuses, or does not show it.
    :raises ClaimError: the guest can't have it.
    """
    found = _find(host, instance)
    if found is None:
        return
    handles = handles_of(claim)
    with connection.answering(found.name):
        is_running = found.is_active()
        written = found.get_xml_desc(dump_inactive=True)
        elements = hostdev.plan_elements(
            (claim,),
            guest_pci.parse_guest(written),
            flavors.Options(),
            host.get_connection().getLibVersion(),
        )
        if is_running and any(e.startswith(_ROOT_PORT) for e in elements):
            raise errors.ClaimError(
                instance.uuid,
                f"{claim.handle} and what goes with it want one slot of the"
                " guest, which can't be given while it runs; stop the server"
                " first",
                public="its guest can't take it while it runs; stop the"
                " server first",
            )
        for element in elements:
            found.attach_device(
                libvirt_guest.RawElement(element), persistent=True
            )
        if is_running:
            unplug.plug(found, handles)
    if not holds(host, instance, handles):
        raise errors.DomainsError(
            found.name, f"it does not show {claim.handle} after it got it"
        )


def release(
    host: Any, instance: Any, handles: Collection[str], seconds: float
) -> None:
    """Take devices out of the guest if it runs; its definition keeps them.

    :param seconds: how long the guest gets to agree.
    :raises DomainsError: it does not, or libvirt refuses; it keeps all.
    """
    found = _find(host, instance)
    if found is None:
        return
    with connection.answering(found.name):
        is_running = found.is_active()
    if is_running:
        unplug.unplug(host, found, handles, seconds)


def forget(host: Any, instance: Any, handles: Collection[str]) -> None:
    """Take devices out of a domain's definition, and read it back.

    :raises DomainsError: libvirt refuses.
    """
    found = _find(host, instance)
    if found is None:
        return
    with connection.answering(found.name):
        written = found.get_xml_desc(dump_inactive=True)
        for element in connection.find_hostdevs(written, handles):
            found.detach_device(
                libvirt_guest.RawElement(element), persistent=True
            )
        written = found.get_xml_desc(dump_inactive=True)
    if connection.find_hostdevs(written, handles):
        raise errors.DomainsError(
            found.name, f"its definition keeps {', '.join(sorted(handles))}"
        )


def restore(host: Any, instance: Any, handles: Collection[str]) -> None:
    """Put back into a guest that runs what its definition has of these.

    :raises DomainsError: libvirt can't.
    """
    found = _find(host, instance)
    if found is not None:
        unplug.plug(found, handles)


def holds(host: Any, instance: Any, handles: Collection[str]) -> bool:
    """Return whether a domain has devices: its definition, and its guest.

    :raises DomainsError: libvirt can't be asked.
    """
    found = _find(host, instance)
    if found is None:
        return False
    with connection.answering(found.name):
        shown = [found.get_xml_desc(dump_inactive=True)]
        if found.is_active():
            shown.append(found.get_xml_desc())
    return all(
        use.holds(handle)
        for use in map(connection.parse_hostdevs, shown)
        for handle in handles
    )


def runs_with(host: Any, instance: Any, handles: Collection[str]) -> bool:
    """Return whether a guest runs and has any of some devices.

    :raises DomainsError: libvirt can't be asked.
    """
    found = _find(host, instance)
    if found is None:
        return False
    with connection.answering(found.name):
        if not found.is_active():
            return False
        use = connection.parse_hostdevs(found.get_xml_desc())
    return any(use.holds(handle) for handle in handles)


def handles_of(claim: model.Claim) -> frozenset[str]:
    """Return what a claim is in a domain: an mdev, or functions."""
    if claim.technology == "mdev":
        return frozenset({claim.handle})
    return frozenset({claim.handle, *claim.members})


def _find(host: Any, instance: Any) -> Any:
    """Return a server's domain, None where it has none now.

    :raises DomainsError: libvirt can't be asked.
    """
    try:
        return host.get_guest(instance)
    except exception.InstanceNotFound:
        return None
    except exception.InternalError as error:
        raise errors.DomainsError(instance.name, str(error)) from error
