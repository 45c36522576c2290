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

from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import connection
from virt_hooks.instance import instance_request, ledger, nova_records
from virt_hooks.operations import server_partitions
from virt_hooks.report import server_allocations
from virt_hooks.spawn import claim_store


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
                request = self._partitions.receive(
                    instance, kwargs.get("allocations") or args[4]
                )
                self._partitions.fetch_bitstreams(context, request)
                self._partitions.ensure(request)
                request = self._partitions.record_moved(instance, request)
            with self._partitions.starting(instance, request):
                result = stock()
            undo.pop_all()
        self._partitions.wake_ups.wake()
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
        old = ledger.list_released(instance)
        if ledger.is_in_place(migration):
            self._accel.store.transfer(instance.uuid, migration.uuid, old)
            self._release_old_slots(instance, migration, old)
        else:
            self._partitions.release(instance, lambda: old, domain)
        return result

    def end_failed_resizes(self, records: nova_records.Records) -> None:
        """Drop the contexts of resizes on this host that have failed.

        A resize that fails before the driver's part leaves the server with
        its old slots and allocations, and its migration context. Nova's
        tracker then counts the new slots as assigned, and assigns the old
        ones to other servers (see ``end_failed_move``). If it was the save
        before that part which failed, the server has its new slots: the old
        ones are released.

        :raises nova.exception.NovaException: Nova's database can't be read.
        :raises ServiceError: Placement can't be read.
        """
        for migration in records.migrations:
            instance = records.instances.get(migration.instance_uuid)
            if (
                instance is not None
                and migration.status == "error"
                and ledger.is_in_place(migration)
                and ledger.is_current(instance, migration)
            ):
                self._end_failed_resize(instance, migration)

    def _end_failed_resize(self, instance: Any, migration: Any) -> None:
        failed = self._find_failed_move(instance, migration)
        has_new = failed is ledger.FailedMove.HAS_NEW
        if (
            has_new or failed is ledger.FailedMove.KEEPS_OLD
        ) and self._allocations.drop_migration_context(migration):
            if has_new:
                old = self._transfer_old_slots(instance, migration)
                self._release_old_slots(instance, migration, old)

    def end_failed_move(self, instance: Any) -> None:
        """Give a server the slots that its failed move has allocated.

        A server that still has the slots from before its last move gets the
        new ones if only these are allocated; else it keeps what it has. Then
        the migration context, which each failure leaves, is dropped, as Nova
        does after an evacuation (nova/compute/manager.py, finish_evacuation).
        Nova's tracker would apply it again with each periodic task, and a
        rebuild would store it: slots that are attached later would be lost.

        :raises nova.exception.NovaException: Nova's database can't be read.
        :raises ServiceError: Placement can't be read.
        """
        migration = nova_records.read_last_move(instance)
        failed = self._find_failed_move(instance, migration)
        if failed is None:
            return
        if failed is ledger.FailedMove.LACKS_NEW:
            instance.apply_migration_context()
            instance.save()
            self._transfer_old_slots(instance, migration)
        instance.drop_migration_context()

    @contextlib.contextmanager
    def rebuilt_in_place(self, instance: Any) -> Iterator[None]:
        """Rebuild a server on its host in the slots that it has allocated.

        Nova applies the new resources of the context that a failed move has
        left while a server is rebuilt (nova/compute/manager.py,
        _rebuild_default_impl), and stores them afterwards
        (resource_tracker.py, finish_evacuation) if the context still exists.
        That is right only for a server that lacks its new slots, or has them.

        :raises nova.exception.NovaException: Nova's database can't be read.
        :raises ServiceError: Placement can't be read.
        """
        migration = nova_records.read_last_move(instance)
        if (
            migration is None
            or migration.source_compute != nova.conf.CONF.host
        ):
            yield
            return
        if ledger.is_in_place(migration):
            # Nova has applied the new resources to the instance in memory.
            stored = nova_records.read_instance(instance.uuid)
            failed = self._find_failed_move(stored, migration)
            if failed is ledger.FailedMove.LACKS_NEW:
                self._transfer_old_slots(stored, migration)
            if failed in (
                ledger.FailedMove.LACKS_NEW,
                ledger.FailedMove.HAS_NEW,
            ):
                yield
                return
        with instance.mutated_migration_context(revert=True):
            yield
        instance.drop_migration_context()

    def lacks_new_slots(self, instance: Any) -> bool:
        """Return whether a hard reboot would give a server its new slots.

        :raises nova.exception.NovaException: Nova's database can't be read.
        :raises ServiceError: Placement can't be read.
        """
        failed = self._find_failed_move(
            instance, nova_records.read_last_move(instance)
        )
        return failed is ledger.FailedMove.LACKS_NEW

    def _find_failed_move(
        self, instance: Any, migration: Any
    ) -> ledger.FailedMove | None:
        """Return ``ledger.find_failed_move`` of a server."""
        return ledger.find_failed_move(
            nova.conf.CONF.host,
            instance,
            migration,
            lambda: self._allocations.classes_of(instance.uuid),
            self._accel.store.slots_of_others(instance.uuid),
        )

    def _transfer_old_slots(
        self, instance: Any, migration: Any
    ) -> ledger.Slots:
        """Transfer the claims of the old size to the migration.

        :returns: the slots of these claims; none after a move between hosts.
        """
        if not ledger.is_in_place(migration):
            return ()
        old = ledger.list_released(instance)
        self._accel.store.transfer(instance.uuid, migration.uuid, old)
        if old:
            self._partitions.startup_servers.forget(instance.uuid, ())
        return old

    def _release_old_slots(
        self, instance: Any, migration: Any, old: ledger.Slots
    ) -> None:
        """Release the slots of the old size after a resize on one host."""
        no_use = connection.HostdevUse()
        self._partitions.release(instance, lambda: old, no_use, migration.uuid)
