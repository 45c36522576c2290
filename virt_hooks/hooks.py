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

from nova_accel.config import conf, extensions
from nova_accel.discovery import (
    change_detection,
    note_stores,
    service_start,
    snapshot,
)
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import action_executor
from nova_accel.host.state import claims_file, device_notes, service_lock
from nova_accel.host.sysfs import fs, udev
from nova_accel.inventory import health
from virt_hooks.guest import connection, hypervisor, libvirt_guest, nodedev
from virt_hooks.operations import (
    cold_migration,
    extra_operations,
    host_passes,
    nova_database,
    reboot,
    rebuild,
    server_partitions,
    spawn_server,
    suspend,
)
from virt_hooks.report import (
    background_pass,
    claim_checks,
    host_adoption,
    native_providers,
    provider_writer,
    reporter,
    server_allocations,
)
from virt_hooks.spawn import host_access, lifecycle, programs

# Root of this machine's own kernel files. Any other root is a simulated
# kernel: this machine's libvirt and NVML don't know its devices.
_OWN_ROOT = "/"
# Entry points: functions that return a reader of GPUs, by a function that
# lists the GPUs in use and the notes on faults.
_GPU_READERS = "nova_accel.gpu_readers"


def read_node(
    options: Any,
    connect: Callable[[], Any],
    domains: connection.HostdevReader,
    watched: connection.HostdevReader,
) -> lifecycle.Lifecycle:
    """Return the Lifecycle of this host; the host is not read yet.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :param connect: returns the connection to this host's libvirt.
    :param domains: reads the host devices of this host's domains.
    :param watched: the same for passes.
    :raises ConfigurationError: a setting can't be used.
    """
    settings, drivers = service_start.load(options)
    is_own = settings.root == _OWN_ROOT
    state_dir = settings.state_dir
    faulted = device_notes.FaultNotes(state_dir)
    programmed = extensions.build_one(
        programs.GROUP,
        programs.ProgramContext(
            settings=settings.bitstreams, domains=domains, faults=faulted
        ),
        programs.Programs(),
    )

    def list_gpus_in_use() -> Iterable[str]:
        return health.list_gpus_in_use(detector.state)

    read_gpus: nvml_gpus.ReadGpus = dict
    if is_own:
        for open_reader in extensions.load(_GPU_READERS).values():
            read_gpus = open_reader(list_gpus_in_use, faulted)
    uevents = udev.UeventLog()
    detector = change_detection.ChangeDetector(
        fs.DiskSource(settings.root),
        drivers,
        settings.rules,
        read_gpus,
        _open_notes(state_dir, faulted),
        uevents,
    )
    host = snapshot.Snapshot(detector)
    executor = action_executor.Executor(
        settings.root,
        nodedev=nodedev.NodeDevices(connect) if is_own else None,
        read_gpus=read_gpus,
        program_s=settings.bitstreams.seconds,
    )
    access = host_access.HostAccess(
        domains=domains,
        watched=watched,
        read_host=detector.open_reader,
        faults=faulted,
        programs=programmed,
        claims_file=claims_file.ClaimsFile(state_dir),
        service_lock=service_lock.ServiceLock(state_dir),
        uevents=uevents,
    )
    return lifecycle.Lifecycle(drivers, settings.rules, executor, host, access)


def _open_notes(
    state_dir: str, faulted: device_notes.FaultNotes
) -> note_stores.NoteStores:
    return note_stores.NoteStores(
        faulted=faulted,
        drained=device_notes.DrainNotes(state_dir),
        baseline=device_notes.ErrorBaseline(state_dir),
    )


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
        accel = read_node(options, host.get_connection, domains, watched)
        writer = provider_writer.ProviderWriter(virtapi)
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

        layouts = extensions.build_one(
            libvirt_guest.LAYOUTS_GROUP,
            libvirt_guest.LayoutContext(
                host=host,
                hypervisor=partitions.hypervisor,
                state=accel.host,
                get=allocations.get(),
                root=settings.root,
                topology=settings.guest_topology,
            ),
            libvirt_guest.GuestLayouts(),
        )
        self.cold_migration = moves = cold_migration.ColdMigration(
            partitions, allocations
        )
        context = extra_operations.OperationContext(
            partitions=partitions,
            virtapi=virtapi,
            moves=moves,
            layouts=layouts,
            build_metadata=build_metadata,
            state_dir=settings.state_dir,
        )
        self.operations = extra_operations.ExtraOperations(context)
        self.metadata_builders = extra_operations.load_metadata(context)
        self.spawn = spawn_server.Spawn(
            partitions, moves, self.operations.carried, layouts
        )
        self.suspend = suspend.Suspend(partitions, watched)
        self.live_migration = extensions.build_one(
            extra_operations.MOVES_GROUP,
            extra_operations.MoveContext(
                partitions=partitions,
                virtapi=virtapi,
                settings=settings,
                layouts=layouts,
            ),
            extra_operations.LiveMoves(),
        )
        self.rebuilt_servers = rebuild.RebuiltServers(
            accel,
            allocations,
            rebuild.RebuildAllocations(settings.state_dir),
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
        self.reconciler: background_pass.BackgroundPass = extensions.build_one(
            background_pass.GROUP,
            background_pass.PassContext(
                options=options,
                reporter=partitions.reporter,
                refresh=functools.partial(
                    self.passes.refresh, retries_failed=False
                ),
                recover=self.operations.recover_at_start,
                read_projects=lambda: consumers.projects,
                is_adopting=lambda: (
                    adoption is not None and adoption.is_adopting
                ),
            ),
        )
