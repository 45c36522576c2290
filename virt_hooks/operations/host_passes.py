# SPDX-License-Identifier: Apache-2.0
"""Start of the service, and the periodic passes over this host."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel.host.state import state_dir as state_dirs
from nova_accel.model import providers
from virt_hooks import error_guards
from virt_hooks.instance import nova_records
from virt_hooks.operations import (
    cold_migration,
    rebuild,
    server_partitions,
    suspend,
)
from virt_hooks.report import claim_checks, notifications

# Seconds until claims are compared with Nova again if nothing has changed.
# What ends without a call of the driver is found then: a failed move that
# another host has ended, or records that were deleted by hand.
COMPARE_S = 300.0


class HostPasses:
    """Reads the host again, and repairs what failed before."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        rebuilt_servers: rebuild.RebuiltServers,
        consumers: claim_checks.Consumers,
        suspended: suspend.Suspend,
        moves: cold_migration.ColdMigration,
        list_nodes: Callable[[], Iterable[str]],
        state_dir: str,
    ) -> None:
        """Make no pass yet.

        :param list_nodes: returns the names of this host's compute nodes.
        """
        self._accel = partitions.accel
        self._reporter = partitions.reporter
        self._startup_servers = partitions.startup_servers
        self._rebuilt_servers = rebuilt_servers
        self._consumers = consumers
        self._suspended = suspended
        self._moves = moves
        self._list_nodes = list_nodes
        self._state_dir = state_dir
        self._refresh_lock = threading.Lock()
        #: Versions of the claims that Nova backed in the last comparison,
        #: if no operation was in progress; valid for some time.
        self._backed: Mapping[str, int] = {}
        self._compare_at = 0.0
        self._device_events = notifications.DeviceEvents(self._accel)

    def start(self, nodes: Mapping[str, str]) -> None:
        """Restore the claims of this host's servers.

        Cards are set to their modes before claims are restored, since a
        reboot of the host removes their VFs. The slots of Nova's servers
        are read before that: nothing that they have is removed.

        :param nodes: names of this host's compute nodes by uuid.
        """
        self._adopt(nodes)
        self._startup_servers.read_servers(self._list_nodes)
        if self._accel.is_alone:
            with error_guards.log_errors("can't remove partial files"):
                state_dirs.remove_partial_files(self._state_dir)
                self._accel.programs.remove_partial_files()
        self._accel.set_card_modes(self._startup_servers.list_awaited)
        self._accel.host.refresh()
        self._startup_servers.restore_claims(self._list_nodes)

    def run(self, nodes: Mapping[str, str], provider_tree: Any) -> None:
        """Run the pass of Nova's periodic task, without any lock of Nova.

        :param nodes: names of this host's compute nodes by uuid.
        :param provider_tree: Nova's, None before its first pass.
        """
        self._reporter.reset_free()
        self._adopt(nodes)
        self.refresh()
        self._reporter.find_free(provider_tree)

    def refresh(self, retries_failed: bool = True) -> None:
        """Read the host again, and repair what failed before.

        :param retries_failed: see ``Lifecycle.set_card_modes``.
        """
        with self._refresh_lock:
            self._accel.host.refresh_changed()
            self._startup_servers.restore_claims(self._list_nodes)
            with error_guards.log_errors("can't restore removed allocations"):
                self._rebuilt_servers.restore_allocations()
            if self._accel.is_alone:
                with error_guards.log_errors("can't compare claims with Nova"):
                    self._compare_with_nova()
                with error_guards.log_errors(
                    "can't read the devices of guests"
                ):
                    self._suspended.plug_missing()
            self._accel.clean_up()
            self._accel.set_card_modes(
                self._startup_servers.list_awaited, retries_failed
            )
            events = self._device_events.list_changes()
        # Nova's bus may be slow: no lock is held meanwhile.
        notifications.send_events(events)

    def _compare_with_nova(self) -> None:
        """Release the claims that Nova does not back any more.

        Nova is asked after a change of claims or a release, while an
        operation of their servers is in progress or has failed, while an
        allocation is missing, and every five minutes.
        """
        versions = self._accel.store.versions()
        is_due = (
            bool(self._accel.unallocated)
            or time.monotonic() >= self._compare_at
        )
        if not versions or (versions == self._backed and not is_due):
            return
        self._backed = {}
        records = nova_records.read(
            self._list_nodes(), consumers=versions.keys()
        )
        with error_guards.log_errors("can't end failed resizes"):
            self._moves.end_failed_resizes(records)
        self._consumers.release_unbacked(versions, records)
        if not self._accel.unbacked_consumers and nova_records.is_idle(
            records, versions.keys()
        ):
            self._backed = versions
            self._compare_at = time.monotonic() + COMPARE_S

    def _adopt(self, nodes: Mapping[str, str]) -> None:
        for uuid, name in nodes.items():
            self._accel.adopt(providers.ProviderRoot(name=name, uuid=uuid))
