# SPDX-License-Identifier: Apache-2.0
"""What Nova's database tells of this host's servers."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute import task_states, vm_states

from nova_accel import errors, flavors, model
from virt_hooks import book, lifecycle, slots, wanted

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


_Places = frozenset[tuple[str, str]]


class Records:
    """Slots and images by server, as they were when they were read."""

    def __init__(self) -> None:
        self.slots: dict[str, tuple[model.Slot, ...]] = {}
        self.groups: dict[str, tuple[flavors.RequestGroup, ...]] = {}
        self.images: dict[str, frozenset[str]] = {}
        #: Servers whose guests are on their way to this host.
        self.arriving: set[str] = set()
        #: Servers that are elsewhere, and may come back.
        self.leaving: set[str] = set()

    def forget(self, uuid: str) -> None:
        """Forget a server that is gone."""
        for known in (self.slots, self.groups, self.images):
            known.pop(uuid, None)

    def drop_given_on(self) -> None:
        """Drop what servers that are elsewhere had, and others have now.

        A move that failed is listed for ever; Nova may have handed the
        slots to somebody else long ago.
        """
        stay = [u for u in self.slots if u not in self.leaving]
        given = _places(s for uuid in stay for s in self.slots[uuid])
        for uuid in self.leaving:
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
        self.slots[uuid] = (*self.slots.get(uuid, ()), *given)
        self.groups[uuid] = _groups_of(instance, is_old)
        self.images[uuid] = wanted.images_of(instance)


class AtStart:
    """What was here when the service started. Thread-safe."""

    def __init__(self, accel: lifecycle.Lifecycle) -> None:
        """Write it down in the book of these accelerators, once asked."""
        self._accel = accel
        self._records = Records()
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

        While a card can't be read it is not known what stands in its
        slots: those of its servers are looked at again with each pass.
        It is for one thread at a time.

        :param nodes: returns the names of this host's compute nodes.
        :raises nova.exception.NovaException: Nova's database can't be asked.
        """
        if self._waiting is None:
            self._begin(read(nodes()))
        host = self._accel.host.state
        for uuid in self._still_waiting():
            given = self._slots_of(uuid)
            held = book.within(self._accel.claims_of(uuid), given)
            if len(book.only_made(held)) < len(given):
                self._accel.recall(
                    uuid,
                    given,
                    self._groups_of(uuid),
                    functools.partial(self._slots_of, uuid),
                )
        if host.complete and not host.unknown:
            with self._guard:
                self._waiting = {}

    def take_arriving(self) -> frozenset[str]:
        """Return, once, the servers that were on their way to this host."""
        with self._guard:
            found = frozenset(self._records.arriving)
            self._records.arriving.clear()
        return found

    def take_leaving(self) -> frozenset[str]:
        """Return, once, the servers that had been on their way from here."""
        with self._guard:
            found = frozenset(self._records.leaving)
            self._records.leaving.clear()
        return found

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

    def _begin(self, records: Records) -> None:
        held = {
            uuid: slots.below(self._accel.root, given)
            for uuid, given in records.slots.items()
        }
        with self._guard:
            self._records, self._waiting = records, held
            self.slots = frozenset(s for given in held.values() for s in given)


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
            elif migration.is_live_migration:
                _add_arriving(context, migration, found)
    found.drop_given_on()
    return found


def _add_source(context: Any, migration: Any, found: Records) -> None:
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


def _add_arriving(context: Any, migration: Any, found: Records) -> None:
    """Add what was claimed here for a guest that still runs elsewhere."""
    instance, moved = _moved(context, migration)
    if moved is None or instance.task_state != task_states.MIGRATING:
        return
    found._add(instance, slots.of_resources(moved.new_resources))
    found.arriving.add(instance.uuid)


def _groups_of(
    instance: Any, is_old: bool
) -> tuple[flavors.RequestGroup, ...]:
    """Return what a server asks for, or did before a resize; () if unknown."""
    with contextlib.suppress(errors.MalformedError):
        if is_old and instance.old_flavor:
            return flavors.parse_groups(instance.old_flavor.extra_specs)
        return wanted.groups_of(instance)
    return ()


def _moved(context: Any, migration: Any) -> tuple[Any, Any]:
    """Return an instance, and its migration context if it is of this one.

    An earlier migration that failed is listed for ever.
    """
    instance = objects.Instance.get_by_uuid(
        context,
        migration.instance_uuid,
        expected_attrs=["migration_context", "flavor"],
    )
    moved = instance.migration_context
    is_this = moved is not None and moved.migration_id == migration.id
    return instance, moved if is_this else None


def _places(given: Iterable[model.Slot]) -> _Places:
    """Return what slots are in any resource class."""
    return frozenset((slot.provider, slot.identifier) for slot in given)


def _but(
    given: Iterable[model.Slot], gone: _Places
) -> tuple[model.Slot, ...]:
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
