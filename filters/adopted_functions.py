# SPDX-License-Identifier: Apache-2.0
"""Moves of servers whose PCI functions or Cyborg's devices were adopted.

Nova keeps the flavor and the PCI requests of a server's first request in the
API database, and generates request groups from them before nova-scheduler is
called. Its conductor looks for the result of each group by its id. So a
group of an adopted function is not removed: it asks for the profile that the
server's own flavor has by now. The groups of a device profile are removed:
the conductor looks for them only where that flavor has the profile.
"""

import collections
import re
from collections.abc import Iterator
from typing import Any

from filters import moved_server
from nova_accel.config.lines import native_flavors
from nova_accel.model import flavors, names

# Of a flavor's device profile; a port's has the port's uuid behind the number
# (nova/accelerator/cyborg.py, get_device_profile_group_requester_id).
_CYBORG_GROUP = re.compile(r"device_profile_\d+")
_PROFILE_TRAITS = (*names.PROFILE_PREFIXES, "CUSTOM_ACCELERATOR_")


def serve_adopted_functions(ctxt: Any, spec: Any) -> frozenset[str]:
    """Change the request of a moving server, as the module says.

    :param spec: a RequestSpec.
    :returns: ids of the groups that ask for profiles now.
    :raises nova.exception.NovaException: the server can't be read.
    """
    cell = moved_server.find_cell(spec)
    requested = _count_requests(spec)
    has_profile = (
        "extra_specs" in spec.flavor
        and native_flavors.DEVICE_PROFILE in spec.flavor.extra_specs
    )
    if cell is None or not (requested or has_profile):
        return frozenset()
    own = moved_server.read(ctxt, cell, spec.instance_uuid, "flavor").flavor
    if has_profile and own.flavorid == spec.flavor.flavorid:
        return _drop_device_profile(spec, own)
    aliases = native_flavors.parse_aliases(own.extra_specs)
    allowed = collections.Counter(aliases)
    if own.flavorid != spec.flavor.flavorid or requested <= allowed:
        return frozenset()
    adopted = frozenset(_reduce_requests(spec, allowed))
    groups = [
        group
        for group in spec.requested_resources or ()
        if group.requester_id in adopted
    ]
    extra_specs = dict(own.extra_specs)
    profiles = filter(_has_profile, flavors.parse_groups(extra_specs))
    for group, profile in zip(groups, profiles, strict=False):
        group.resources = dict(profile.resources)
        group.required_traits = set(profile.required)
        group.forbidden_traits = set(profile.forbidden)
        extra_specs = _remove_group(extra_specs, profile.suffix)
    spec.flavor = spec.flavor.obj_clone()
    spec.flavor.extra_specs = extra_specs
    return frozenset(group.requester_id for group in groups)


def _drop_device_profile(spec: Any, own: Any) -> frozenset[str]:
    """Ask for what a server's own flavor has in place of a device profile.

    Return the ids of the groups that are removed.
    """
    if native_flavors.DEVICE_PROFILE in own.extra_specs:
        return frozenset()
    groups = spec.requested_resources or ()
    removed = frozenset(
        group.requester_id
        for group in groups
        if _CYBORG_GROUP.fullmatch(group.requester_id or "")
    )
    spec.requested_resources = [
        group for group in groups if group.requester_id not in removed
    ]
    spec.flavor = spec.flavor.obj_clone()
    spec.flavor.extra_specs = dict(own.extra_specs)
    return removed


def _count_requests(spec: Any) -> collections.Counter[str]:
    """Return the requested functions by alias; ports have none."""
    requested: collections.Counter[str] = collections.Counter()
    has_requests = "pci_requests" in spec and spec.pci_requests is not None
    for request in spec.pci_requests.requests if has_requests else ():
        if request.alias_name is not None:
            requested[request.alias_name] += request.count
    return requested


def _reduce_requests(
    spec: Any, allowed: collections.Counter[str]
) -> Iterator[str]:
    """Remove the requests that the server's own flavor has not any more.

    Yield the ids of their groups (RequestSpec,
    generate_request_groups_from_pci_requests).

    :param allowed: aliases of that flavor; they are used up.
    """
    requests = spec.pci_requests.obj_clone()
    for request in requests.requests:
        if request.alias_name is None:
            continue  # of a network port
        count = min(request.count, allowed[request.alias_name])
        allowed[request.alias_name] -= count
        for number in range(count, request.count):
            yield f"{request.request_id}-{number}"
        request.count = count
    requests.requests = [each for each in requests.requests if each.count]
    spec.pci_requests = requests


def _has_profile(group: flavors.RequestGroup) -> bool:
    """Return whether a group has a suffix, and requires a profile."""
    return bool(group.suffix) and any(
        trait.startswith(_PROFILE_TRAITS) for trait in group.required
    )


def _remove_group(extra_specs: dict[str, str], suffix: str) -> dict[str, str]:
    kinds = (f"resources{suffix}", f"trait{suffix}")
    return {
        key: value
        for key, value in extra_specs.items()
        if key.partition(":")[0] not in kinds
    }
