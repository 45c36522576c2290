# SPDX-License-Identifier: Apache-2.0
"""Requests of flavors for Nova's own vGPUs, beside providers of this library.

Both kinds of host offer ``VGPU``, and one query of Placement can't ask for
a profile on one kind and for none on the other. So such a request asks for
one of them: for the profile that ``native_flavors`` names, or else for
hosts of Nova's own support.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import nova.conf
from nova.compute import task_states
from nova.scheduler import request_filter
from oslo_log import log as logging

from filters import adopted_functions, moved_server
from filters.placement.report_client import placement_getter
from nova_accel.catalog import pci_ids
from nova_accel.config import conf
from nova_accel.config.lines import native_flavors
from nova_accel.model import attachment, flavors, names
from placement_sync.client import provider_records

LOG = logging.getLogger(__name__)
_FORBIDDEN = "forbidden"


@request_filter.trace_request_filter
def serve_native_flavors(ctxt: Any, spec: Any) -> bool:
    """Change a request for Nova's own vGPUs, as the module says.

    A server that moves asks for what its own flavor has by now, where Nova
    kept the flavor of its first request: its host may have been adopted.

    :returns: whether the request was changed.
    """
    try:
        return _serve(ctxt, spec)
    except Exception:
        LOG.exception(
            "The request of server %s was not checked for Nova's own vGPUs;"
            " it is scheduled as it is",
            spec.instance_uuid if "instance_uuid" in spec else "",
        )
        return False


def check_settings() -> None:
    """Check the option when the service starts.

    :raises ConfigurationError: a line is not valid.
    """
    conf.read_native_flavors(nova.conf.CONF)


def _serve(ctxt: Any, spec: Any) -> bool:
    adopted = adopted_functions.serve_adopted_functions(ctxt, spec)
    is_changed = bool(adopted)
    if "extra_specs" in spec.flavor:
        specs = spec.flavor.extra_specs
        groups = flavors.parse_groups(specs)
        if any(map(native_flavors.may_be_native, groups)):
            changed = _replace(ctxt, spec, specs) or _forbid(
                ctxt, specs, groups
            )
            if changed:
                spec.flavor = spec.flavor.obj_clone()
                spec.flavor.extra_specs = changed
                is_changed = True
    return _forbid_pci(ctxt, spec, adopted) or is_changed


def _replace(
    ctxt: Any, spec: Any, specs: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the extra specs that request a profile, None for none.

    Those of a moving server's own flavor, unless it is resized to another.
    A live migration keeps the kind of the device, so it has none.
    """
    cell = moved_server.find_cell(spec)
    if cell is not None:
        server = moved_server.read(ctxt, cell, spec.instance_uuid, "flavor")
        own = server.flavor
        if own.flavorid == spec.flavor.flavorid and not any(
            map(
                native_flavors.may_be_native,
                flavors.parse_groups(own.extra_specs),
            )
        ):
            return dict(own.extra_specs)
        if server.task_state == task_states.MIGRATING:
            return None
    return native_flavors.apply(
        conf.read_native_flavors(nova.conf.CONF), specs
    )


def _forbid(
    ctxt: Any,
    specs: Mapping[str, str],
    groups: Iterable[flavors.RequestGroup],
) -> dict[str, str] | None:
    """Return extra specs whose native groups exclude our providers.

    None without such groups, or without our providers: Placement refuses
    a trait that it does not know.
    """
    native = list(filter(native_flavors.is_native, groups))
    if not native or not _has_own_providers(ctxt):
        return None
    return dict(specs) | {
        f"trait{group.suffix}:{names.OWNER_TRAIT}": _FORBIDDEN
        for group in native
    }


def _forbid_pci(ctxt: Any, spec: Any, adopted: frozenset[str]) -> bool:
    """Exclude our providers from the groups of PCI devices in Placement.

    Nova claims such a device by its own list, which has no device of this
    library. Since Nova 34 its own filter requires OWNER_NOVA of them instead.

    :param adopted: ids of the groups that ask for profiles.
    """
    if "requested_resources" not in spec:
        return False
    groups = [
        group
        for group in spec.requested_resources or ()
        if group.requester_id not in adopted
        and not (group.requester_id or "").startswith(attachment.GROUP_PREFIX)
        and any(map(pci_ids.is_accelerator, group.resources))
        and names.OWNER_TRAIT not in group.forbidden_traits
    ]
    if not groups or not _has_own_providers(ctxt):
        return False
    for group in groups:
        group.forbidden_traits = {*group.forbidden_traits, names.OWNER_TRAIT}
    return True


def _has_own_providers(ctxt: Any) -> bool:
    """Return whether Placement knows the trait of our providers."""
    return names.OWNER_TRAIT in provider_records.read(
        placement_getter(ctxt.global_id),
        f"/traits?name=in:{names.OWNER_TRAIT}",
        provider_records.parse_traits,
    )
