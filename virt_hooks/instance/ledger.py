# SPDX-License-Identifier: Apache-2.0
"""Ledger: which slots of a host Nova gives to which consumer, and why.

Nova says this in several records: the slots of a server, its migration
context with the slots before and after its last move, and its migrations.
Callers read them with their attributes (``nova_records``); nothing is read
here.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import model
from virt_hooks.instance import instance_request

# States of servers (nova/compute/vm_states.py), of their tasks
# (nova/compute/task_states.py) and of migrations.
_ERROR, _RESIZED, _OFFLOADED = "error", "resized", "shelved_offloaded"
_MIGRATING = "migrating"
# Tasks of a server that a resize has assigned to its new host.
_FINISHING = frozenset({"resize_migrated", "resize_finish"})
_RESIZING = _FINISHING | {"resize_prep", "resize_migrating"}
_FINISHED, _COMPLETED = "finished", "completed"

Slots = tuple[model.Slot, ...]


class State(enum.Enum):
    """Why a consumer has slots of a host."""

    BUILT = "a server of this host"
    UNBUILT = "a server that is to be spawned on this host"
    ARRIVING = "a server that moves to this host"
    AWAY = "a server that has left this host, and may return"
    OLD_SIZE = "a resize on this host, to be confirmed or reverted"


class Doubt(enum.IntEnum):
    """Doubt that Nova still assigns its slots to a consumer."""

    NONE = 0
    #: The server is in error, or may return from another host.
    FAILED = 1
    NEVER_STARTED = 2
    #: Nova has ended the guest to delete the server.
    ENDED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """Slots of a consumer, and why it has them; ``server`` is its uuid."""

    server: str
    state: State
    slots: Slots = ()
    doubt: Doubt = Doubt.NONE


Ledger = Mapping[str, Holding]


def build(
    host: str, instances: Mapping[str, Any], migrations: Iterable[Any]
) -> Ledger:
    """Return the consumers that have slots of a host, with these.

    A slot that several have belongs to those of the least doubt: a failed
    migration stays in Nova's list, and a server whose delete failed in the
    end, or whose failed build could not be saved, keeps its slots.

    :param host: name of its compute service.
    :param instances: ``nova.objects.Instance`` by uuid: of the servers of
        the host and of the migrations.
    :param migrations: ``nova.objects.Migration``, in progress, or failed or
        reverted if their servers may return. That of an unknown server is
        left out.
    """
    ledger = {k: _own(v) for k, v in instances.items() if v.host == host}
    for migration in migrations:
        instance = instances.get(migration.instance_uuid)
        if instance is None:
            continue
        for consumer, holding in _list_moving(host, instance, migration):
            first = ledger.get(consumer)
            if first is None or not first.slots:
                ledger[consumer] = holding
            else:
                ledger[consumer] = dataclasses.replace(
                    first, slots=(*first.slots, *holding.slots)
                )
    return _without_reassigned(ledger)


def _own(instance: Any) -> Holding:
    is_built = (
        instance.launched_at is not None
        and instance.vm_state != _OFFLOADED
        and instance.task_state not in _FINISHING
    )
    state = State.BUILT if is_built else State.UNBUILT
    slots = instance_request.slots_of(instance.resources)
    return Holding(instance.uuid, state, slots, _doubt(instance))


def _list_moving(
    host: str, instance: Any, migration: Any
) -> Iterator[tuple[str, Holding]]:
    """Yield what a server and its migration have besides its own slots.

    A context of a later migration says nothing about this one. Nova never
    ends a live migration whose source service ended during it: one to this
    host counts only while its server migrates. A finished migration can be
    reverted only while its server is resized.
    """
    uuid, doubt = instance.uuid, _doubt(instance)
    old, new = moved_slots(instance, migration)
    is_resized = instance.vm_state == _RESIZED
    if migration.source_compute != host:
        if not migration.is_live_migration:
            yield uuid, Holding(uuid, State.ARRIVING)
        elif instance.task_state == _MIGRATING:
            yield uuid, Holding(uuid, State.ARRIVING, new, doubt)
        return
    if instance.host != host:
        away = max(doubt, Doubt.FAILED)
        yield uuid, Holding(uuid, State.AWAY, old, away)
    if is_resized or migration.status != _FINISHED:
        is_kept = is_resized and is_in_place(migration)
        old_size = tuple(s for s in old if is_kept and s not in new)
        yield migration.uuid, Holding(uuid, State.OLD_SIZE, old_size, doubt)


def _doubt(instance: Any) -> Doubt:
    """Return the doubt that Nova still assigns its slots to a server.

    Nova saves ``terminated_at`` before it frees the slots, and sets the server
    to ERROR if the delete fails after that (nova/compute/manager.py,
    _delete_instance). A rebuild starts such a server again.
    """
    started, ended = instance.launched_at, instance.terminated_at
    if ended is not None and (started is None or started <= ended):
        return Doubt.ENDED
    if started is None:
        return Doubt.NEVER_STARTED
    return Doubt.FAILED if instance.vm_state == _ERROR else Doubt.NONE


def _without_reassigned(ledger: Ledger) -> Ledger:
    least: dict[tuple[str, str], Doubt] = {}
    for holding in ledger.values():
        for slot in holding.slots:
            other = least.get(slot.key, Doubt.ENDED)
            least[slot.key] = min(holding.doubt, other)
    return {
        consumer: dataclasses.replace(
            holding,
            slots=tuple(
                slot
                for slot in holding.slots
                if holding.doubt <= least[slot.key]
            ),
        )
        for consumer, holding in ledger.items()
    }


def find_owners(
    host: str,
    consumer: str,
    migrations: Iterable[Any],
    find_instance: Callable[[str], Any],
) -> frozenset[str]:
    """Return the consumers whose allocations prove one that has no holding.

    While a server moves away, its migration has its allocations here. Empty
    if its last move to the host was a live migration that did not complete:
    its allocations do not count.

    :param migrations: all of the consumer, if it is a server.
    :param find_instance: returns an instance, None for no server. It is
        called after a live migration to the host was found: Nova saves the
        host of a migration after that has been claimed.
    """
    migrations = tuple(migrations)
    arrivals = [m for m in migrations if m.dest_compute == host]
    last = max(arrivals, key=lambda m: m.id, default=None)
    if last and last.is_live_migration and last.status != _COMPLETED:
        instance = find_instance(consumer)
        if instance is None or (
            instance.task_state != _MIGRATING and instance.host != host
        ):
            return frozenset()
    moves = (m.uuid for m in migrations if m.source_compute == host)
    return frozenset({consumer, *moves})


class FailedMove(enum.Enum):
    """Slots of a server whose last move was to its host, and failed."""

    KEEPS_OLD = "it has the old slots"
    LACKS_NEW = "it has the old slots, and only the new ones are allocated"
    HAS_NEW = "it has the new slots"
    OTHER = "it has other slots"


def find_failed_move(
    host: str,
    instance: Any,
    migration: Any,
    read_allocated: Callable[[], Iterable[tuple[str, str]]],
    claimed: Iterable[model.Slot],
) -> FailedMove | None:
    """Return which slots a server has after a move to its host has failed.

    If a move fails in the end, Nova keeps what it allocated and claimed on
    the destination; if it failed before the driver was called there, the
    server still has its old slots. After a resize on one host that failed
    early, Nova has allocated the old ones again. After a failed revert the
    new slots may be another server's.

    :param migration: of the server's context, None without one.
    :param read_allocated: returns the providers and resource classes that
        the server has allocations of.
    :param claimed: slots that other consumers have claims on.
    :returns: None if the last move led to another host, is in progress, or
        is to be confirmed or reverted.
    """
    if (
        migration is None
        or migration.dest_compute != host
        or instance.vm_state == _RESIZED
        or instance.task_state in _RESIZING
    ):
        return None
    current = {*instance_request.slots_of(instance.resources)}
    old, new = map(frozenset, moved_slots(instance, migration))
    if current == new:
        return FailedMove.HAS_NEW
    if current != old:
        return FailedMove.OTHER
    old_classes, new_classes = (
        {(slot.provider, slot.resource_class) for slot in each}
        for each in (old, new)
    )
    if (
        new
        and old_classes != new_classes
        and not {s.key for s in new} & {s.key for s in claimed}
        and {*read_allocated()} & (old_classes | new_classes) == new_classes
    ):
        return FailedMove.LACKS_NEW
    return FailedMove.KEEPS_OLD


def moved_slots(instance: Any, migration: Any = None) -> tuple[Slots, Slots]:
    """Return the slots before and after the last move of a server.

    Both are empty without a migration context.

    :param migration: only if the context is of this one.
    """
    move = instance.migration_context
    if move is None or (migration and not is_current(instance, migration)):
        return (), ()
    return (
        instance_request.slots_of(move.old_resources),
        instance_request.slots_of(move.new_resources),
    )


def is_current(instance: Any, migration: Any) -> bool:
    """Return whether a server's migration context is of a migration."""
    move = instance.migration_context
    return move is not None and bool(move.migration_id == migration.id)


def list_released(instance: Any) -> Slots:
    """Return the slots that a moved server had and does not have any more."""
    old, new = moved_slots(instance)
    return tuple(slot for slot in old if slot not in new)


def is_in_place(migration: Any) -> bool:
    """Return whether a migration is a resize on one host."""
    return bool(migration.source_compute == migration.dest_compute)
