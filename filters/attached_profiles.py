# SPDX-License-Identifier: Apache-2.0
"""Request groups of attached profiles, for servers that move.

Nova's RequestSpec has the flavor only. The record of the attached
profiles is in the system_metadata of the server, which the scheduler reads
from its cell. Placement then allocates flavor and attached profiles
together, or neither, and Nova's claim on the destination has slots of both.
"""

import logging
from typing import Any

from nova import objects
from nova.compute import task_states
from nova.scheduler import request_filter

from filters import moved_server
from nova_accel.model import attachment, flavors

LOG = logging.getLogger(__name__)


@request_filter.trace_request_filter
def request_attached_profiles(ctxt: Any, spec: Any) -> bool:
    """Add the groups of a server's attached profiles to its request.

    Only a server that moves is read: for it Nova names the cell in the
    request. The request of an evacuation is unchanged: hosts with room are
    preferred only, and the new host attaches what it has room for. That of
    a server that can't be read is unchanged, too: the hosts refuse a move
    that would lose a profile.

    :returns: whether groups were added.
    """
    cell = moved_server.find_cell(spec)
    if cell is None:
        return False
    try:
        groups, is_evacuated = _read_groups(ctxt, cell, spec.instance_uuid)
        requested = spec.requested_resources or []
    except Exception:
        LOG.exception(
            "Can't read the attached profiles of server %s;"
            " if it has any, its move will be refused",
            spec.instance_uuid,
        )
        return False
    if is_evacuated:
        return False
    # Of a live migration that tries several hosts, Nova sends it again.
    names = {group.requester_id for group in requested}
    added = [
        objects.RequestGroup(
            requester_id=group.suffix,
            use_same_provider=True,
            resources=dict(group.resources),
            required_traits=set(group.required),
        )
        for group in groups
        if group.suffix not in names
    ]
    if added:
        spec.requested_resources = [*requested, *added]
    return bool(added)


def list_groups(spec: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the groups of attached profiles that a RequestSpec has."""
    if "requested_resources" not in spec:
        return ()
    return tuple(
        flavors.RequestGroup(
            suffix=group.requester_id,
            resources=dict(group.resources),
            required=frozenset(group.required_traits),
        )
        for group in spec.requested_resources or ()
        if (group.requester_id or "").startswith(attachment.GROUP_PREFIX)
    )


def read_evacuated_groups(spec: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the groups of what an evacuated server had attached.

    Empty for any other request.

    :raises nova.exception.NovaException: the server can't be read.
    """
    cell = moved_server.find_cell(spec)
    if cell is None or list_groups(spec):
        return ()
    groups, is_evacuated = _read_groups(
        spec._context, cell, spec.instance_uuid
    )
    return groups if is_evacuated else ()


def _read_groups(
    ctxt: Any, cell: Any, uuid: str
) -> tuple[tuple[flavors.RequestGroup, ...], bool]:
    """Return the groups of a server's attachments.

    :returns: the groups, and whether the server is being evacuated.
    """
    instance = moved_server.read(ctxt, cell, uuid, "system_metadata")
    groups = tuple(
        each.open_group()
        for each in attachment.parse_metadata(instance.system_metadata)
        if each.state is attachment.AttachmentState.ATTACHED
    )
    return groups, instance.task_state == task_states.REBUILDING
