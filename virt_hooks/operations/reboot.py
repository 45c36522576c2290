# SPDX-License-Identifier: Apache-2.0
"""Hard reboot, rescue and unrescue of a server."""

from typing import Any

from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.operations import (
    cold_migration,
    rebuild,
    server_partitions,
)


class Reboot:
    """Retains a server's partitions while Nova replaces its domain."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        rebuilt_servers: rebuild.RebuiltServers,
        moves: cold_migration.ColdMigration,
    ) -> None:
        self._partitions = partitions
        self._rebuilt_servers = rebuilt_servers
        self._moves = moves

    def hard_reboot(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Restore what a failed rebuild or move has changed, and reboot."""
        with self._partitions.retained(instance.uuid):
            with error_guards.log_errors("can't restore removed allocations"):
                self._rebuilt_servers.restore_allocations()
            with error_guards.log_errors("can't fetch bitstreams"):
                self._partitions.fetch_bitstreams(
                    context, self._partitions.parse(instance)
                )
            self._moves.end_failed_move(instance)
            self._partitions.record_if_moved(instance)
            with self._partitions.starting(instance):
                return stock()

    def rescue(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Start the guest of the rescue with the server's devices."""
        with self._partitions.starting(instance):
            return stock()

    def unrescue(self, stock: Stock, context: Any, instance: Any) -> None:
        """Make missing partitions before the stock method.

        The host may have been rebooted since the guest was defined.
        """
        with self._partitions.starting(instance):
            self._partitions.restore(context, instance)
            stock()
