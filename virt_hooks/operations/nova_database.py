# SPDX-License-Identifier: Apache-2.0
"""Servers and migrations of this host in Nova's database."""

import contextlib
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
from virt_hooks.instance import instance_request, slots
from virt_hooks.spawn import claim_store, lifecycle

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)
# Of a server that Nova has assigned to the host of its new size.
_ARRIVING = (task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)

_Places = frozenset[tuple[str, str]]


class ServerRecords:
    """Slots and images by server, as they were when they were read."""

    def __init__(self) -> None:
        self.slots: dict[str, tuple[model.Slot, ...]] = {}
        self.groups: dict[str, tuple[flavors.RequestGroup, ...]] = {}
        self.images: dict[str, frozenset[str]] = {}
        #: Servers whose guests are on their way to this host.
        self.arriving: set[str] = set()
        #: Servers that are elsewhere, and may come back.
        self.leaving: set[str] = set()
        #: Servers that were never started, or are in error.
        self.failed: set[str] = set()
        #: Servers that are to be spawned on this host.
        self.unbuilt: set[str] = set()

    def forget(self, uuid: str) -> None:
        """Forget a server that is gone."""
        for known in (self.slots, self.groups, self.images):
            known.pop(uuid, None)

    def drop_given_on(self) -> None:
        """Drop slots that Nova has given to another server since.

        A move that failed is listed for ever. A server whose delete failed
        in the end, or whose failed build could not be saved, keeps its slots
        in Nova's database.
        """
        stale = self.slots.keys() & (self.leaving | self.failed)
        given = _places(
            slot
            for uuid, held in self.slots.items()
            if uuid not in stale
            for slot in held
        )
        for uuid in stale:
            self.slots[uuid] = _but(self.slots[uuid], given)

    def _add(
        self,
        instance: Any,
        given: Iterable[model.Slot],
        consumer: str = "",
        is_old: bool = False,
    ) -> None:
        """Add a server; ``is_old``: with what it had before a resize."""
        uuid = consumer or instance.uuid
        is_in_error = instance.vm_state == vm_states.ERROR
        if is_in_error or instance.launched_at is None:
            self.failed.add(uuid)
        if not is_old and not _is_built(instance):
            self.unbuilt.add(uuid)
        self.slots[uuid] = (*self.slots.get(uuid, ()), *given)
        self.groups[uuid] = _groups_of(instance, is_old)
        self.images[uuid] = instance_request.images_of(instance)


class StartupServers:
    """What was here when the service started. Thread-safe."""

    def __init__(self, accel: lifecycle.Lifecycle) -> None:
        """Write it down in the book of these accelerators, once asked."""
        self._accel = accel
        self._records = ServerRecords()
        #: Slots that servers held.
        self.slots: frozenset[model.Slot] = frozenset()
        #: Slots by server that are to be written down; None: not asked yet.
        self._waiting: dict[str, tuple[model.Slot, ...]] | None = None
        self._guard = threading.Lock()

    def images(self) -> frozenset[str]:
        """Return the ids of the images that those servers may need."""
        with self._guard:
            named = list(self._records.images.values())
        return frozenset(image for images in named for image in images)

    def recall(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Write down what this host's servers hold, once.

        They are read again with each pass while another nova-compute of
        this host runs, and once more after it has ended.

        While a card or a function is away or can't be read it is not known
        what stands in its slots: those of its servers are compared again
        with each pass. It is for one thread at a time.

        :param nodes: returns the names of this host's compute nodes.
        :raises nova.exception.NovaException: Nova's database can't be asked.
        """
        self.learn(nodes)
        host = self._accel.host.state
        for uuid in self._still_waiting():
            given = self._slots_of(uuid)
            if self._accel.is_busy(given):
                continue  # a bitstream may take an hour; passes come again
            held = claim_store.within(self._accel.claims_of(uuid), given)
            if len(claim_store.only_made(held)) < len(given):
                self._accel.recall(
                    uuid,
                    given,
                    self._groups_of(uuid),
                    functools.partial(self._slots_of, uuid),
                    uuid not in self._records.unbuilt,
                )
        if host.complete and not host.unknown:
            self._wait_for_unclaimed()

    def learn(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Learn which slots are to be written down; nothing is yet.

        :raises nova.exception.NovaException: Nova's database can't be asked.
        """
        lock = self._accel.service_lock
        is_alone = lock is None or lock.acquire()
        if self._waiting is None or not (is_alone and self._accel.is_alone):
            self._begin(read(nodes()))
            self._accel.is_alone = is_alone
        else:
            self._wait_for_unclaimed()

    def awaited(self) -> tuple[model.Slot, ...]:
        """Return the slots of servers that are still to be written down."""
        waiting = self._still_waiting().values()
        return tuple(slot for given in waiting for slot in given)

    def take_arriving(self) -> frozenset[str]:
        """Return, once, the servers that were on their way to this host."""
        with self._guard:
            found = frozenset(self._records.arriving)
            self._records.arriving.clear()
        return found

    def _wait_for_unclaimed(self) -> None:
        """Go on waiting for the slots that have no claim yet.

        Slots that other servers have claims on by now are dropped.
        """
        claims = self._accel.claims()
        with self._guard:
            waiting = {}
            for uuid, unclaimed in (self._waiting or {}).items():
                own = [c for c in claims if c.consumer == uuid]
                others = [c for c in claims if c.consumer != uuid]
                rest = _but(unclaimed, _places(claim_store.slots_of(others)))
                if not _places(rest) <= _places(claim_store.slots_of(own)):
                    waiting[uuid] = rest
            self._waiting = waiting

    def _groups_of(self, uuid: str) -> tuple[flavors.RequestGroup, ...]:
        with self._guard:
            return self._records.groups.get(uuid, ())

    def _still_waiting(self) -> dict[str, tuple[model.Slot, ...]]:
        with self._guard:
            return dict(self._waiting or {})

    def _slots_of(self, uuid: str) -> tuple[model.Slot, ...]:
        """Return a server's slots that are still to be written down."""
        return self._still_waiting().get(uuid, ())

    def forget(self, uuid: str, given: Iterable[model.Slot]) -> None:
        """Forget a server that holds its slots no more."""
        with self._guard:
            self._forget_slots(uuid, _places(given))
            (self._waiting or {}).pop(uuid, None)
            self._records.forget(uuid)

    def give_up(self, uuid: str, given: Iterable[model.Slot]) -> None:
        """Forget some slots of a server that keeps its others."""
        gone = _places(given)
        with self._guard:
            self._forget_slots(uuid, gone)
            for known in (self._waiting or {}, self._records.slots):
                if uuid in known:
                    known[uuid] = _but(known[uuid], gone)

    def _forget_slots(self, uuid: str, gone: _Places) -> None:
        """Forget slots of one server that no other one has by now."""
        others = _places(
            slot
            for other, given in self._records.slots.items()
            if other != uuid
            for slot in given
        )
        self.slots = frozenset(_but(self.slots, gone - others))

    def _begin(self, records: ServerRecords) -> None:
        held = {
            uuid: slots.below(self._accel.root, given)
            for uuid, given in records.slots.items()
        }
        with self._guard:
            self._records, self._waiting = records, held
            self.slots = frozenset(s for given in held.values() for s in given)


def read(nodes: Iterable[str]) -> ServerRecords:
    """Return what the servers of this host hold.

    Those that are being moved away, and may come back, are among them.

    :param nodes: names of this host's compute nodes.
    :raises nova.exception.NovaException: the database can't be asked.
    """
    context, host = nova_context.get_admin_context(), nova.conf.CONF.host
    found = ServerRecords()
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
            elif migration.is_live_migration:
                _add_arriving(context, migration, found)
    found.drop_given_on()
    return found


def _add_source(context: Any, migration: Any, found: ServerRecords) -> None:
    instance, moved = _moved(context, migration)
    if moved is None:
        return
    if instance.host != nova.conf.CONF.host:
        old = slots.of_resources(moved.old_resources)
        found._add(instance, old, is_old=True)
        found.leaving.add(instance.uuid)
    elif instance.vm_state == vm_states.RESIZED:
        old = slots.of_migration(instance, migration)
        found._add(instance, old, migration.uuid, is_old=True)


def _add_arriving(context: Any, migration: Any, found: ServerRecords) -> None:
    """Add what was claimed here for a guest that still runs elsewhere."""
    instance, moved = _moved(context, migration)
    if moved is None or instance.task_state != task_states.MIGRATING:
        return
    found._add(instance, slots.of_resources(moved.new_resources))
    found.arriving.add(instance.uuid)


def _is_built(instance: Any) -> bool:
    """Return whether a server has been spawned on the host that it is on."""
    return (
        instance.launched_at is not None
        and instance.vm_state != vm_states.SHELVED_OFFLOADED
        and instance.task_state not in _ARRIVING
    )


def _groups_of(
    instance: Any, is_old: bool
) -> tuple[flavors.RequestGroup, ...]:
    """Return what a server asks for, or did before a resize; () if unknown."""
    with contextlib.suppress(errors.MalformedError):
        if is_old and instance.old_flavor:
            return flavors.parse_groups(instance.old_flavor.extra_specs)
        return instance_request.groups_of(instance)
    return ()


def _moved(context: Any, migration: Any) -> tuple[Any, Any]:
    """Return an instance, and its migration context if it is of this one.

    An earlier migration that failed is listed for ever. A server may be
    deleted since its migrations were listed.
    """
    try:
        instance = objects.Instance.get_by_uuid(
            context,
            migration.instance_uuid,
            expected_attrs=["migration_context", "flavor"],
        )
    except exception.InstanceNotFound:
        return None, None
    moved = instance.migration_context
    is_this = moved is not None and moved.migration_id == migration.id
    return instance, moved if is_this else None


def _places(given: Iterable[model.Slot]) -> _Places:
    """Return what slots are in any resource class."""
    return frozenset((slot.provider, slot.identifier) for slot in given)


def _but(given: Iterable[model.Slot], gone: _Places) -> tuple[model.Slot, ...]:
    """Return the slots that are in none of some places."""
    return tuple(s for s in given if (s.provider, s.identifier) not in gone)


def is_rebuilt(instance: Any) -> bool:
    """Return whether a server is built anew where it is.

    Nova destroys and spawns it, and it keeps what it holds.
    """
    return (
        instance.host == nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )
