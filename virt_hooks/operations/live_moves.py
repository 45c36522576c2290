# SPDX-License-Identifier: Apache-2.0
"""Live migrations of servers, as a package registers them.

The entry point of the group ``nova_accel.live_moves`` is a class that takes
a ``MoveContext``. The overrides of Nova's driver call it.
"""

import dataclasses
from typing import Any

from nova import exception

from nova_accel.config import conf, extensions
from virt_hooks.error_guards import Stock
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import server_partitions

GROUP = "nova_accel.live_moves"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoveContext:
    """Objects of one nova-compute; ``virtapi`` has Placement's client."""

    partitions: server_partitions.ServerPartitions
    virtapi: Any
    settings: conf.Settings
    layouts: libvirt_guest.GuestLayouts


class LiveMoves:
    """Live migrations of a host that refuses servers with accelerators.

    The methods have the arguments of the overrides.
    """

    def check_destination(self, stock: Stock, instance: Any) -> Any:
        """Add this host and its offers to the stock result.

        :raises nova.exception.MigrationPreCheckError: it can't arrive here.
        """
        if instance_request.has_accelerator_slots(instance.resources):
            raise exception.MigrationPreCheckError(
                reason="the entry point of nova-accel's live migration is"
                " missing there: install nova-accel again"
            )
        return stock()

    def check_source(
        self, stock: Stock, instance: Any, dest_check_data: Any
    ) -> Any:
        """Check both hosts, and add the partitions to the stock result.

        :raises nova.exception.MigrationPreCheckError: it can't leave.
        """
        return self.check_destination(stock, instance)

    def check_arrival(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Check the slots claimed here against the server's partitions."""
        return stock()

    def claim_migrate_data(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Complete the data of the migration after Nova's claim."""
        return stock()

    def pre_live_migration(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Make the partitions before the stock method."""
        return stock()

    def change_devices(self, guest: Any, migrate_data: Any) -> Any:
        """Return the guest with the devices that it has there."""
        return guest

    def release(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Release the server's partitions after the stock method."""
        return stock()

    def post_at_destination(self, stock: Stock, *_: Any, **__: Any) -> Any:
        """Reconcile Placement after the stock method."""
        return stock()


def load(context: MoveContext) -> LiveMoves:
    """Return the live migrations of the installed package.

    :raises ConfigurationError: they can't be loaded.
    """
    for build in extensions.load(GROUP).values():
        moves: LiveMoves = build(context)
        return moves
    return LiveMoves()
