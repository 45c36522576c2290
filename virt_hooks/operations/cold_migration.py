# SPDX-License-Identifier: Apache-2.0
"""Cold migration and resize.

A server that is resized on its host has the partitions of both sizes for a
time: those of the new size are its own, those of the old size are its
migration's, as in Placement.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute import task_states, vm_states

from nova_accel import model
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import connection
from virt_hooks.instance import instance_request
from virt_hooks.operations import server_partitions
from virt_hooks.report import server_allocations
from virt_hooks.spawn import claim_store

_RESIZING = (
    task_states.RESIZE_PREP,
    task_states.RESIZE_MIGRATING,
    task_states.RESIZE_MIGRATED,
    task_states.RESIZE_FINISH,
)


class ColdMigration:
    """Transfers and releases the partitions of servers that move."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        allocations: server_allocations.ServerAllocations,
    ) -> None:
        self._partitions = partitions
        self._allocations = allocations
        self._accel = partitions.accel

    def finish_migration(
        self,
        stock: Stock,
        context: Any,
        migration: Any,
        instance: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Make the partitions on the destination before the stock method.

        Bitstreams are fetched with the user's context. Of a resize on one
        host, the claims of the old size become the migration's.
        """
        old = self._transfer_old_slots(instance, migration)
        with contextlib.ExitStack() as undo:
            # After an error Nova removes the migration's allocations.
            undo.callback(self._release_old_slots, instance, migration, old)
            with self._partitions.as_nova_error(context, instance):
                # With allocations: a drained card then refuses the server.
                request = self._partitions.parse(
                    instance, kwargs.get("allocations") or args[4]
                )
                self._partitions.fetch_bitstreams(context, request)
                self._partitions.ensure(request)
                request = self._partitions.record_moved(instance, request)
            with self._partitions.starting(instance, request):
                result = stock()
            undo.pop_all()
        self._partitions.reconciler.wake()
        return result

    def finish_revert_migration(
        self,
        stock: Stock,
        context: Any,
        instance: Any,
        network_info: Any,
        migration: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        """Transfer the claims of the old size back to the server.

        Claims on slots of the new size remain only if their release
        failed. They become the migration's, which ends with this call, so
        the next pass releases them.
        """
        with error_guards.log_errors("can't fetch bitstreams"):
            self._partitions.fetch_bitstreams(
                context, self._partitions.parse(instance)
            )
        store = self._accel.store
        old = instance_request.slots_of(instance.resources)
        new = claim_store.not_in_slots(store.claims_of(instance.uuid), old)
        store.transfer(
            instance.uuid, migration.uuid, claim_store.slots_of(new)
        )
        store.transfer(migration.uuid, instance.uuid, old)
        self._partitions.record_if_moved(instance)
        with self._partitions.starting(instance):
            return stock()

    def confirm_migration(
        self,
        stock: Stock,
        context: Any,
        migration: Any,
        instance: Any,
        network_info: Any,
    ) -> Any:
        """Release the partitions of the old size after the stock method."""
        domain = self._partitions.read_domain(instance)
        result = stock()
        old = instance_request.slots_released_by_move(instance)
        if migration.source_compute != migration.dest_compute:
            self._partitions.release(instance, lambda: old, domain)
        else:
            self._accel.store.transfer(instance.uuid, migration.uuid, old)
            self._release_old_slots(instance, migration, old)
        return result

    def end_failed_resizes(self) -> None:
        """Drop the contexts of resizes on this host that changed nothing.

        A resize that fails before the driver's part leaves the server with
        its old slots and allocations, and its migration context. Nova's
        tracker then counts the new slots as assigned, and assigns the old
        ones to other servers (see ``end_failed_move``).

        :raises nova.exception.NovaException: Nova's database or Placement
            can't be read.
        """
        if not self._accel.store.versions():
            return
        host = nova.conf.CONF.host
        for instance in objects.InstanceList.get_by_host(
            nova_context.get_admin_context(),
            host,
            expected_attrs=["migration_context", "resources"],
        ):
            migration = _find_failed_move(instance)
            if (
                migration is not None
                and migration.status == "error"
                and migration.source_compute == host
                and _has_slots(instance, "old_resources")
                and not self._has_only_new_allocations(instance)
            ):
                self._allocations.drop_migration_context(
                    instance.uuid, migration.id
                )

    def end_failed_move(self, instance: Any) -> None:
        """Apply and drop the migration context of a failed move.

        If a move fails on the destination, Nova keeps what it allocated and
        claimed there and asks for a hard reboot (nova/compute/manager.py,
        finish_resize). If it failed before the destination's driver was
        called, the server still has its old slots.

        The context stays after each failure: Nova's tracker applies it again
        with each periodic task (resource_tracker.py,
        _update_available_resource) and a rebuild stores it, so profiles that
        are attached later would lose their slots. Nova drops the context of
        an evacuation in the same way (finish_evacuation).

        :raises nova.exception.NovaException: Nova's database or Placement
            can't be read.
        """
        migration = _find_failed_move(instance)
        if migration is not None:
            if self._has_only_new_allocations(instance):
                instance.apply_migration_context()
                instance.save()
                self._transfer_old_slots(instance, migration)
            instance.drop_migration_context()

    @contextlib.contextmanager
    def rebuilt_in_place(self, instance: Any) -> Iterator[None]:
        """Rebuild a server on its host in the slots that it has allocated.

        A move that failed leaves its migration context. Nova applies the new
        resources of that context while a server is rebuilt
        (nova/compute/manager.py, _rebuild_default_impl), and stores them
        afterwards (resource_tracker.py, finish_evacuation) if the context
        still exists. That is right only for a server that lacks its new
        slots.

        :raises nova.exception.NovaException: Nova's database or Placement
            can't be read.
        """
        host, move = nova.conf.CONF.host, instance.migration_context
        migration = _read_migration(move) if move is not None else None
        if migration is None or migration.source_compute != host:
            yield
            return
        if migration.dest_compute == host:
            # Nova has applied the new resources to the instance in memory.
            stored = objects.Instance.get_by_uuid(
                nova_context.get_admin_context(),
                instance.uuid,
                expected_attrs=["resources", "migration_context"],
            )
            if _has_slots(stored, "new_resources"):
                yield
                return
            if self._has_only_new_allocations(stored):
                self._transfer_old_slots(stored, migration)
                yield
                return
        with instance.mutated_migration_context(revert=True):
            yield
        instance.drop_migration_context()

    def lacks_new_slots(self, instance: Any) -> bool:
        """Return whether a hard reboot would give a server its new slots.

        Its last move was to this host and failed, and only the new slots
        have allocations.

        :raises nova.exception.NovaException: Nova's database or Placement
            can't be read.
        """
        has_failed = _find_failed_move(instance) is not None
        return has_failed and self._has_only_new_allocations(instance)

    def _has_only_new_allocations(self, instance: Any) -> bool:
        """Return whether a server has its old slots and only new allocations.

        After a resize on one host that failed early, Nova has allocated the
        old ones again. After a failed revert the new slots may be another
        server's.

        :param instance: a server whose last move was to this host.
        """
        move = instance.migration_context
        old, new = (
            {*instance_request.slots_of(resources)}
            for resources in (move.old_resources, move.new_resources)
        )
        claims_of_others = (
            claim
            for claim in self._accel.claims()
            if claim.consumer != instance.uuid
        )
        if (
            not new
            or not _has_slots(instance, "old_resources")
            or claim_store.in_slots(claims_of_others, new)
        ):
            return False
        old_classes, new_classes = (
            {(slot.provider, slot.resource_class) for slot in each}
            for each in (old, new)
        )
        allocated = self._allocations.classes_of(instance.uuid)
        of_moves = allocated & (old_classes | new_classes)
        return bool(of_moves == new_classes != old_classes)

    def _transfer_old_slots(
        self, instance: Any, migration: Any
    ) -> tuple[model.Slot, ...]:
        """Transfer the claims of the old size to the migration.

        :returns: the slots of these claims; none after a move between hosts.
        """
        old = instance_request.slots_released_by_resize(instance, migration)
        self._accel.store.transfer(instance.uuid, migration.uuid, old)
        if old:
            self._partitions.startup_servers.forget(instance.uuid, ())
        return old

    def _release_old_slots(
        self, instance: Any, migration: Any, old: tuple[model.Slot, ...]
    ) -> None:
        """Release the slots of the old size after a resize on one host."""
        no_use = connection.HostdevUse()
        self._partitions.release(instance, lambda: old, no_use, migration.uuid)


def _find_failed_move(instance: Any) -> Any:
    """Return the migration of a server's last move, if it failed here.

    None if there is none, if it led to another host, is in progress, or is
    to be confirmed or reverted.
    """
    move = instance.migration_context
    if (
        move is None
        or instance.vm_state == vm_states.RESIZED
        or instance.task_state in _RESIZING
    ):
        return None
    migration = _read_migration(move)
    is_here = migration.dest_compute == nova.conf.CONF.host
    return migration if is_here else None


def _read_migration(move: Any) -> Any:
    """Return the migration of a migration context."""
    return objects.Migration.get_by_id(
        nova_context.get_admin_context(), move.migration_id
    )


def _has_slots(instance: Any, field: str) -> bool:
    """Return whether a server has the slots of its migration context.

    :param field: ``old_resources`` or ``new_resources``.
    """
    resources = getattr(instance.migration_context, field)
    return {*instance_request.slots_of(instance.resources)} == {
        *instance_request.slots_of(resources)
    }
