# SPDX-License-Identifier: Apache-2.0
"""AccelLibvirtDriver: Nova's libvirt driver with accelerators.

The class body lists every override of Nova's driver. An override with
``@accelerators_only`` runs only for servers with accelerators. It gets one
argument more than Nova's method: ``stock``, which runs that method with the
arguments of the call. An override without it logs our errors, and with
``@started_only`` it runs only if the hooks were constructed. The work is done
by the objects of ``hooks.Hooks``, whose methods have the arguments.

Every override calls the stock method and adds to it. The exceptions:

- ``post_claim_migrate_data()`` skips the stock method for a guest without a
  NUMA topology, which has nothing to pin.
- An override that refuses, and one whose partitions can't be made, raises
  before the stock method; so does ``update_provider_tree()`` after it has
  created providers.
- ``_live_migration_operation()`` replaces the guest where an mdev becomes a
  typed VF.
- ``_vgpu_allocations()``, ``_guest_add_mdevs()``,
  ``_attach_mediated_devices()`` and ``check_source_migrate_data_at_dest()``
  hide our providers and mdevs from the stock method.

An error in a periodic path is logged, and the stock method runs; an error
in a spawn fails that spawn, and Nova reschedules the server.

If the hooks can't be constructed, the service runs as Nova's own driver:
all units of our providers are reserved, and servers with accelerators are
refused (``bypass``), until the cause is removed and the service restarted.

The life of a server's partitions:

- ``spawn()`` calls ``ServerPartitions.ensure()``, which calls
  ``Lifecycle.ensure()``: it plans the claims of the slots that Nova has
  claimed, and makes the partitions (``_make_partitions()``; an mdev is
  created there).
- ``_get_guest_config()`` adds the hostdevs of the claims to the guest.
- ``_create_guest()`` checks the buses of the guest before it starts.
- ``_build_device_metadata()`` adds them to the metadata of the guest.
- ``_cleanup()`` calls ``ServerPartitions.cleanup()``, which calls
  ``Lifecycle.release()``: it removes or scrubs the partitions. Nova also
  calls it after a failed spawn.
- ``HostPasses.refresh()`` runs with each periodic task, and releases or
  removes what failed before.
"""

import copy
import functools
import logging
import sys
from typing import Any, NoReturn

import nova.conf
from nova import exception
from nova.virt.libvirt import driver

from nova_accel import errors, model
from virt_hooks import hooks, nova_private
from virt_hooks.bypass import accelerators_only, started_only
from virt_hooks.error_guards import Stock, log_errors
from virt_hooks.instance import attach_guard
from virt_hooks.operations import nova_database
from virt_hooks.report import (
    config_checks,
    host_adoption,
    nova_provider_tree,
    server_allocations,
)

LOG = logging.getLogger(__name__)


def _end_service(*refusals: errors.ConfigurationError) -> NoReturn:
    """End nova-compute, with one line in its log for each error."""
    for error in refusals:
        LOG.error("nova-accel can't start: %s", error)
    sys.exit(1)


class AccelLibvirtDriver(driver.LibvirtDriver):
    """LibvirtDriver whose guests get the accelerators of their flavor."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        """Construct the hooks.

        An invalid setting ends the service with one line in the log.
        """
        super().__init__(virtapi, read_only)
        #: Whether the hooks were constructed.
        self.is_started = False
        #: Slots of this host's servers, read only without the hooks.
        self._startup_slots: frozenset[model.Slot] = frozenset()
        #: None without a plan: then no code of adoptions runs.
        self._adoption: host_adoption.HostAdoption | None = None
        with log_errors(
            "nova-accel can't start: servers without accelerators go on, those"
            " with accelerators are refused; remove the cause, and restart"
            " nova-compute"
        ):
            try:
                self._hooks = hooks.Hooks(
                    virtapi,
                    self._host,
                    self.get_available_nodes,
                    self._build_device_metadata,
                )
            except errors.BrokenDriverError:
                raise
            except errors.ConfigurationError as error:
                _end_service(error)
            self._accel = self._hooks.partitions.accel
            self._adoption = self._hooks.adoption
            self.is_started = True

    # -- start and end of the service --------------------------------------

    def init_host(self, host: str) -> None:
        """Restore the claims of this host's servers, and start threads.

        An option of Nova that names a device that nova-accel offers, too,
        ends the service with one line in the log.
        """
        super().init_host(host)
        if not self.is_started:
            with log_errors("can't read the slots of this host's servers"):
                self._startup_slots = nova_database.read_slots(
                    self.get_nodenames_by_uuid().values()
                )
            return
        adoption = self._adoption
        is_undoing = adoption is not None and adoption.is_undoing
        refusals: list[errors.ConfigurationError] = []
        if not is_undoing:
            with log_errors("can't check the configuration"):
                refusals += config_checks.check(
                    nova.conf.CONF, self._accel.host
                )
        if adoption is not None and not refusals:
            try:
                adoption.prepare(
                    self.get_nodenames_by_uuid(),
                    functools.partial(nova_private.list_functions, self),
                )
            except errors.ConfigurationError as error:
                refusals.append(error)
        if refusals:
            _end_service(*refusals)
        if is_undoing:
            # The host goes back to Nova's own driver, as which it runs.
            self.is_started = False
            return
        with log_errors("Nova reads allocations that it does not use"):
            server_allocations.read_on_use(self.virtapi.reportclient)
        with log_errors("can't check this host"):
            self._hooks.reconciler.record_checks(
                config_checks.log_failed_checks(nova.conf.CONF)
            )
        with log_errors("can't recover this host's accelerators"):
            self._hooks.passes.start(self.get_nodenames_by_uuid())
        with log_errors("can't start the passes over Placement"):
            self._hooks.reconciler.start()
        with log_errors("can't serve RPC requests for accelerators"):
            self._hooks.operations.start(host)

    @started_only
    def cleanup_host(self, host: str) -> None:
        with log_errors("can't stop the RPC server"):
            self._hooks.operations.stop()
        with log_errors("can't stop the passes over Placement"):
            self._hooks.reconciler.stop()
        super().cleanup_host(host)

    # -- report ------------------------------------------------------------

    @started_only
    def get_available_resource(self, nodename: str) -> Any:
        """Read the host again; Nova does not hold its tracker's lock."""
        with log_errors("can't refresh this host's accelerators"):
            self._hooks.passes.run(
                self.get_nodenames_by_uuid(), self.provider_tree
            )
        if self._adoption is None or not self._adoption.is_adopting:
            with log_errors("can't close Nova's own vGPU providers"):
                self._hooks.native_providers.close(
                    self.provider_tree,
                    functools.partial(nova_private.list_mdev_parents, self),
                )
        if self._adoption is not None:
            with log_errors("can't read the progress of the adoption"):
                self._adoption.run_pass()
        with log_errors("can't check claims for allocations"):
            self._hooks.missing_allocations.update()
        with log_errors("can't recover interrupted attachments"):
            self._hooks.operations.recover()
        return super().get_available_resource(nodename)

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Add our providers to the tree, from the last reading.

        :raises nova.exception.ResourceProviderUpdateConflict: providers
            were created in Placement. Nova's tracker reads the tree again
            and retries.
        :raises nova.exception.ReshapeNeeded: servers are to be adopted; see
            ``host_adoption.HostAdoption.reshape``.
        """
        if not self.is_started:
            super().update_provider_tree(
                provider_tree, nodename, allocations=allocations
            )
            if self._adoption is not None and self._adoption.is_undoing:
                self._adoption.reshape(provider_tree, nodename, allocations)
                return
            with log_errors("can't reserve this host's accelerators"):
                nova_provider_tree.reserve_all(
                    provider_tree, nodename, self._startup_slots
                )
            return
        reporter = self._hooks.partitions.reporter
        created: list[str] = []
        with log_errors("Can't create new resource providers"):
            created += reporter.create_new(provider_tree)
        if created:
            raise exception.ResourceProviderUpdateConflict(
                uuid=created[0], generation=0, error="it is new"
            )
        super().update_provider_tree(
            provider_tree, nodename, allocations=allocations
        )
        with log_errors("can't remove Nova's own vGPU providers"):
            self._hooks.native_providers.remove(provider_tree)
        is_updated = False
        with log_errors("can't report this host's accelerators"):
            startup_slots = self._hooks.partitions.startup_servers.slots
            is_updated = reporter.update_tree(provider_tree, startup_slots)
        if self._adoption is not None:
            self._adoption.reshape(provider_tree, nodename, allocations)
        if is_updated:
            with log_errors("can't use this host's accelerators"):
                self.provider_tree = copy.deepcopy(provider_tree)
                reporter.use_tree(provider_tree)

    # -- spawn, reboot and delete ------------------------------------------

    @accelerators_only
    def rebuild(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.rebuilt_servers.rebuild(*args, **kwargs)

    @accelerators_only
    def spawn(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.spawn.spawn(*args, **kwargs)

    @accelerators_only
    def _get_guest_config(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.spawn.get_guest_config(*args, **kwargs)

    @accelerators_only
    def _create_guest(
        self,
        _stock: Stock,
        context: Any,
        xml: str,
        instance: Any,
        power_on: bool = True,
        pause: bool = False,
        post_xml_callback: Any = None,
    ) -> Any:
        """Check the guest that is defined before it starts."""
        return super()._create_guest(
            context,
            xml,
            instance,
            power_on,
            pause,
            self._hooks.spawn.check_defined(instance, post_xml_callback),
        )

    @accelerators_only
    def _build_device_metadata(
        self, stock: Stock, *args: Any, **kwargs: Any
    ) -> Any:
        for build in self._hooks.metadata_builders:
            stock = functools.partial(build, stock, *args, **kwargs)
        return stock()

    @started_only
    def _vgpu_allocations(self, allocations: Any) -> Any:
        """Remove our providers from those that Nova makes vGPUs for."""
        vgpu_allocations = super()._vgpu_allocations(allocations)
        if vgpu_allocations:
            with log_errors("can't list the accelerators' providers"):
                return self._hooks.partitions.reporter.exclude_owned(
                    vgpu_allocations
                )
        return vgpu_allocations

    @started_only
    def _guest_add_mdevs(self, guest: Any, chosen_mdevs: Any) -> Any:
        """Skip our mdevs, which Nova found in the old domain."""
        with log_errors("can't exclude the mdevs of accelerators"):
            if chosen_mdevs and self._adoption is not None:
                chosen_mdevs = self._adoption.exclude_mdevs(chosen_mdevs)
            if chosen_mdevs:
                chosen_mdevs = self._hooks.partitions.exclude_mdevs(
                    chosen_mdevs
                )
        return super()._guest_add_mdevs(guest, chosen_mdevs)

    @accelerators_only
    def _hard_reboot(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.reboot.hard_reboot(*args, **kwargs)

    @accelerators_only
    def rescue(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.reboot.rescue(*args, **kwargs)

    @accelerators_only
    def unrescue(self, *args: Any, **kwargs: Any) -> None:
        self._hooks.reboot.unrescue(*args, **kwargs)

    @accelerators_only
    def _cleanup(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.partitions.cleanup(*args, **kwargs)

    # -- suspend and snapshot ----------------------------------------------

    @accelerators_only
    def suspend(self, *args: Any, **kwargs: Any) -> None:
        self._hooks.suspend.suspend(*args, **kwargs)

    @accelerators_only
    def resume(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> None:
        stock_suspend = functools.partial(super().suspend, context, instance)
        self._hooks.suspend.resume(stock, stock_suspend, context, instance)

    @started_only
    def _attach_mediated_devices(self, guest: Any, devs: Any) -> None:
        """Skip our mdevs, which ``resume`` plugs in."""
        devs = list(devs)
        with log_errors("can't exclude the mdevs of accelerators"):
            if devs:
                devs = self._hooks.suspend.exclude_claimed(devs)
        super()._attach_mediated_devices(guest, devs)

    @accelerators_only
    def _resume_guest_after_snapshot(self, *args: Any, **kwargs: Any) -> None:
        self._hooks.suspend.resume_guest_after_snapshot(*args, **kwargs)

    # -- cold migration and resize -----------------------------------------

    @accelerators_only
    def migrate_disk_and_power_off(self, *args: Any, **kwargs: Any) -> Any:
        return attach_guard.migrate_disk_and_power_off(*args, **kwargs)

    @accelerators_only
    def power_off(self, *args: Any, **kwargs: Any) -> None:
        attach_guard.power_off(*args, **kwargs)

    @accelerators_only
    def finish_migration(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.cold_migration.finish_migration(*args, **kwargs)

    @accelerators_only
    def finish_revert_migration(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.cold_migration.finish_revert_migration(
            *args, **kwargs
        )

    @accelerators_only
    def confirm_migration(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.cold_migration.confirm_migration(*args, **kwargs)

    # -- live migration ----------------------------------------------------

    @accelerators_only
    def check_can_live_migrate_destination(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        attach_guard.check_live_migration(instance)
        return self._hooks.live_migration.check_destination(stock, instance)

    @accelerators_only
    def check_can_live_migrate_source(
        self,
        stock: Stock,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        attach_guard.check_live_migration(instance)
        return self._hooks.live_migration.check_source(
            stock, instance, dest_check_data
        )

    @accelerators_only
    def post_claim_migrate_data(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.live_migration.claim_migrate_data(*args, **kwargs)

    @accelerators_only
    def check_source_migrate_data_at_dest(
        self, *args: Any, **kwargs: Any
    ) -> Any:
        return self._hooks.live_migration.check_arrival(*args, **kwargs)

    @accelerators_only
    def pre_live_migration(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.live_migration.pre_live_migration(*args, **kwargs)

    @accelerators_only
    def _live_migration_operation(
        self,
        _stock: Stock,
        context: Any,
        instance: Any,
        dest: str,
        block_migration: bool,
        migrate_data: Any,
        guest: Any,
        device_names: Any,
    ) -> Any:
        """Change the guest's XML where an mdev becomes a typed VF."""
        return super()._live_migration_operation(
            context,
            instance,
            dest,
            block_migration,
            migrate_data,
            self._hooks.live_migration.change_devices(guest, migrate_data),
            device_names,
        )

    @accelerators_only
    def post_live_migration_at_source(self, *args: Any, **kwargs: Any) -> Any:
        return self._hooks.live_migration.release(*args, **kwargs)

    @accelerators_only
    def post_live_migration_at_destination(
        self, *args: Any, **kwargs: Any
    ) -> Any:
        return self._hooks.live_migration.post_at_destination(*args, **kwargs)

    @accelerators_only
    def rollback_live_migration_at_destination(
        self, *args: Any, **kwargs: Any
    ) -> Any:
        return self._hooks.live_migration.release(*args, **kwargs)
