# SPDX-License-Identifier: Apache-2.0
"""Domains of a host with their host devices, as commands read them."""

import contextlib
from typing import Any

import libvirt

from nova_accel import errors
from nova_accel.model import domains
from virt_hooks.guest import connection


def read_domains(uri: str | None = None) -> tuple[domains.Domain, ...]:
    """Return the domains of a host with their host devices.

    A read-only connection is opened for the call.

    :param uri: of the libvirt to read; None for libvirt's default
        (libvirt.org/uri.html, "Default URI choice").
    :raises DomainsError: libvirt can't be reached, or can't list them.
    """
    try:
        with contextlib.closing(libvirt.openReadOnly(uri)) as opened:
            listed = opened.listAllDomains(0)
            entries = [_read_domain(domain) for domain in listed]
    except libvirt.libvirtError as error:
        raise errors.DomainsError(
            uri or "libvirt",
            f"{error}; see whether libvirtd or virtqemud runs, and whether"
            " this user may ask it",
        ) from error
    return tuple(entry for entry in entries if entry is not None)


def _read_domain(domain: Any) -> domains.Domain | None:
    """Return a domain, None if it has ended since it was listed."""
    try:
        use = connection.parse_hostdevs(domain.XMLDesc(0))
        return domains.Domain(
            uuid=domain.UUIDString(),
            name=domain.name(),
            is_running=bool(domain.isActive()),
            mdevs=use.mdevs,
            functions=use.functions,
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
