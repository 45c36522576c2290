# SPDX-License-Identifier: Apache-2.0
"""Servers and migrations of this host, read from Nova's database.

Each function raises ``nova.exception.NovaException`` if it can't be read.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states

# Attributes of an instance that the ledger needs.
SLOTS = ("resources", "migration_context")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of one host, as Nova's objects.

    ``instances`` are those of the host's servers and of the ``migrations``,
    by uuid; the migrations are in progress or in error.
    """

    instances: dict[str, Any]
    migrations: list[Any]

    def __or__(self, other: "Records") -> "Records":
        return Records(
            instances=self.instances | other.instances,
            migrations=self.migrations + other.migrations,
        )


def read(
    nodes: Iterable[str],
    attributes: Iterable[str] = SLOTS,
    consumers: Collection[str] | None = None,
) -> Records:
    """Return the records of this host.

    :param nodes: names of this host's compute nodes.
    :param attributes: of the instances.
    :param consumers: of servers of other hosts only these are read, and
        those of these migrations.
    """
    context, host = nova_context.get_admin_context(), nova.conf.CONF.host
    instances = {
        instance.uuid: instance
        for instance in objects.InstanceList.get_by_host(
            context, host, expected_attrs=[*attributes]
        )
    }
    migrations = [
        migration
        for node in nodes
        for migration in objects.MigrationList.get_in_progress_and_error(
            context, host, node
        )
    ]
    for each in migrations:
        uuid = each.instance_uuid
        if uuid not in instances and (
            consumers is None or uuid in consumers or each.uuid in consumers
        ):
            if instance := find_instance(uuid, attributes):
                instances[uuid] = instance
    return Records(instances=instances, migrations=migrations)


def is_idle(records: Records, consumers: Collection[str]) -> bool:
    """Return whether no operation of some consumers is in progress.

    None that has failed either: the server is in error.

    :param consumers: uuids of servers and migrations.
    """
    is_moving = any(
        move.status != "error"
        and not {move.uuid, move.instance_uuid}.isdisjoint(consumers)
        for move in records.migrations
    )
    return not is_moving and all(
        instance.task_state is None and instance.vm_state != vm_states.ERROR
        for uuid, instance in records.instances.items()
        if uuid in consumers
    )


def read_reverting(attributes: Iterable[str] = SLOTS) -> Records:
    """Return the servers that return to this host in a revert.

    Nova calls the migration of such a server reverted as soon as its other
    host has ended it (nova/compute/resource_tracker.py,
    drop_move_claim_at_dest), and makes the server this host's later.

    :param attributes: of the instances.
    """
    context, host = nova_context.get_admin_context(), nova.conf.CONF.host
    migrations = objects.MigrationList.get_by_filters(
        context, {"source_compute": host, "status": "reverted"}
    )
    uuids = sorted({each.instance_uuid for each in migrations})
    reverting = uuids and objects.InstanceList.get_by_filters(
        context,
        {
            "uuid": uuids,
            "task_state": task_states.RESIZE_REVERTING,
            "deleted": False,
        },
        expected_attrs=[*attributes],
    )
    instances = {each.uuid: each for each in reverting if each.host != host}
    return Records(
        instances=instances,
        migrations=[m for m in migrations if m.instance_uuid in instances],
    )


def read_instance(uuid: str, attributes: Iterable[str] = SLOTS) -> Any:
    """Return a ``nova.objects.Instance``.

    :raises nova.exception.InstanceNotFound: it is deleted.
    """
    return objects.Instance.get_by_uuid(
        nova_context.get_admin_context(), uuid, expected_attrs=[*attributes]
    )


def find_instance(uuid: str, attributes: Iterable[str] = SLOTS) -> Any:
    """Return a ``nova.objects.Instance``, None if it is deleted."""
    with contextlib.suppress(exception.InstanceNotFound):
        return read_instance(uuid, attributes)
    return None


def read_last_move(instance: Any) -> Any:
    """Return the migration of a server's migration context, if it has one."""
    move = instance.migration_context
    if move is None:
        return None
    return objects.Migration.get_by_id(
        nova_context.get_admin_context(), move.migration_id
    )
