# SPDX-License-Identifier: Apache-2.0
"""Hard reboot and unrescue of a server."""

from typing import Any

from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.operations import (
    cold_migration,
    host_passes,
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
        passes: host_passes.HostPasses,
    ) -> None:
        self._partitions = partitions
        self._rebuilt_servers = rebuilt_servers
        self._moves = moves
        self._passes = passes

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
            try:
                self._moves.end_failed_move(instance)
                self._partitions.record_if_moved(instance)
                return stock()
            finally:
                if not self._partitions.accel.claims_of(instance.uuid):
                    # A delete has released the claims while the guest
                    # started, so that its functions count as clean.
                    with error_guards.log_errors(
                        "can't read the devices of guests"
                    ):
                        self._passes.clean_up()

    def unrescue(self, stock: Stock, context: Any, instance: Any) -> None:
        """Make missing partitions before the stock method.

        The host may have been rebooted since the guest was defined.
        """
        self._partitions.restore(context, instance)
        stock()
