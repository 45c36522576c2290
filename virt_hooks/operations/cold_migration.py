# SPDX-License-Identifier: Apache-2.0
"""Overrides for cold migration and resize.

A server that is resized on its host has the partitions of both sizes for a
time: those of the new size are its own, those of the old size are its
migration's, as in Placement.
"""

import contextlib
from typing import Any

from nova.virt.libvirt import driver

from nova_accel import model
from virt_hooks.guest import connection
from virt_hooks.instance import slots
from virt_hooks.operations import bypass
from virt_hooks.report import reporter
from virt_hooks.spawn import claim_store


class ColdMigrationDriver(driver.LibvirtDriver):
    """Base of AccelLibvirtDriver: cold migration and resize."""

    @bypass.accelerators_only
    def finish_migration(
        self,
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
        old = slots.released_by_resize(instance, migration)
        self._accel.store.transfer(instance.uuid, migration.uuid, old)
        if old:
            self._startup_servers.forget(instance.uuid, ())
        with contextlib.ExitStack() as undo:
            # After an error Nova removes the migration's allocations.
            undo.callback(self._release_old_slots, instance, migration, old)
            with self._reporter.reschedule(context):
                self._fetch_bitstreams(context, instance)
            # With allocations: a drained card then refuses the server.
            self._ensure(
                context, instance, kwargs.get("allocations") or args[4]
            )
            result = super().finish_migration(
                context, migration, instance, *args, **kwargs
            )
            undo.pop_all()
        self._reconciler.wake()
        return result

    @bypass.accelerators_only
    def finish_revert_migration(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        migration: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Transfer the claims of the old size back to the server.

        Claims on slots of the new size remain only if their release
        failed. They become the migration's, which ends with this call, so
        the next pass releases them.
        """
        with reporter.logged("can't fetch bitstreams"):
            self._fetch_bitstreams(context, instance)
        store, old = self._accel.store, slots.of_resources(instance.resources)
        new = claim_store.not_in_slots(store.claims_of(instance.uuid), old)
        store.transfer(
            instance.uuid, migration.uuid, claim_store.slots_of(new)
        )
        store.transfer(migration.uuid, instance.uuid, old)
        return super().finish_revert_migration(
            context, instance, network_info, migration, *args, **kwargs
        )

    @bypass.accelerators_only
    def confirm_migration(
        self,
        context: Any,
        migration: Any,
        instance: Any,
        network_info: Any,
    ) -> Any:
        """Release the partitions of the old size after the stock method."""
        domain = self._read_domain(instance)
        result = super().confirm_migration(
            context, migration, instance, network_info
        )
        old = slots.released_by_move(instance)
        if migration.source_compute != migration.dest_compute:
            self._release_slots(instance, lambda: old, domain)
        else:
            self._accel.store.transfer(instance.uuid, migration.uuid, old)
            self._release_old_slots(instance, migration, old)
        return result

    def _release_old_slots(
        self, instance: Any, migration: Any, old: tuple[model.Slot, ...]
    ) -> None:
        """Release the slots of the old size after a resize on one host."""
        no_use = connection.HostdevUse()
        self._release_slots(instance, lambda: old, no_use, migration.uuid)
