# SPDX-License-Identifier: Apache-2.0
"""Hostdevs added to a domain's definition and guest, or removed."""

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
    plug,
)
from virt_hooks.operations import server_partitions

_ROOT_PORT = "<controller"


def add(
    host: Any,
    instance: Any,
    claim: model.Claim,
    partitions: server_partitions.ServerPartitions,
    layouts: libvirt_guest.GuestLayouts,
) -> None:
    """Add the devices of a claim to a server's domain, and verify.

    They are added to the definition first, then to the guest if it runs. A
    server without a domain gets them with the domain that Nova defines
    next.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :raises DomainsError: libvirt refuses, or does not show the devices.
    :raises ClaimError: the guest can't have the devices, or not while it
        runs.
    """
    guest = _find_guest(host, instance)
    if guest is None:
        return
    handles = claim.handles
    with connection.translated_errors(guest.name):
        is_running = guest.is_active()
        definition = guest.get_xml_desc(dump_inactive=True)
        machine = guest_pci.parse_guest(definition)
        claims = partitions.accel.claims_of(instance.uuid)
        places = layouts.place_attached(
            libvirt_guest.Attached(
                uuid=instance.uuid,
                text=definition,
                claim=claim,
                others=[c for c in claims if c.key != claim.key],
                is_running=is_running,
            )
        )
        elements = hostdev.plan_elements(
            (claim,),
            machine,
            flavors.Options(),
            partitions.hypervisor.read(machine),
            places,
        )
        if is_running and any(e.startswith(_ROOT_PORT) for e in elements):
            raise errors.ClaimError(
                instance.uuid,
                f"{claim.handle} and the functions that belong to it need one"
                " slot of the guest, which can't be added while it runs; stop"
                " the server first",
                public="its guest can't take it while it runs; stop the"
                " server first",
            )
        for element in elements:
            guest.attach_device(
                libvirt_guest.RawElement(element), persistent=True
            )
        if is_running:
            plug.plug(guest, handles)
    if not is_in_domain(host, instance, handles):
        raise errors.DomainsError(
            guest.name, f"it does not have {claim.handle} after the attach"
        )


def remove(host: Any, instance: Any, handles: Collection[str]) -> None:
    """Unplug devices from the guest if it runs, then from its definition.

    :raises DomainsError: the guest does not release them, and keeps all of
        them, or libvirt refuses.
    """
    guest = _find_guest(host, instance)
    if guest is None:
        return
    with connection.translated_errors(guest.name):
        is_running = guest.is_active()
    if is_running:
        plug.unplug(host, guest, handles)
    _remove_from_definition(guest, handles)


def _remove_from_definition(guest: Any, handles: Collection[str]) -> None:
    with connection.translated_errors(guest.name):
        definition = guest.get_xml_desc(dump_inactive=True)
        for element in connection.find_hostdevs(definition, handles):
            guest.detach_device(
                libvirt_guest.RawElement(element), persistent=True
            )
        definition = guest.get_xml_desc(dump_inactive=True)
    if connection.find_hostdevs(definition, handles):
        raise errors.DomainsError(
            guest.name,
            "its definition still has"
            f" {', '.join(sorted(handles))} after the detach",
        )


def restore_guest(host: Any, instance: Any, handles: Collection[str]) -> None:
    """Plug the devices of a definition into its running guest again.

    :raises DomainsError: libvirt can't.
    """
    guest = _find_guest(host, instance)
    if guest is not None:
        plug.plug(guest, handles)


def is_in_domain(host: Any, instance: Any, handles: Collection[str]) -> bool:
    """Return whether both definition and running guest have all devices.

    :raises DomainsError: libvirt can't be read.
    """
    guest = _find_guest(host, instance)
    if guest is None:
        return False
    with connection.translated_errors(guest.name):
        texts = [guest.get_xml_desc(dump_inactive=True)]
        if guest.is_active():
            texts.append(guest.get_xml_desc())
    return all(
        use.holds(handle)
        for use in map(connection.parse_hostdevs, texts)
        for handle in handles
    )


def is_in_guest(host: Any, instance: Any, handles: Collection[str]) -> bool:
    """Return whether a running guest has any of some devices.

    :raises DomainsError: libvirt can't be read.
    """
    guest = _find_guest(host, instance)
    if guest is None:
        return False
    with connection.translated_errors(guest.name):
        if not guest.is_active():
            return False
        use = connection.parse_hostdevs(guest.get_xml_desc())
    return any(use.holds(handle) for handle in handles)


def _find_guest(host: Any, instance: Any) -> Any:
    """Return a server's ``nova.virt.libvirt.guest.Guest``, or None.

    :raises DomainsError: libvirt can't be read.
    """
    try:
        return host.get_guest(instance)
    except exception.InstanceNotFound:
        return None
    except exception.InternalError as error:
        raise errors.DomainsError(instance.name, str(error)) from error
