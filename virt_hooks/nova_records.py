# SPDX-License-Identifier: Apache-2.0
"""What Nova's database tells of this host's servers."""

from collections.abc import Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute import task_states

from nova_accel import model
from virt_hooks import slots, wanted

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


class Records:
    """Slots and images by server, as they were when they were read."""

    def __init__(self) -> None:
        self.slots: dict[str, tuple[model.Slot, ...]] = {}
        self.images: dict[str, frozenset[str]] = {}

    def forget(self, uuid: str) -> None:
        """Forget a server that is gone."""
        self.slots.pop(uuid, None)
        self.images.pop(uuid, None)

    def _add(self, instance: Any, given: Iterable[model.Slot]) -> None:
        known = self.slots.get(instance.uuid, ())
        self.slots[instance.uuid] = (*known, *given)
        self.images[instance.uuid] = wanted.images_of(instance)


def read(nodes: Iterable[str]) -> Records:
    """Return what the servers of this host hold.

    Those that are being moved away, and may come back, are among them.

    :param nodes: names of this host's compute nodes.
    :raises nova.exception.NovaException: the database can't be asked.
    """
    context, host = nova_context.get_admin_context(), nova.conf.CONF.host
    found = Records()
    for instance in objects.InstanceList.get_by_host(
        context, host, expected_attrs=["resources", "flavor"]
    ):
        found._add(instance, slots.of_resources(instance.resources))
    for node in nodes:
        for migration in objects.MigrationList.get_in_progress_and_error(
            context, host, node
        ):
            if migration.source_compute == host:
                _add_source(context, migration, found)
    return found


def _add_source(context: Any, migration: Any, found: Records) -> None:
    instance = objects.Instance.get_by_uuid(
        context,
        migration.instance_uuid,
        expected_attrs=["migration_context", "flavor"],
    )
    moved = instance.migration_context
    if moved is None or instance.host == nova.conf.CONF.host:
        return
    found._add(instance, slots.of_resources(moved.old_resources))


def is_rebuilt(instance: Any) -> bool:
    """Return whether a server is built anew where it is.

    Nova destroys and spawns it, and it keeps what it holds.
    """
    return (
        instance.host == nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )
