# SPDX-License-Identifier: Apache-2.0
"""Objects that the overrides of AccelLibvirtDriver call; none is a driver.

Each object is made of those above it, so that a line depends on the lines
before it only. First the host's partitions (``accel``) and what publishes
them, then one object for each operation of Nova, and last the passes, which
call all of them. An operation requests a pass by ``Reporter.wake_ups``, which
exist before the passes do.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf

from nova_accel.config import conf
from nova_accel.host.state import rebuild_allocations
from virt_hooks.guest import (
    connection,
    device_metadata,
    hypervisor,
    libvirt_guest,
)
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
        options = nova.conf.CONF
        settings = conf.read_settings(options)
        domains = connection.LibvirtDomains(host)
        watched = connection.WatchedDomains(host)
        accel = setup.read_node(options, host.get_connection, domains, watched)
        writer = provider_writer.ProviderWriter(virtapi, options)
        allocations = server_allocations.ServerAllocations(virtapi)
        self.adoption = adoption = host_adoption.load(
            host_adoption.AdoptionContext(
                accel=accel,
                allocations=allocations,
                host=host,
                directory=settings.state_dir,
            )
        )
        self.partitions = partitions = server_partitions.ServerPartitions(
            accel,
            host,
            hypervisor.HypervisorReader(host, settings.use_iommufd),
            nova_database.StartupServers(accel),
            reporter.Reporter(accel, allocations, writer),
            settings.replacements,
        )

        layouts = libvirt_guest.load_layouts(
            libvirt_guest.LayoutContext(
                host=host,
                hypervisor=partitions.hypervisor,
                state=accel.host,
                get=allocations.get(),
                root=settings.root,
                topology=settings.guest_topology,
            )
        )
        self.cold_migration = moves = cold_migration.ColdMigration(
            partitions, allocations
        )
        self.operations = extra_operations.ExtraOperations(
            extra_operations.OperationContext(
                partitions=partitions,
                virtapi=virtapi,
                moves=moves,
                layouts=layouts,
                build_metadata=build_metadata,
                state_dir=settings.state_dir,
            )
        )
        self.spawn = spawn_server.Spawn(
            partitions, moves, self.operations.carried, layouts
        )
        self.device_metadata = device_metadata.DeviceMetadata(
            host, accel.claims_of, accel.host, layouts.predict_buses
        )
        self.suspend = suspend.Suspend(partitions, watched)
        self.live_migration = live_moves.load(
            live_moves.MoveContext(
                partitions=partitions,
                virtapi=virtapi,
                settings=settings,
                layouts=layouts,
            )
        )
        self.rebuilt_servers = rebuild.RebuiltServers(
            accel,
            allocations,
            rebuild_allocations.RebuildAllocations(settings.state_dir),
            partitions.reporter.publish,
        )
        self.reboot = reboot.Reboot(partitions, self.rebuilt_servers, moves)

        self.native_providers = native_providers.NativeProviders(
            accel, allocations, writer, options
        )
        self.missing_allocations = claim_checks.MissingAllocations(
            accel, allocations, self.native_providers.is_pending
        )
        consumers = claim_checks.Consumers(
            accel,
            domains,
            allocations,
            partitions.startup_servers.forget,
        )
        self.passes = host_passes.HostPasses(
            partitions,
            self.rebuilt_servers,
            consumers,
            self.suspend,
            moves,
            list_nodes,
            settings.state_dir,
        )
        self.reconciler = reconcile.Reconciler(
            options,
            functools.partial(self.passes.refresh, retries_failed=False),
            partitions.reporter,
            self.operations.recover_at_start,
            lambda: consumers.projects,
            lambda: adoption is not None and adoption.is_adopting,
        )
