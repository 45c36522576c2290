# SPDX-License-Identifier: Apache-2.0
"""Ends of operations that only Nova decides about."""

from collections.abc import Iterator
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states

from tests.campaign import world as worlds


def was_ended_as_evacuated(host: str, who: str) -> bool:
    """Return whether a server of a host was ended when that returned.

    Nova never ends the migration of an evacuation whose new host dies. If
    the next evacuation fails, the server stays at its host, which ends the
    guest for the first one when it starts again (nova/compute/manager.py,
    _destroy_evacuated_instances).
    """
    migrations = objects.MigrationList.get_by_filters(
        nova_context.get_admin_context(), {"instance_uuid": who}
    )
    arrived = max(
        (m.id for m in migrations if m.dest_compute == host), default=0
    )
    return any(
        migration.migration_type == "evacuation"
        and migration.source_compute == host
        and migration.status == "completed"
        and migration.id > arrived
        for migration in migrations
    )


def given_back(who: str, placement: Any) -> Any:
    """Return the allocations of a server that a revert has not ended."""
    try:
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), who
        )
    except exception.InstanceNotFound:
        return None
    is_reverting = instance.task_state == task_states.RESIZE_REVERTING
    return placement.get(who) if is_reverting else None


def tidy(world: worlds.World) -> Iterator[str]:
    """Do what Nova leaves to its operator, accelerators or not."""
    for host in worlds.HOSTS:
        vms = world.connection(host)._vms
        for domain in list(vms.values()):
            yield f"domain {domain.UUIDString()} on {host}"
            domain._release_devices()
            vms.pop(domain.name(), None)
    for root in world.roots.values():
        path = f"/resource_providers/{root}/allocations"
        for consumer in world.placement.get(path).body["allocations"]:
            yield f"allocations of {consumer}"
            world.placement.delete(f"/allocations/{consumer}")
