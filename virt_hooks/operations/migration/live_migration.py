# SPDX-License-Identifier: Apache-2.0
"""Live migration.

Both hosts check the server before the migration starts. They set the flags
of NUMA live migration, so that Nova claims resources on the destination
also for servers without a NUMA topology.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import nova.conf
from nova import exception, objects

from nova_accel import errors
from nova_accel.claims import migration
from nova_accel.config import logs
from nova_accel.model import pci
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import extra_operations
from virt_hooks.operations.migration import (
    live_migration_checks,
    live_migration_wire,
    migration_partitions,
)

LOG = logging.getLogger(__name__)


class LiveMigration(extra_operations.LiveMoves):
    """Checks, makes and releases the partitions of migrating servers."""

    def __init__(self, context: extra_operations.MoveContext) -> None:
        """Make partitions for servers that arrive."""
        partitions, settings = context.partitions, context.settings
        self._partitions = partitions
        self._accel, self._host = partitions.accel, partitions.host
        self._virtapi, self._layouts = context.virtapi, context.layouts
        self._host_abilities = migration_partitions.HostAbilities(
            settings.root
        )
        self.migrating = migration_partitions.MigrationPartitions(
            self._accel, self._host_abilities, context.layouts
        )
        #: Speed of the link between the hosts in MiB/s, 0 if unknown.
        self.link_speed = settings.live_migration_link
        self._needs_iommufd = not settings.live_migration_without_iommufd

    # -- before the migration ----------------------------------------------

    def check_destination(self, stock: Stock, instance: Any) -> Any:
        """Add this host and its offers to the stock result."""
        offers = ""
        if instance_request.has_accelerator_slots(instance.resources):
            with _as_precheck_error():
                offers = self.migrating.describe_offers(
                    self._partitions.parse(instance), self._read_host()
                )
        check_data = stock()
        if offers:
            check_data.dst_supports_numa_live_migration = True
            check_data.target_mdevs = {live_migration_wire.KEY: offers}
        return check_data

    def check_source(
        self, stock: Stock, instance: Any, dest_check_data: Any
    ) -> Any:
        """Check both hosts, and add the partitions to the stock result."""
        source_text = ""
        if instance_request.has_accelerator_slots(instance.resources):
            with _as_precheck_error():
                server = self._partitions.parse(instance)
                source_text = self.migrating.describe_departure(
                    server,
                    self._partitions.read_domain(instance),
                    self._read_host(),
                    self._limits(),
                    _read_text(dest_check_data, "target_mdevs"),
                    self._describe_guest(instance, server),
                )
        migrate_data = stock()
        if source_text:
            migrate_data.src_supports_numa_live_migration = True
            migrate_data.source_mdev_types = {
                live_migration_wire.KEY: source_text
            }
            # Set to an empty map: then Nova rolls back at the destination
            # too, on shared storage (_live_migration_cleanup_flags).
            migrate_data.target_mdevs = {}
        return migrate_data

    def check_arrival(
        self,
        stock: Stock,
        ctxt: Any,
        instance: Any,
        migrate_data: Any,
        migration: Any,
        limits: Any,
        allocs: Any,
    ) -> Any:
        """Check the slots claimed here against the server's partitions.

        Our entry is hidden from the stock method, which would read it as
        an mdev.
        """
        source_text = _read_text(migrate_data, "source_mdev_types")
        if source_text is not None:
            with _as_precheck_error():
                server, cells = self._read_arrival(ctxt, instance, allocs)
                self.migrating.verify_arrival(
                    server, self._read_host(), source_text, cells
                )
            migrate_data.source_mdev_types = {}
        elif instance_request.has_accelerator_slots(instance.resources):
            raise exception.MigrationPreCheckError(
                reason="its source does not run nova-accel: its partitions"
                " there are unknown"
            )
        migrate_data = stock()
        if source_text is not None:
            migrate_data.source_mdev_types = {
                live_migration_wire.KEY: source_text
            }
        return migrate_data

    def pre_live_migration(
        self,
        stock: Stock,
        context: Any,
        instance: Any,
        block_device_info: Any,
        network_info: Any,
        disk_info: Any,
        migrate_data: Any,
    ) -> Any:
        """Make the partitions before the stock method.

        The source replaces the old handles in the XML by the new ones.
        """
        source_text = _read_text(migrate_data, "source_mdev_types")
        if source_text is not None:
            self._make_partitions(context, instance, migrate_data, source_text)
        return stock()

    def _make_partitions(
        self, context: Any, instance: Any, migrate_data: Any, source_text: str
    ) -> None:
        allocations = self._virtapi.reportclient.get_allocations_for_consumer(
            context, instance.uuid
        )
        with _as_precheck_error():
            server, cells = self._read_arrival(context, instance, allocations)
            pairs = self.migrating.make_partitions(server, source_text, cells)
        _set_handle_pairs(migrate_data, pairs)
        self._partitions.publish(context)

    # -- after the migration -----------------------------------------------

    def release(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Release the server's partitions after the stock method.

        It has left this host, or does not arrive. If Nova does not call
        this, the next pass releases them (``claim_checks.Consumers``).
        """
        try:
            return stock()
        finally:
            if self._accel.claims_of(instance.uuid):
                self._partitions.release_all(
                    instance, self._partitions.read_domain(instance)
                )
                self._partitions.publish(context)

    def post_at_destination(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Reconcile Placement after the stock method.

        Nova then applies the migration context and saves the server, with
        the record of its attachments.

        The server has its claims since its partitions were made. If this
        service was restarted since then, its start has restored them
        (``nova_database.StartupServers``).
        """
        try:
            return stock()
        finally:
            if instance_request.has_accelerator_slots(instance.resources):
                with error_guards.log_errors(
                    "can't record the attached profiles of %s", instance.uuid
                ):
                    server = self._read_arrival(context, instance)[0]
                    self._partitions.record_moved(instance, server)
                self._partitions.wake_ups.wake()

    def change_devices(self, guest: Any, migrate_data: Any) -> Any:
        """Return the guest with the devices that it has at the destination.

        Nova replaces the uuids of mdevs itself. Where an mdev becomes a typed
        VF, its new handle is a PCI address.
        """
        if "target_mdevs" not in migrate_data:
            return guest
        functions = {
            uuid: handle
            for uuid, handle in migrate_data.target_mdevs.items()
            if pci.is_address(handle)
        }
        if not functions:
            return guest
        return libvirt_guest.ChangedGuest(guest, functions)

    def claim_migrate_data(
        self,
        stock: Stock,
        context: Any,
        instance: Any,
        migrate_data: Any,
        claim: Any,
    ) -> Any:
        """Skip the stock method for a guest without a NUMA topology."""
        return migrate_data if instance.numa_topology is None else stock()

    def _describe_guest(
        self, instance: Any, server: instance_request.InstanceRequest
    ) -> str:
        """Return what the guest of a server sees of its devices."""
        return self._layouts.describe_guest(
            self._host.get_guest(instance).get_xml_desc(),
            server.options,
            {claim.handle for claim in self._accel.claims_of(server.uuid)},
        )

    def _read_host(self) -> migration.MigrationHost:
        libvirt = self._host.get_connection()
        return self._host_abilities.read_host(
            libvirt.getLibVersion(),
            libvirt.getVersion(),
            nova.conf.CONF.libvirt.live_migration_permit_post_copy,
        )

    def _limits(self) -> migration.MigrationLimits:
        options = nova.conf.CONF.libvirt
        speeds = (self.link_speed, options.live_migration_bandwidth)
        return migration.MigrationLimits(
            downtime=options.live_migration_downtime,
            link=min(filter(None, speeds), default=0),
            has_dirty_log=not self._needs_iommufd
            or self._host_abilities.has_iommufd(),
        )

    def _read_arrival(
        self, context: Any, instance: Any, allocs: Any = None
    ) -> tuple[instance_request.InstanceRequest, Mapping[int, int]]:
        """Return a server's request, with the slots claimed here.

        And the NUMA nodes of its guest by those of this host. Both are read
        from the database: the instance may be older than the claim. Nova
        numbers the nodes of a guest in the order of its cells, whose ids are
        the host's (nova/virt/libvirt/driver.py, _get_guest_numa_config).
        """
        move = objects.MigrationContext.get_by_instance_uuid(
            context, instance.uuid
        )
        if move is None:
            raise errors.ClaimError(
                instance.uuid, "Nova has claimed nothing for it here"
            )
        slots = instance_request.slots_of(move.new_resources, self._accel.root)
        instance_request.check_carried(instance, instance.flavor, slots)
        topology = move.new_numa_topology
        cells = topology.cells if topology else ()
        return (
            self._partitions.parse(instance, allocs, slots=slots),
            {cell.id: number for number, cell in enumerate(cells)},
        )


def _read_text(data: Any, field: str) -> str | None:
    """Return the text of the other host's nova-accel, None without any."""
    if field not in data:
        return None
    entries: Mapping[str, str] = getattr(data, field)
    return entries.get(live_migration_wire.KEY)


def _set_handle_pairs(
    migrate_data: Any, pairs: live_migration_checks.HandlePairs
) -> None:
    """Set the handles that Nova's source replaces in the guest's XML."""
    functions = dict(pairs.functions)
    if "pci_dev_map_src_dst" in migrate_data:
        functions |= migrate_data.pci_dev_map_src_dst
    migrate_data.target_mdevs = dict(pairs.mdevs)
    typed = frozenset(filter(pci.is_address, pairs.mdevs.values()))
    migrate_data.pci_dev_map_src_dst = dict(
        migration.plan_pci_changes(functions, typed)
    )


@contextlib.contextmanager
def _as_precheck_error() -> Iterator[None]:
    """Raise AcceleratorError as MigrationPreCheckError."""
    try:
        yield
    except errors.AcceleratorError as error:
        logs.error(LOG, "%s", error)
        raise exception.MigrationPreCheckError(reason=error.public) from error
