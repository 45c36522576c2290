# SPDX-License-Identifier: Apache-2.0
"""Overrides for cold migration and resize.

A server that is resized where it is has both for a time: what it gets is
its own, and what it had is its migration's, as in Placement.
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
    """LibvirtDriver that moves servers with accelerators.

    The rest of it is the class that has it as a base.
    """

    @bypass.accelerators_only
    def finish_migration(
        self,
        context: Any,
        migration: Any,
        instance: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fetch what the server's regions are to hold, as its user.

        What a server had that stays on its host is its migration's now.
        """
        old = slots.of_migration(instance, migration)
        self._accel.book.hand_over(instance.uuid, migration.uuid, old)
        if old:
            self._at_start.forget(instance.uuid, ())
        with contextlib.ExitStack() as undo:
            # Nova gives up what it had booked for the migration.
            undo.callback(self._give_up, instance, migration, old)
            with self._reporter.reschedule(context):
                self._bring(context, instance)
            # Said of one that comes: a card that is drained takes none.
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
        """Give back to the server what it had here.

        Claims on the slots of the new size are left only if their release
        failed. They become the migration's, which ends with this, and so
        the next pass releases them.
        """
        with reporter.logged("can't fetch bitstreams"):
            self._bring(context, instance)
        claims, old = self._accel.book, slots.of_resources(instance.resources)
        new = claim_store.without(claims.claims_of(instance.uuid), old)
        claims.hand_over(
            instance.uuid, migration.uuid, claim_store.slots_of(new)
        )
        claims.hand_over(migration.uuid, instance.uuid, old)
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
        """Unmake on the source what a moved server held there."""
        had = self._read_domain(instance)
        result = super().confirm_migration(
            context, migration, instance, network_info
        )
        old = slots.left_behind(instance)
        if migration.source_compute != migration.dest_compute:
            self._release(instance, lambda: old, had)
        else:
            self._accel.book.hand_over(instance.uuid, migration.uuid, old)
            self._give_up(instance, migration, old)
        return result

    def _give_up(
        self, instance: Any, migration: Any, old: tuple[model.Slot, ...]
    ) -> None:
        """Release what a server had that was resized where it is."""
        nothing = connection.HostdevUse()
        self._release(instance, lambda: old, nothing, migration.uuid)
