# SPDX-License-Identifier: Apache-2.0
"""Servers and migrations of this host in Nova's database."""

import contextlib
import enum
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states

from nova_accel import errors, model
from nova_accel.model import flavors
from virt_hooks.instance import instance_request
from virt_hooks.spawn import claim_store, lifecycle

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)
# Task states in which Nova removes a server's allocations before it saves
# that the server has left the host.
_LEAVING = (task_states.SHELVING_OFFLOADING, task_states.DELETING)
# Task states of a server that a resize has assigned to its new host.
_ARRIVING = (task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)

# Provider and identifier of slots, without their resource classes.
_SlotKeys = frozenset[tuple[str, str]]


class _Doubt(enum.IntEnum):
    """Doubt that Nova still assigns its slots to a server."""

    NONE = 0
    #: It is in error, or may return from another host.
    FAILED = 1
    NEVER_STARTED = 2
    #: Nova has ended its guest to delete it.
    ENDED = 3


class ServerRecords:
    """Slots, groups and images by server, as read at one time."""

    def __init__(self) -> None:
        self.slots: dict[str, tuple[model.Slot, ...]] = {}
        self.groups: dict[str, tuple[flavors.RequestGroup, ...]] = {}
        self.images: dict[str, frozenset[str]] = {}
        self._doubts: dict[str, _Doubt] = {}
        #: Servers that are to be spawned on this host.
        self.unbuilt: set[str] = set()

    def forget(self, uuid: str) -> None:
        """Forget a server that has no slots any more."""
        for records in (self.slots, self.groups, self.images):
            records.pop(uuid, None)

    def drop_reassigned(self) -> None:
        """Drop slots that Nova has assigned to another server since.

        A failed migration stays in the list of migrations. A server whose
        delete failed in the end, or whose failed build could not be saved,
        keeps its slots in Nova's database. Of two servers with one slot the
        less doubtful one has it; both if they are equally doubtful.
        """
        least: dict[tuple[str, str], _Doubt] = {}
        for uuid, server_slots in self.slots.items():
            for key in _keys(server_slots):
                least[key] = min(
                    self._doubts[uuid], least.get(key, _Doubt.ENDED)
                )
        for uuid, server_slots in self.slots.items():
            reassigned = frozenset(
                key
                for key in _keys(server_slots)
                if least[key] < self._doubts[uuid]
            )
            self.slots[uuid] = _exclude(server_slots, reassigned)

    def add(
        self,
        instance: Any,
        server_slots: Iterable[model.Slot],
        consumer: str = "",
        is_old: bool = False,
        is_leaving: bool = False,
    ) -> None:
        """Add a server.

        :param consumer: uuid of the consumer if it is not the server.
        :param is_old: the slots are those before a resize.
        :param is_leaving: it is on another host, and may return.
        """
        uuid = consumer or instance.uuid
        self._doubts[uuid] = max(
            _doubt(instance),
            _Doubt.FAILED if is_leaving else _Doubt.NONE,
            self._doubts.get(uuid, _Doubt.NONE),
        )
        if not is_old and not _is_built(instance):
            self.unbuilt.add(uuid)
        self.slots[uuid] = (*self.slots.get(uuid, ()), *server_slots)
        self.groups[uuid] = _groups_of(instance, is_old, self.slots[uuid])
        self.images[uuid] = instance_request.images_of(self.groups[uuid])


class StartupServers:
    """Servers of this host when the service started. Thread-safe."""

    def __init__(self, accel: lifecycle.Lifecycle) -> None:
        self._accel = accel
        self._records = ServerRecords()
        #: Slots that servers had.
        self.slots: frozenset[model.Slot] = frozenset()
        #: Slots without claims by server; None: not read yet.
        self._awaited: dict[str, tuple[model.Slot, ...]] | None = None
        self._guard = threading.Lock()

    def images(self) -> frozenset[str]:
        """Return the ids of the images that those servers may need."""
        with self._guard:
            image_sets = list(self._records.images.values())
        return frozenset(image for images in image_sets for image in images)

    def restore_claims(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Restore the claims of this host's servers, once.

        The servers are read again with each pass while another
        nova-compute of this host runs, and once more after it has ended.

        While a card or a function is absent or can't be read, the
        partitions in its slots are unknown: the claims on these slots are
        restored again with each pass. Not reentrant.

        :param nodes: returns the names of this host's compute nodes.
        :raises nova.exception.NovaException: Nova's database can't be read.
        """
        self.read_servers(nodes)
        host = self._accel.host.state
        for uuid in self._awaited_slots():
            server_slots = self._slots_of(uuid)
            if self._accel.is_busy(server_slots):
                continue  # loading a bitstream may take an hour
            claims = claim_store.in_slots(
                self._accel.claims_of(uuid), server_slots
            )
            if len(claim_store.made_only(claims)) < len(server_slots):
                self._accel.restore(
                    uuid,
                    server_slots,
                    self._groups_of(uuid),
                    functools.partial(self._slots_of, uuid),
                    uuid not in self._records.unbuilt,
                )
        if host.complete and not host.unknown:
            self._await_unclaimed()

    def read_servers(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Read the slots of this host's servers; no claim is restored yet.

        :raises nova.exception.NovaException: Nova's database can't be read.
        """
        is_alone = self._accel.acquire_service_lock()
        if self._awaited is None or not (is_alone and self._accel.is_alone):
            self._set_records(read(nodes()))
            self._accel.set_alone(is_alone)
        else:
            self._await_unclaimed()

    def list_awaited(self) -> tuple[model.Slot, ...]:
        """Return the slots whose claims are still to be restored."""
        return tuple(
            slot
            for server_slots in self._awaited_slots().values()
            for slot in server_slots
        )

    def _await_unclaimed(self) -> None:
        """Await only servers with slots whose claims are not decided yet.

        Slots that other servers have claimed meanwhile are dropped.
        """
        claims = self._accel.claims()
        with self._guard:
            awaited = {}
            for uuid, server_slots in (self._awaited or {}).items():
                own = [c for c in claims if c.consumer == uuid]
                others = [c for c in claims if c.consumer != uuid]
                remaining = _exclude(
                    server_slots, _keys(claim_store.slots_of(others))
                )
                claimed = _keys(claim_store.slots_of(own))
                if not _keys(
                    remaining
                ) <= claimed or self._accel.has_undecided(uuid):
                    awaited[uuid] = remaining
            self._awaited = awaited

    def _groups_of(self, uuid: str) -> tuple[flavors.RequestGroup, ...]:
        with self._guard:
            return self._records.groups.get(uuid, ())

    def _awaited_slots(self) -> dict[str, tuple[model.Slot, ...]]:
        with self._guard:
            return dict(self._awaited or {})

    def _slots_of(self, uuid: str) -> tuple[model.Slot, ...]:
        """Return a server's slots whose claims are to be restored."""
        return self._awaited_slots().get(uuid, ())

    def forget(self, uuid: str, released: Iterable[model.Slot]) -> None:
        """Forget a server whose slots were all released."""
        with self._guard:
            self._forget_slots(uuid, _keys(released))
            (self._awaited or {}).pop(uuid, None)
            self._records.forget(uuid)

    def forget_slots(self, uuid: str, released: Iterable[model.Slot]) -> None:
        """Forget some slots of a server that keeps its others."""
        keys = _keys(released)
        with self._guard:
            self._forget_slots(uuid, keys)
            for records in (self._awaited or {}, self._records.slots):
                if uuid in records:
                    records[uuid] = _exclude(records[uuid], keys)

    def _forget_slots(self, uuid: str, keys: _SlotKeys) -> None:
        """Forget slots of one server that no other server has by now."""
        others = _keys(
            slot
            for other, server_slots in self._records.slots.items()
            if other != uuid
            for slot in server_slots
        )
        self.slots = frozenset(_exclude(self.slots, keys - others))

    def _set_records(self, records: ServerRecords) -> None:
        awaited = {
            uuid: instance_request.slots_below_root(
                self._accel.root, server_slots
            )
            for uuid, server_slots in records.slots.items()
        }
        with self._guard:
            self._records, self._awaited = records, awaited
            self.slots = frozenset(
                slot
                for server_slots in awaited.values()
                for slot in server_slots
            )


def read(nodes: Iterable[str]) -> ServerRecords:
    """Return the servers of this host.

    Servers that are migrating away, and may return, are included.

    :param nodes: names of this host's compute nodes.
    :raises nova.exception.NovaException: the database can't be read.
    """
    context, host = nova_context.get_admin_context(), nova.conf.CONF.host
    records = ServerRecords()
    for instance in objects.InstanceList.get_by_host(
        context, host, expected_attrs=["resources", "flavor"]
    ):
        records.add(instance, instance_request.slots_of(instance.resources))
    for node in nodes:
        for migration in objects.MigrationList.get_in_progress_and_error(
            context, host, node
        ):
            if migration.source_compute == host:
                _add_leaving(context, migration, records)
            elif migration.is_live_migration:
                _add_arriving(context, migration, records)
    records.drop_reassigned()
    return records


def read_slots(nodes: Iterable[str]) -> frozenset[model.Slot]:
    """Return the slots of this host's servers; see ``read``."""
    return frozenset(
        slot
        for server_slots in read(nodes).slots.values()
        for slot in server_slots
    )


def _add_leaving(context: Any, migration: Any, records: ServerRecords) -> None:
    """Add the slots that a server has here while it migrates away."""
    instance, migration_context = _read_migration(context, migration)
    if migration_context is None:
        return
    if instance.host != nova.conf.CONF.host:
        old = instance_request.slots_of(migration_context.old_resources)
        records.add(instance, old, is_old=True, is_leaving=True)
    elif instance.vm_state == vm_states.RESIZED:
        old = instance_request.slots_released_by_resize(instance, migration)
        records.add(instance, old, migration.uuid, is_old=True)


def _add_arriving(
    context: Any, migration: Any, records: ServerRecords
) -> None:
    """Add the slots claimed here for a guest that runs on another host."""
    instance, migration_context = _read_migration(context, migration)
    if (
        migration_context is None
        or instance.task_state != task_states.MIGRATING
    ):
        return
    records.add(
        instance, instance_request.slots_of(migration_context.new_resources)
    )


def _doubt(instance: Any) -> _Doubt:
    """Return the doubt that Nova still assigns its slots to a server.

    Nova saves ``terminated_at`` before it frees the slots, and sets the server
    to ERROR if the delete fails after that (nova/compute/manager.py,
    _delete_instance). A rebuild starts such a server again.
    """
    started, ended = instance.launched_at, instance.terminated_at
    if ended is not None and (started is None or started <= ended):
        return _Doubt.ENDED
    if started is None:
        return _Doubt.NEVER_STARTED
    if instance.vm_state == vm_states.ERROR:
        return _Doubt.FAILED
    return _Doubt.NONE


def _is_built(instance: Any) -> bool:
    """Return whether a server has been spawned on its current host."""
    return (
        instance.launched_at is not None
        and instance.vm_state != vm_states.SHELVED_OFFLOADED
        and instance.task_state not in _ARRIVING
    )


def _groups_of(
    instance: Any, is_old: bool, slots: Iterable[model.Slot]
) -> tuple[flavors.RequestGroup, ...]:
    """Return the request groups of a server, empty if unreadable.

    :param is_old: those of its flavor before a resize.
    :param slots: its slots on this host.
    """
    flavor = (is_old and instance.old_flavor) or instance.flavor
    with contextlib.suppress(errors.MalformedError):
        return instance_request.groups_of(instance, flavor, slots)
    return ()


def _read_migration(context: Any, migration: Any) -> tuple[Any, Any]:
    """Return a migration's instance, and its migration context.

    The context is None if it is of a later migration: failed migrations
    stay in the list. Both are None if the server was deleted meanwhile.
    """
    try:
        instance = objects.Instance.get_by_uuid(
            context,
            migration.instance_uuid,
            expected_attrs=["migration_context", "flavor"],
        )
    except exception.InstanceNotFound:
        return None, None
    migration_context = instance.migration_context
    is_current = (
        migration_context is not None
        and migration_context.migration_id == migration.id
    )
    return instance, migration_context if is_current else None


def _keys(server_slots: Iterable[model.Slot]) -> _SlotKeys:
    return frozenset((slot.provider, slot.identifier) for slot in server_slots)


def _exclude(
    server_slots: Iterable[model.Slot], keys: _SlotKeys
) -> tuple[model.Slot, ...]:
    return tuple(
        slot
        for slot in server_slots
        if (slot.provider, slot.identifier) not in keys
    )


def is_rebuilt(instance: Any) -> bool:
    """Return whether a server is being rebuilt on its host.

    Nova destroys and spawns it, and it keeps its slots.
    """
    return (
        instance.host == nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )


def is_leaving(instance: Any) -> bool:
    """Return whether Nova takes a server from its host, or deletes it.

    Nova saves the state of a server that is offloaded or deleted before it
    removes the host from the server's record (nova/compute/manager.py,
    _shelve_offload_instance).
    """
    return instance.task_state in _LEAVING or bool(
        vm_states.allow_resource_removal(
            instance.vm_state, instance.task_state
        )
    )


def is_evacuated(instance: Any) -> bool:
    """Return whether a server of another host is being rebuilt here."""
    return (
        instance.host != nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )
