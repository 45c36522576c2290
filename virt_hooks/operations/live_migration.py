# SPDX-License-Identifier: Apache-2.0
"""Overrides for live migration.

Both hosts check the server before the migration starts. They set the flags
of NUMA live migration, so that Nova claims resources on the destination
also for servers without a NUMA topology.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from nova.virt.libvirt import driver

from nova_accel import errors
from nova_accel.claims import migration
from nova_accel.config import conf
from nova_accel.model import flavors
from virt_hooks import error_guards
from virt_hooks.instance import instance_request
from virt_hooks.operations import (
    bypass,
    live_migration_checks,
    live_migration_wire,
    migration_partitions,
    nova_database,
)
from virt_hooks.report import reconcile, reporter
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)


class LiveMigrationDriver(driver.LibvirtDriver):
    """Base of AccelLibvirtDriver: live migration."""

    _accel: lifecycle.Lifecycle
    _startup_servers: nova_database.StartupServers
    _reporter: reporter.Reporter
    _reconciler: reconcile.Reconciler

    def init_host(self, host: str) -> None:
        """Prepare live migrations before the stock method; log errors."""
        with error_guards.log_errors("Can't migrate accelerators live"):
            settings = conf.read_settings(nova.conf.CONF)
            self._host_abilities = migration_partitions.HostAbilities(
                settings.root
            )
            self._migration_partitions = (
                migration_partitions.MigrationPartitions(
                    self._accel, self._host_abilities
                )
            )
            self._link_speed = settings.live_migration_link
        super().init_host(host)

    def get_available_resource(self, nodename: str) -> Any:
        """Release partitions of failed arrivals before the stock method."""
        with error_guards.log_errors("can't release overdue live migrations"):
            self._release_overdue()
        return super().get_available_resource(nodename)

    # -- before the migration ----------------------------------------------

    @bypass.accelerators_only
    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add this host and its offers to the stock result."""
        offers = ""
        if instance_request.has_accelerator_slots(instance.resources):
            with _as_precheck_error():
                offers = self._migration_partitions.describe_offers(
                    _server(instance), self._read_host()
                )
        check_data = super().check_can_live_migrate_destination(
            context, instance, *args, **kwargs
        )
        if offers:
            check_data.dst_supports_numa_live_migration = True
            check_data.target_mdevs = {live_migration_wire.KEY: offers}
        return check_data

    @bypass.accelerators_only
    def check_can_live_migrate_source(
        self,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Check both hosts, and add the partitions to the stock result."""
        source_text = ""
        if instance_request.has_accelerator_slots(instance.resources):
            with _as_precheck_error():
                source_text = self._migration_partitions.describe_departure(
                    self._departing_server(instance),
                    self._read_domain(instance),
                    self._read_host(),
                    _limits(self._link_speed),
                    _read_text(dest_check_data, "target_mdevs"),
                )
        migrate_data = super().check_can_live_migrate_source(
            context, instance, dest_check_data, *args, **kwargs
        )
        if source_text:
            migrate_data.src_supports_numa_live_migration = True
            migrate_data.source_mdev_types = {
                live_migration_wire.KEY: source_text
            }
            # Set to an empty map: then Nova rolls back at the destination
            # too, on shared storage (_live_migration_cleanup_flags).
            migrate_data.target_mdevs = {}
        return migrate_data

    @bypass.accelerators_only
    def post_claim_migrate_data(
        self, context: Any, instance: Any, migrate_data: Any, claim: Any
    ) -> Any:
        """Skip the stock method for a guest without a NUMA topology."""
        if instance.numa_topology is None:
            return migrate_data
        return super().post_claim_migrate_data(
            context, instance, migrate_data, claim
        )

    @bypass.accelerators_only
    def check_source_migrate_data_at_dest(
        self,
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
                self._migration_partitions.verify_arrival(
                    self._arriving_server(ctxt, instance, allocs),
                    self._read_host(),
                    source_text,
                )
            migrate_data.source_mdev_types = {}
        elif instance_request.has_accelerator_slots(instance.resources):
            raise exception.MigrationPreCheckError(
                reason="its source does not run nova-accel: its partitions"
                " there are unknown"
            )
        migrate_data = super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs
        )
        if source_text is not None:
            migrate_data.source_mdev_types = {
                live_migration_wire.KEY: source_text
            }
        return migrate_data

    @bypass.accelerators_only
    def pre_live_migration(
        self,
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
            allocs = self.virtapi.reportclient.get_allocations_for_consumer(
                context, instance.uuid
            )
            with _as_precheck_error():
                pairs = self._migration_partitions.make_partitions(
                    self._arriving_server(context, instance, allocs),
                    source_text,
                )
            _set_handle_pairs(migrate_data, pairs)
            self._publish_change(context)
        return super().pre_live_migration(
            context,
            instance,
            block_device_info,
            network_info,
            disk_info,
            migrate_data,
        )

    # -- after the migration -----------------------------------------------

    @bypass.accelerators_only
    def post_live_migration_at_source(
        self, context: Any, instance: Any, network_info: Any
    ) -> Any:
        """Release the server's partitions after the stock method."""
        try:
            return super().post_live_migration_at_source(
                context, instance, network_info
            )
        finally:
            if self._accel.claims_of(instance.uuid):
                domain = self._read_domain(instance)
                self._release_slots(
                    instance,
                    lambda: self._list_slots(instance, domain),
                    domain,
                )
                self._publish_change(context)

    @bypass.accelerators_only
    def post_live_migration_at_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Register the claims of the arrived server after the stock method."""
        try:
            return super().post_live_migration_at_destination(
                context, instance, *args, **kwargs
            )
        finally:
            with error_guards.log_errors(
                "can't register the claims of %s", instance.uuid
            ):
                self._register_arrival(context, instance)

    @bypass.accelerators_only
    def rollback_live_migration_at_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Release the partitions made here after the stock method."""
        was_expected = instance.uuid in self._migration_partitions.expected()
        was_expected |= bool(self._accel.claims_of(instance.uuid))
        try:
            return super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs
            )
        finally:
            if was_expected:
                self._release_arrival(instance)
                self._publish_change(context)

    # -- arrivals ----------------------------------------------------------

    def _release_overdue(self) -> None:
        """Release the partitions of servers that do not arrive any more."""
        self._migration_partitions.expect(self._startup_servers.pop_arriving())
        expected = self._migration_partitions.expected()
        if not expected:
            return
        # A server that is deleted meanwhile does not arrive either.
        context = nova_context.get_admin_context(read_deleted="yes")
        for uuid in expected:
            with error_guards.log_errors(
                "can't check the migration of %s", uuid
            ):
                self._release_if_overdue(context, uuid)

    def _release_if_overdue(self, context: Any, uuid: str) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, uuid)
        except exception.InstanceNotFound:  # deleted, and archived
            self._release_arrival(objects.Instance(uuid=uuid))
            return
        if instance.host == nova.conf.CONF.host:
            self._migration_partitions.end_arrival(uuid)
        elif not _is_migrating(context, instance):
            LOG.warning("server %s does not arrive any more", uuid)
            self._release_arrival(instance)

    def _register_arrival(self, context: Any, instance: Any) -> None:
        """Add the claims of an arrived server unless they are there.

        Its instance still has the slots of its source.
        """
        if not instance_request.has_accelerator_slots(instance.resources):
            return
        if not self._accel.claims_of(instance.uuid):
            # This service was restarted meanwhile.
            server = self._arriving_server(context, instance, {})
            self._accel.restore(server.uuid, server.slots)
        self._migration_partitions.end_arrival(instance.uuid)
        self._reconciler.wake()

    def _release_arrival(self, instance: Any) -> None:
        """Release a server's partitions here unless its guest runs."""
        uuid = instance.uuid
        domain = self._read_domain(instance)
        self._release_slots(
            instance, lambda: self._accel.slots_of(uuid), domain
        )
        if not self._accel.claims_of(uuid):
            self._migration_partitions.end_arrival(uuid)

    def _publish_change(self, context: Any) -> None:
        self._reporter.publish(context)
        self._reconciler.wake()

    def _read_host(self) -> migration.MigrationHost:
        libvirt = self._host.get_connection()
        return self._host_abilities.read_host(
            libvirt.getLibVersion(),
            libvirt.getVersion(),
            nova.conf.CONF.libvirt.live_migration_permit_post_copy,
        )

    def _departing_server(
        self, instance: Any
    ) -> live_migration_checks.MigratingServer:
        return live_migration_checks.MigratingServer(
            uuid=instance.uuid,
            groups=_groups(instance),
            slots=instance_request.slots_of(
                instance.resources, self._accel.root
            ),
        )

    def _arriving_server(
        self, context: Any, instance: Any, allocs: Any
    ) -> live_migration_checks.MigratingServer:
        """Return a server with the slots that Nova has claimed here.

        They are read from the database: the instance may be older than
        the claim.
        """
        migration_context = objects.MigrationContext.get_by_instance_uuid(
            context, instance.uuid
        )
        if migration_context is None:
            raise errors.ClaimError(
                instance.uuid, "Nova has claimed nothing for it here"
            )
        return live_migration_checks.MigratingServer(
            uuid=instance.uuid,
            groups=_groups(instance),
            slots=instance_request.slots_of(
                migration_context.new_resources, self._accel.root
            ),
            allocations={
                uuid: record["resources"]
                for uuid, record in (allocs or {}).items()
            },
        )


def _server(instance: Any) -> live_migration_checks.MigratingServer:
    return live_migration_checks.MigratingServer(
        uuid=instance.uuid, groups=_groups(instance)
    )


def _groups(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    return flavors.parse_groups(instance.flavor.extra_specs)


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
    migrate_data.pci_dev_map_src_dst = dict(
        migration.plan_pci_changes(functions)
    )


def _limits(link_speed: int) -> migration.MigrationLimits:
    options = nova.conf.CONF.libvirt
    speeds = filter(None, (link_speed, options.live_migration_bandwidth))
    return migration.MigrationLimits(
        downtime=options.live_migration_downtime, link=min(speeds, default=0)
    )


def _is_migrating(context: Any, instance: Any) -> bool:
    """Return whether a server is still migrating, to any host.

    Nova never ends a migration whose source service ended during it.
    """
    if instance.task_state != task_states.MIGRATING:
        return False
    migrations = objects.MigrationList.get_in_progress_by_instance(
        context, instance.uuid, "live-migration"
    )
    return bool(migrations)


@contextlib.contextmanager
def _as_precheck_error() -> Iterator[None]:
    """Raise AcceleratorError as MigrationPreCheckError."""
    try:
        yield
    except errors.AcceleratorError as error:
        LOG.error("%s", error)
        raise exception.MigrationPreCheckError(reason=error.public) from error
