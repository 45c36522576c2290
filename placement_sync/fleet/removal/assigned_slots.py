# SPDX-License-Identifier: Apache-2.0
"""Slots that Nova has assigned to servers, in Nova's database.

They are in ``instance.resources``, which no API shows. As nova-compute does,
this process has them read and written by nova-conductor.
"""

from collections.abc import Collection, Iterator
from typing import Any

from nova import context, exception, objects
from nova.conductor import rpcapi
from nova.objects import base

# Fields of a migration context with slots before and after the move.
_MOVED = ("old_resources", "new_resources")


class AssignedSlots:
    """Slots of one host's servers on some resource providers."""

    def __init__(self, host: str, node: str, owned: Collection[str]) -> None:
        """Read nothing yet.

        :param host: name of the compute service.
        :param node: name of the compute node.
        :param owned: uuids of the providers.
        """
        self._host, self._node, self._owned = host, node, owned
        self._context = context.get_admin_context()

    def list_moving(self) -> tuple[str, ...]:
        """Return the servers with such slots whose migration is not over.

        :raises nova.exception.NovaException: the conductor can't be asked.
        """
        migrations = objects.MigrationList.get_in_progress_by_host_and_node(
            self._context, self._host, self._node
        )
        uuids = {migration.instance_uuid for migration in migrations}
        return tuple(sorted(filter(self._has_slots, uuids)))

    def clear(self) -> tuple[str, ...]:
        """Remove the slots from the servers; return the servers' uuids.

        Other resources of a server stay: Nova's persistent memory.

        :raises nova.exception.NovaException: the conductor can't be asked.
        """
        cleared = []
        for instance in objects.InstanceList.get_by_host(
            self._context, self._host, expected_attrs=["resources"]
        ):
            resources = list(instance.resources or ())
            others = [r for r in resources if not self._is_owned(r)]
            if others == resources:
                continue
            instance.resources = (
                objects.ResourceList(objects=others) if others else None
            )
            instance.save()
            cleared.append(str(instance.uuid))
        return tuple(sorted(cleared))

    def _has_slots(self, uuid: str) -> bool:
        try:
            instance = objects.Instance.get_by_uuid(
                self._context,
                uuid,
                expected_attrs=["resources", "migration_context"],
            )
        except exception.InstanceNotFound:
            return False
        return any(map(self._is_owned, _list_resources(instance)))

    def _is_owned(self, resource: Any) -> bool:
        return resource.provider_uuid in self._owned


def use_conductor() -> None:
    """Let Nova's objects ask nova-conductor, as those of nova-compute do."""
    objects.register_all()
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()


def _list_resources(instance: Any) -> Iterator[Any]:
    yield from instance.resources or ()
    moved = instance.migration_context
    for field in _MOVED if moved else ():
        yield from getattr(moved, field) or ()
