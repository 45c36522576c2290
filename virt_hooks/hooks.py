# SPDX-License-Identifier: Apache-2.0
"""Objects that the overrides of AccelLibvirtDriver call.

None of them is a driver; they are constructed from nova.conf, Nova's libvirt
host and its virtapi.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import nova.conf

from nova_accel.config import conf
from nova_accel.host.state import rebuild_allocations, state_dir
from virt_hooks.guest import connection, device_metadata, hypervisor
from virt_hooks.operations import (
    cold_migration,
    extra_operations,
    host_passes,
    live_moves,
    nova_database,
    reboot,
    rebuild,
    server_partitions,
    spawn_server,
    suspend,
)
from virt_hooks.report import (
    claim_checks,
    host_adoption,
    native_providers,
    provider_writer,
    reconcile,
    reporter,
    server_allocations,
)
from virt_hooks.spawn import setup


class Hooks:
    """Objects of one nova-compute; one operation, one object."""

    def __init__(
        self,
        virtapi: Any,
        host: Any,
        list_nodes: Callable[[], Iterable[str]],
        build_metadata: Callable[[Any, Any], Any],
    ) -> None:
        """Load the vendor drivers that ``[nova_accel]`` names.

        :param virtapi: ``nova.compute.manager.ComputeVirtAPI``.
        :param host: Nova's ``nova.virt.libvirt.host.Host``.
        :param list_nodes: returns the names of this host's compute nodes.
        :param build_metadata: returns the device metadata of a server, by
            a request context and the server.
        :raises ConfigurationError: a setting can't be used.
        """
        settings = conf.read_settings(nova.conf.CONF)
        self._state_dir = settings.state_dir
        domains = connection.LibvirtDomains(host)
        writer = provider_writer.ProviderWriter(virtapi, nova.conf.CONF)
        self.partitions = partitions = self._build_partitions(
            virtapi, writer, host, domains, settings
        )
        accel = partitions.accel
        self.adoption = host_adoption.load(
            host_adoption.AdoptionContext(
                accel=accel, host=host, directory=settings.state_dir
            )
        )
        self.native_providers = native = native_providers.NativeProviders(
            accel, virtapi, writer, nova.conf.CONF
        )
        self.missing_allocations = claim_checks.MissingAllocations(
            accel, virtapi, native.is_pending
        )
        allocations = server_allocations.ServerAllocations(virtapi)
        self.rebuilt_servers = rebuild.RebuiltServers(
            accel,
            allocations,
            rebuild_allocations.RebuildAllocations(settings.state_dir),
            partitions.reporter.publish,
        )
        self.device_metadata = device_metadata.DeviceMetadata(
            host, accel.claims_of
        )
        self.cold_migration = moves = cold_migration.ColdMigration(
            partitions, allocations
        )
        self.operations = extra_operations.ExtraOperations(
            extra_operations.OperationContext(
                partitions=partitions,
                virtapi=virtapi,
                moves=moves,
                build_metadata=build_metadata,
            )
        )
        self.spawn = spawn_server.Spawn(
            partitions, moves, self.operations.carried
        )
        self.suspend = suspend.Suspend(partitions, domains)
        self.live_migration = live_moves.load(
            live_moves.MoveContext(
                partitions=partitions, virtapi=virtapi, settings=settings
            )
        )
        self.consumers = consumers = claim_checks.Consumers(
            accel,
            domains,
            allocations.providers_of,
            partitions.startup_servers.forget,
        )
        self.passes = host_passes.HostPasses(
            partitions,
            self.rebuilt_servers,
            consumers,
            self.suspend,
            moves,
            list_nodes,
            self._remove_partial_files,
        )
        self.reboot = reboot.Reboot(partitions, self.rebuilt_servers, moves)

    def _build_partitions(
        self,
        virtapi: Any,
        writer: provider_writer.ProviderWriter,
        host: Any,
        domains: connection.HostdevReader,
        settings: conf.Settings,
    ) -> server_partitions.ServerPartitions:
        accel = setup.read_node(nova.conf.CONF, host.get_connection, domains)
        report = reporter.Reporter(accel, virtapi, writer)
        reconciler = reconcile.Reconciler(
            nova.conf.CONF,
            accel,
            self._refresh,
            report,
            self._recover_operations,
            self._read_projects,
            self._is_adopting,
        )
        return server_partitions.ServerPartitions(
            accel,
            host,
            hypervisor.HypervisorReader(host, settings.use_iommufd),
            nova_database.StartupServers(accel),
            report,
            reconciler,
            settings.replacements,
        )

    def _remove_partial_files(self) -> None:
        state_dir.remove_partial_files(self._state_dir)
        self.partitions.accel.programs.remove_partial_files()

    def _refresh(self) -> None:
        self.passes.refresh(retries_failed=False)

    def _read_projects(self) -> Mapping[str, str]:
        return self.consumers.projects

    def _is_adopting(self) -> bool:
        return self.adoption.is_adopting

    def _recover_operations(self) -> None:
        self.operations.recover_at_start()
