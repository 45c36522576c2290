# SPDX-License-Identifier: Apache-2.0
"""Overrides for live migration.

Both hosts are asked before anything starts. What Nova claims for other
servers only where they have a NUMA topology, it claims for ours always.
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
from nova_accel.claims import migration, pci_moves
from nova_accel.config import conf
from nova_accel.model import flavors
from virt_hooks.instance import slots
from virt_hooks.operations import (
    bypass,
    live_migration_checks,
    live_migration_facts,
    live_migration_wire,
    nova_database,
)
from virt_hooks.report import reconcile, reporter
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# The resources that Nova's own libvirt driver hands out
# (nova/virt/libvirt/driver.py, _update_provider_tree_for_vpmems).
_NOT_OURS = "CUSTOM_PMEM_NAMESPACE_"


class LiveMigrationDriver(driver.LibvirtDriver):
    """What AccelLibvirtDriver does about live migration.

    It is a part of it, not a driver by itself.
    """

    _accel: lifecycle.Lifecycle
    _at_start: nova_database.StartupServers
    _reporter: reporter.Reporter
    _reconciler: reconcile.Reconciler

    def init_host(self, host: str) -> None:
        """Learn where this host's kernel is, and how fast its link."""
        with reporter.logged("Can't migrate accelerators live"):
            settings = conf.read_settings(nova.conf.CONF)
            self._passage = live_migration_checks.MigrationChecks(
                self._accel,
                facts := live_migration_facts.HostAbilities(settings.root),
            )
            self._facts, self._link = facts, settings.live_migration_link
        super().init_host(host)

    def get_available_resource(self, nodename: str) -> Any:
        """Give back what was made for servers that did not come."""
        with reporter.logged("can't look after servers that were to come"):
            self._drop_overdue()
        return super().get_available_resource(nodename)

    # -- before it starts --------------------------------------------------

    @bypass.accelerators_only
    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Tell the source what this host is, and could make."""
        offers = ""
        if _is_ours(instance):
            with _refusing():
                offers = self._passage.tell_offers(
                    _server(instance), self._read_host()
                )
        found = super().check_can_live_migrate_destination(
            context, instance, *args, **kwargs
        )
        if offers:
            found.dst_supports_numa_live_migration = True
            found.target_mdevs = {live_migration_wire.KEY: offers}
        return found

    @bypass.accelerators_only
    def check_can_live_migrate_source(
        self,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Refuse what can't leave, or can't arrive there; say why."""
        told = ""
        if _is_ours(instance):
            with _refusing():
                told = self._passage.check_departure(
                    self._server_here(instance),
                    self._read_domain(instance),
                    self._read_host(),
                    _limits(self._link),
                    _word(dest_check_data, "target_mdevs"),
                )
        found = super().check_can_live_migrate_source(
            context, instance, dest_check_data, *args, **kwargs
        )
        if told:
            found.src_supports_numa_live_migration = True
            found.source_mdev_types = {live_migration_wire.KEY: told}
            # Set, though empty: then Nova rolls back at the destination
            # too, on shared storage (_live_migration_cleanup_flags).
            found.target_mdevs = {}
        return found

    @bypass.accelerators_only
    def post_claim_migrate_data(
        self, context: Any, instance: Any, migrate_data: Any, claim: Any
    ) -> Any:
        """Leave the guest's CPUs alone where it has no NUMA topology."""
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
        """Check what Nova has claimed here against what comes.

        Our word is no mdev that Nova could take for one of its own.
        """
        told = _word(migrate_data, "source_mdev_types")
        if told is not None:
            with _refusing():
                self._passage.check_arrival(
                    self._server_to_come(ctxt, instance, allocs),
                    self._read_host(),
                    told,
                )
            migrate_data.source_mdev_types = {}
        elif _is_ours(instance):
            raise exception.MigrationPreCheckError(
                reason="its source does not run nova-accel: what it has"
                " there can't be told"
            )
        found = super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs
        )
        if told is not None:
            found.source_mdev_types = {live_migration_wire.KEY: told}
        return found

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
        """Make what was claimed, and say what replaces what in the XML."""
        told = _word(migrate_data, "source_mdev_types")
        if told is not None:
            allocs = self.virtapi.reportclient.get_allocations_for_consumer(
                context, instance.uuid
            )
            with _refusing():
                pairs = self._passage.make_room(
                    self._server_to_come(context, instance, allocs), told
                )
            _write_down(migrate_data, pairs)
            self._tell_change(context)
        return super().pre_live_migration(
            context,
            instance,
            block_device_info,
            network_info,
            disk_info,
            migrate_data,
        )

    # -- when it is over ---------------------------------------------------

    @bypass.accelerators_only
    def post_live_migration_at_source(
        self, context: Any, instance: Any, network_info: Any
    ) -> Any:
        """Unmake what the server had here; its guest is gone."""
        try:
            return super().post_live_migration_at_source(
                context, instance, network_info
            )
        finally:
            if self._accel.claims_of(instance.uuid):
                had = self._read_domain(instance)
                self._release(instance, lambda: self._held(instance, had), had)
                self._tell_change(context)

    @bypass.accelerators_only
    def post_live_migration_at_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Take the server for one of this host's."""
        try:
            return super().post_live_migration_at_destination(
                context, instance, *args, **kwargs
            )
        finally:
            with reporter.logged(
                "can't write down what %s brought", instance.uuid
            ):
                self._write_down_guest(context, instance)

    @bypass.accelerators_only
    def rollback_live_migration_at_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Unmake what was made for a server that stays where it is."""
        was_to_come = instance.uuid in self._passage.expected()
        was_to_come |= bool(self._accel.claims_of(instance.uuid))
        try:
            return super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs
            )
        finally:
            if was_to_come:
                self._turn_away(instance)
                self._tell_change(context)

    # -- what it takes -----------------------------------------------------

    def _drop_overdue(self) -> None:
        """Turn away servers whose migration has ended elsewhere."""
        self._passage.expect(self._at_start.take_arriving())
        expected = self._passage.expected()
        if not expected:
            return
        # One that is deleted meanwhile does not come either.
        context = nova_context.get_admin_context(read_deleted="yes")
        for uuid in expected:
            with reporter.logged("can't tell whether %s comes", uuid):
                self._drop_if_overdue(context, uuid)

    def _drop_if_overdue(self, context: Any, uuid: str) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, uuid)
        except exception.InstanceNotFound:  # deleted, and archived
            self._turn_away(objects.Instance(uuid=uuid))
            return
        if instance.host == nova.conf.CONF.host:
            self._passage.end(uuid)
        elif not _is_on_its_way(context, instance):
            LOG.warning("server %s does not come any more", uuid)
            self._turn_away(instance)

    def _write_down_guest(self, context: Any, instance: Any) -> None:
        """Take a guest that has come for one of this host's, if it is ours.

        Its instance still tells what it had on its source.
        """
        if not _is_ours(instance):
            return
        if not self._accel.claims_of(instance.uuid):
            # This service was restarted meanwhile.
            server = self._server_to_come(context, instance, {})
            self._accel.recall(server.uuid, server.slots)
        self._passage.end(instance.uuid)
        self._reconciler.wake()

    def _turn_away(self, instance: Any) -> None:
        """Give back what a server has here; a guest that runs keeps it."""
        uuid = instance.uuid
        had = self._read_domain(instance)
        self._release(instance, lambda: self._accel.slots_of(uuid), had)
        if not self._accel.claims_of(uuid):
            self._passage.end(uuid)

    def _tell_change(self, context: Any) -> None:
        self._reporter.publish(context)
        self._reconciler.wake()

    def _read_host(self) -> migration.MigrationHost:
        libvirt = self._host.get_connection()
        return self._facts.read_host(
            libvirt.getLibVersion(),
            libvirt.getVersion(),
            nova.conf.CONF.libvirt.live_migration_permit_post_copy,
        )

    def _server_here(
        self, instance: Any
    ) -> live_migration_checks.MigratingServer:
        return live_migration_checks.MigratingServer(
            uuid=instance.uuid,
            groups=_groups(instance),
            slots=slots.below(
                self._accel.root, slots.of_resources(instance.resources)
            ),
        )

    def _server_to_come(
        self, context: Any, instance: Any, allocs: Any
    ) -> live_migration_checks.MigratingServer:
        """Return a server with what Nova has claimed for it here.

        The instance at hand may be older than the claim.
        """
        moved = objects.MigrationContext.get_by_instance_uuid(
            context, instance.uuid
        )
        if moved is None:
            raise errors.ClaimError(
                instance.uuid, "Nova has claimed nothing for it here"
            )
        return live_migration_checks.MigratingServer(
            uuid=instance.uuid,
            groups=_groups(instance),
            slots=slots.below(
                self._accel.root, slots.of_resources(moved.new_resources)
            ),
            booked={
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


def _is_ours(instance: Any) -> bool:
    """Return whether a server holds slots of ours, on whatever host."""
    return any(
        not slot.resource_class.startswith(_NOT_OURS)
        for slot in slots.of_resources(instance.resources)
    )


def _word(data: Any, field: str) -> str | None:
    """Return what the other host's nova-accel said, None for nothing."""
    if field not in data:
        return None
    found: Mapping[str, str] = getattr(data, field)
    return found.get(live_migration_wire.KEY)


def _write_down(
    migrate_data: Any, pairs: live_migration_checks.HandlePairs
) -> None:
    """Leave to Nova's source what to replace in the guest's XML."""
    functions = dict(pairs.functions)
    if "pci_dev_map_src_dst" in migrate_data:
        functions |= migrate_data.pci_dev_map_src_dst
    migrate_data.target_mdevs = dict(pairs.mdevs)
    migrate_data.pci_dev_map_src_dst = dict(pci_moves.plan_steps(functions))


def _limits(link: int) -> migration.MigrationLimits:
    options = nova.conf.CONF.libvirt
    known = filter(None, (link, options.live_migration_bandwidth))
    return migration.MigrationLimits(
        downtime=options.live_migration_downtime, link=min(known, default=0)
    )


def _is_on_its_way(context: Any, instance: Any) -> bool:
    """Return whether a server is still being moved, to whatever host.

    A migration whose source has died in its middle is never ended by Nova.
    """
    if instance.task_state != task_states.MIGRATING:
        return False
    found = objects.MigrationList.get_in_progress_by_instance(
        context, instance.uuid, "live-migration"
    )
    return bool(found)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn an error of ours into Nova's word for a move that can't be."""
    try:
        yield
    except errors.AcceleratorError as error:
        LOG.error("%s", error)
        raise exception.MigrationPreCheckError(reason=error.public) from error
