# SPDX-License-Identifier: Apache-2.0
"""AccelLibvirtDriver: Nova's libvirt driver with accelerators.

Every override calls the stock method and adds to it. The exceptions:

- ``post_claim_migrate_data()`` skips the stock method for a guest without a
  NUMA topology, which has nothing to pin.
- An override that refuses, and one whose partitions can't be made, raises
  before the stock method; so does ``update_provider_tree()`` after it has
  created providers.
- ``_vgpu_allocations()``, ``_guest_add_mdevs()``,
  ``_attach_mediated_devices()`` and ``check_source_migrate_data_at_dest()``
  hide our providers and mdevs from the stock method.

An error in a periodic path is logged, and the stock method runs; an error
in a spawn fails that spawn, and Nova reschedules the server.

The life of a server's partitions:

- ``spawn()`` calls ``_ensure()``, which calls ``Lifecycle.ensure()``: it
  plans the claims of the slots that Nova has claimed, and makes the
  partitions (``_make_partitions()``; an mdev is created there).
- ``_get_guest_config()`` adds the hostdevs of the claims to the guest.
- ``_cleanup()`` calls ``_release_slots()``, which calls
  ``Lifecycle.release()``: it removes or scrubs the partitions. Nova also
  calls it after a failed spawn.
- ``_refresh()`` runs with each periodic task, and releases or removes what
  failed before.
"""

import contextlib
import copy
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception

from nova_accel import errors, model
from nova_accel.config import conf
from nova_accel.host.state import rebuild_allocations
from nova_accel.model import flavors, providers
from virt_hooks import error_guards
from virt_hooks.attach import attach_guard, attach_rpc, hot_attach
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import bitstream_images, instance_request
from virt_hooks.operations import (
    bypass,
    cold_migration,
    config_checks,
    live_migration,
    nova_database,
    rebuild,
    suspend,
)
from virt_hooks.report import claim_checks, reconcile, reporter
from virt_hooks.spawn import ownership, setup

LOG = logging.getLogger(__name__)


class AccelLibvirtDriver(
    hot_attach.HotAttachDriver,
    attach_guard.AttachGuardDriver,
    live_migration.LiveMigrationDriver,
    cold_migration.ColdMigrationDriver,
    suspend.SuspendDriver,
):
    """LibvirtDriver whose guests get the accelerators of their flavor."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        """Load the vendor drivers that ``[nova_accel]`` names.

        An invalid setting ends the service with one line in the log.
        """
        super().__init__(virtapi, read_only)
        self._domains = connection.LibvirtDomains(self._host)
        try:
            self._accel = setup.read_node(
                nova.conf.CONF, self._host.get_connection, self._domains
            )
            settings = conf.read_settings(nova.conf.CONF)
            self._images = bitstream_images.BitstreamImages(
                settings.bitstreams
            )
        except errors.ConfigurationError as error:
            LOG.error("nova-accel can't start: %s", error)
            sys.exit(1)
        self._reporter = reporter.Reporter(self._accel, virtapi)
        self._missing_allocations = claim_checks.MissingAllocations(
            self._accel, virtapi
        )
        self._startup_servers = nova_database.StartupServers(self._accel)
        self._rpc_server = attach_rpc.RpcServer(self)
        self._rebuilt_servers = rebuild.RebuiltServers(
            self._accel,
            self._reporter,
            rebuild_allocations.RebuildAllocations(settings.state_dir),
        )
        self._consumers = claim_checks.Consumers(
            self._accel, self._reporter.providers_of
        )
        #: Server that a thread reboots. Of each thread, since a delete may
        #: overlap a reboot of the same server.
        self._reboot = threading.local()
        self._refresh_lock = threading.Lock()
        #: Consumers without a server in Nova, with running guests, that
        #: were logged.
        self._logged_unbacked: set[str] = set()
        self._reconciler = reconcile.Reconciler(
            nova.conf.CONF,
            self._accel,
            lambda: self._refresh(retries_failed=False),
            self._reporter,
            self._recover_at_start,
        )

    # -- start and end of the service --------------------------------------

    def init_host(self, host: str) -> None:
        """Restore the claims of this host's servers, and start threads.

        Cards are set to their modes before claims are restored, since a
        reboot of the host removes their VFs. The slots of Nova's servers
        are read before that: nothing that they have is removed.

        :raises ConfigurationError: an option of Nova names a device that
            nova-accel offers, too.
        """
        super().init_host(host)
        refusals: list[errors.ConfigurationError] = []
        with error_guards.log_errors("can't check the configuration"):
            refusals += config_checks.check(
                self, nova.conf.CONF, self._accel.host
            )
        if refusals:
            raise refusals[0]
        with error_guards.log_errors("can't recover this host's accelerators"):
            self._adopt_node()
            self._startup_servers.read_servers(self.get_available_nodes)
            self._accel.set_card_modes(self._startup_servers.list_awaited)
            self._accel.host.refresh()
            self._startup_servers.restore_claims(self.get_available_nodes)
        with error_guards.log_errors("can't start the passes over Placement"):
            self._reconciler.start()
        with error_guards.log_errors(
            "can't serve RPC requests for accelerators"
        ):
            self._rpc_server.start(host)

    def cleanup_host(self, host: str) -> None:
        """Stop our threads before the stock method."""
        with error_guards.log_errors("can't stop the RPC server"):
            self._rpc_server.stop()
        with error_guards.log_errors("can't stop the passes over Placement"):
            self._reconciler.stop()
        super().cleanup_host(host)

    # -- provider tree -----------------------------------------------------

    def get_available_resource(self, nodename: str) -> Any:
        """Read the host again before the stock method.

        Nova's resource tracker does not hold its lock during this call.
        """
        with error_guards.log_errors("can't refresh this host's accelerators"):
            self._reporter.reset_free()
            self._adopt_node()
            self._refresh()
            self._reporter.find_free(self.provider_tree)
        with error_guards.log_errors("can't check claims for allocations"):
            self._missing_allocations.update()
        return super().get_available_resource(nodename)

    def update_provider_tree(
        self,
        provider_tree: Any,
        nodename: str,
        allocations: Any = None,
    ) -> None:
        """Add our providers to the tree, from the last reading.

        :raises nova.exception.ResourceProviderUpdateConflict: providers
            were created in Placement. Nova's tracker reads the tree again
            and retries.
        """
        created: list[str] = []
        with error_guards.log_errors("Can't create new resource providers"):
            created += self._reporter.create_new(provider_tree)
        if created:
            raise exception.ResourceProviderUpdateConflict(
                uuid=created[0], generation=0, error="it is new"
            )
        super().update_provider_tree(
            provider_tree, nodename, allocations=allocations
        )
        with error_guards.log_errors("can't report this host's accelerators"):
            is_first = not self._reporter.is_registered
            if self._reporter.update_tree(
                provider_tree, self._startup_servers.slots
            ):
                self.provider_tree = copy.deepcopy(provider_tree)
                self._reporter.use_tree(provider_tree)
                if is_first:
                    self._reconciler.wake()

    # -- spawn -------------------------------------------------------------

    @bypass.accelerators_only
    def rebuild(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Note the server's allocations, which Nova may remove.

        :raises NotImplementedError: always; Nova then destroys and spawns
            the server.
        """
        with error_guards.log_errors(
            "can't note the allocations of a rebuild"
        ):
            self._rebuilt_servers.note(instance, kwargs.get("allocations"))
        return super().rebuild(context, instance, *args, **kwargs)

    @bypass.accelerators_only
    def spawn(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fetch bitstreams and make partitions before the stock method."""
        is_rebuilt = nova_database.is_rebuilt(instance)
        with rebuild.with_current_slots(instance):
            with error_guards.as_nova_error(
                lambda: self._reporter.publish(context),
                instance.uuid,
                is_rebuilt,
            ):
                self._fetch_bitstreams(
                    context, instance, is_new=not is_rebuilt
                )
            if self._ensure(context, instance, allocations):
                # Published at once: otherwise the scheduler would select
                # this host for profiles that the card can't make any more.
                self._reporter.publish(context)
                self._reconciler.wake()
            result = super().spawn(
                context,
                instance,
                image_meta,
                injected_files,
                admin_password,
                allocations,
                *args,
                **kwargs,
            )
        self._drop_lost_attachments(instance)
        return result

    @bypass.accelerators_only
    def _get_guest_config(
        self, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add the server's hostdevs to the stock configuration.

        Partitions that are missing are made, for any operation.
        """
        claims = self._ensure(nova_context.get_admin_context(), instance)
        config = super()._get_guest_config(instance, *args, **kwargs)
        with error_guards.as_nova_error():
            options = flavors.parse_options(instance.flavor.extra_specs)
            version = self._host.get_connection().getLibVersion()
            own, attached = instance_request.split_claims(instance, claims)
            libvirt_guest.add_claims(config, own, options, version)
            # The options of the flavor are for its own devices only.
            libvirt_guest.add_claims(
                config, attached, flavors.Options(), version
            )
        return config

    def _vgpu_allocations(self, allocations: Any) -> Any:
        """Remove our providers from those that Nova makes vGPUs for."""
        vgpu_allocations = super()._vgpu_allocations(allocations)
        if not vgpu_allocations:
            return vgpu_allocations
        accelerators: set[str] = set()
        with error_guards.log_errors("can't list the accelerators' providers"):
            if desired := self._reporter.desired():
                accelerators |= {node.uuid for node in desired.nodes}
        return {
            uuid: record
            for uuid, record in vgpu_allocations.items()
            if uuid not in accelerators
        }

    def _guest_add_mdevs(self, guest: Any, chosen_mdevs: Any) -> Any:
        """Skip our mdevs, which Nova found in the old domain."""
        if not chosen_mdevs:
            return super()._guest_add_mdevs(guest, chosen_mdevs)
        owned = self._claimed_handles() | {
            handle
            for device in self._accel.host.state.devices
            if self._accel.root is not None
            for handle in ownership.owned_handles(self._accel.root, device)
        }
        stock = [uuid for uuid in chosen_mdevs if uuid not in owned]
        return super()._guest_add_mdevs(guest, stock)

    # -- reboot and rescue -------------------------------------------------

    @bypass.accelerators_only
    def _hard_reboot(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Retain the partitions while Nova replaces the domain."""
        with self._retained_claims(instance.uuid):
            with error_guards.log_errors("can't restore removed allocations"):
                self._rebuilt_servers.restore_allocations()
            with error_guards.log_errors("can't fetch bitstreams"):
                self._fetch_bitstreams(context, instance)
            try:
                return super()._hard_reboot(context, instance, *args, **kwargs)
            finally:
                if not self._accel.claims_of(instance.uuid):
                    self._note_guest_of_deleted_server()

    def _note_guest_of_deleted_server(self) -> None:
        """Note the functions of a guest whose server was just deleted.

        The delete has released the claims while the guest started, so that
        its functions count as clean.
        """
        with error_guards.log_errors("can't read the devices of guests"):
            with self._refresh_lock:
                self._accel.clean_up()

    @bypass.accelerators_only
    def unrescue(self, context: Any, instance: Any) -> None:
        """Make missing partitions before the stock method.

        The host may have been rebooted since the guest was defined.
        """
        if instance.resources:
            self._restore_partitions(context, instance)
        super().unrescue(context, instance)

    def _restore_partitions(self, context: Any, instance: Any) -> None:
        with error_guards.log_errors("can't fetch bitstreams"):
            self._fetch_bitstreams(context, instance)
        self._ensure(context, instance)

    # -- delete ------------------------------------------------------------

    @bypass.accelerators_only
    def _cleanup(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Release the server's partitions after the stock method.

        Also after an error, since Nova does not clean up again; a running
        guest keeps its devices. A reboot or rebuild retains them.
        """
        domain = self._read_domain(instance)
        try:
            return super()._cleanup(context, instance, *args, **kwargs)
        finally:
            is_rebooted = instance.uuid == getattr(self._reboot, "uuid", None)
            if not (is_rebooted or nova_database.is_rebuilt(instance)):
                self._release_slots(
                    instance,
                    lambda: self._list_slots(instance, domain),
                    domain,
                )

    # -- periodic passes ---------------------------------------------------

    def _adopt_node(self) -> None:
        for uuid, name in self.get_nodenames_by_uuid().items():
            self._accel.adopt(providers.ProviderRoot(name=name, uuid=uuid))

    def _refresh(self, retries_failed: bool = True) -> None:
        """Read the host again, and repair what failed before.

        :param retries_failed: see ``Lifecycle.set_card_modes``.
        """
        with self._refresh_lock:
            self._accel.host.refresh_changed()
            self._startup_servers.restore_claims(self.get_available_nodes)
            with error_guards.log_errors("can't restore removed allocations"):
                self._rebuilt_servers.restore_allocations()
            if self._accel.is_alone:
                with error_guards.log_errors("can't compare claims with Nova"):
                    self._release_unbacked_claims()
                with error_guards.log_errors(
                    "can't read the devices of guests"
                ):
                    self._plug_missing()
            self._accel.clean_up()
            self._accel.set_card_modes(
                self._startup_servers.list_awaited, retries_failed
            )

    def _release_unbacked_claims(self) -> None:
        """Release the claims of consumers that Nova does not back any more.

        A release that fails is tried again with the next pass; until then
        the claims are reserved.
        """
        expected = self._migration_partitions.expected()
        unbacked = self._consumers.list_unbacked(
            self.get_available_nodes(), expected
        )
        self._accel.set_unbacked_consumers(frozenset(unbacked))
        self._logged_unbacked &= self._accel.unbacked_consumers
        for uuid, version in unbacked.items():
            with error_guards.log_errors(
                "can't release accelerators of %s", uuid
            ):
                self._release_unbacked_consumer(uuid, version)

    def _release_unbacked_consumer(self, uuid: str, version: int) -> None:
        """Release the claims of a consumer unless a guest runs with them.

        :param version: of the claims; newer claims stay.
        """
        claims = self._accel.claims_of(uuid)
        running = self._domains.read_running()
        if any(running.holds(handle) for handle in _handles_of(claims)):
            if uuid not in self._logged_unbacked:
                self._logged_unbacked.add(uuid)
                LOG.warning(
                    "a guest runs with accelerators of %s, for which Nova has"
                    " no server, migration or allocation on this host: they"
                    " stay reserved until the guest is gone",
                    uuid,
                )
            return
        claimed = self._accel.slots_of(uuid)
        if self._accel.is_busy(claimed):
            return
        LOG.warning(
            "releasing accelerators of %s: Nova has no server, migration or"
            " allocation for it on this host",
            uuid,
        )
        self._accel.release(
            uuid,
            claimed,
            lambda claim: self._domains.read_running().holds(claim.handle),
            is_due=lambda: self._accel.store.versions().get(uuid) == version,
        )
        if not self._accel.claims_of(uuid):
            self._startup_servers.forget(uuid, claimed)

    # -- claims and bitstreams of a server ---------------------------------

    def _ensure(
        self, context: Any, instance: Any, allocations: Any = None
    ) -> tuple[model.Claim, ...]:
        """Make the partitions of a server's slots; return their claims.

        :param allocations: of a server that comes to this host.
        :raises nova.exception.ComputeResourcesUnavailable: they can't be
            made here.
        """
        amounts = {
            uuid: record["resources"]
            for uuid, record in (allocations or {}).items()
        }
        is_rebuilt = nova_database.is_rebuilt(instance)
        with error_guards.as_nova_error(
            lambda: self._reporter.publish(context), instance.uuid, is_rebuilt
        ):
            flavors.parse_options(instance.flavor.extra_specs)
            return self._accel.ensure(
                instance.uuid,
                instance_request.groups_of(instance),
                instance_request.slots_of(
                    instance.resources, self._accel.root
                ),
                amounts,
                instance_request.cached_bitstreams(self._images, instance),
            )

    def _fetch_bitstreams(
        self, context: Any, instance: Any, is_new: bool = False
    ) -> None:
        """Fetch a server's bitstreams; those of other servers stay cached."""
        keep = self._images_needed()
        instance_request.fetch_bitstreams(
            self._images, context, instance, is_new, keep
        )

    def _release_slots(
        self,
        instance: Any,
        read_slots: Callable[[], Iterable[model.Slot]],
        domain: connection.HostdevUse,
        consumer: str = "",
    ) -> None:
        """Release the partitions of some slots; log errors.

        :param domain: the hostdevs of the server's domain.
        :param consumer: uuid of the consumer if it is not the server.
        """
        uuid = consumer or instance.uuid
        with error_guards.log_errors(
            "can't release accelerators of %s", instance.uuid
        ):
            released = instance_request.slots_below_root(
                self._accel.root, read_slots()
            )
            self._startup_servers.forget(uuid, released)
            self._accel.release(
                uuid,
                released,
                lambda claim: libvirt_guest.is_holding(
                    self._host, instance, claim
                ),
                domain,
            )
            if released:
                self._reconciler.wake()

    def _list_slots(
        self, instance: Any, domain: connection.HostdevUse
    ) -> tuple[model.Slot, ...]:
        """Return a server's slots from claims, Nova and its domain.

        A server that was deleted while this service was down has no
        resources in Nova's database any more, and one that was evacuated
        has those of another host, but claims or a domain here.
        """
        server_slots = {*self._accel.slots_of(instance.uuid)}
        with contextlib.suppress(exception.NovaException):
            server_slots.update(
                instance_request.slots_of(instance.resources, self._accel.root)
            )
        with contextlib.suppress(
            exception.NovaException, errors.AcceleratorError
        ):
            if domain.functions and self._accel.root is not None:
                server_slots |= ownership.slots_of_domain(
                    self._accel.root,
                    self._accel.host.state,
                    instance_request.all_groups_of(instance),
                    domain,
                )
        return tuple(server_slots)

    def _read_domain(self, instance: Any) -> connection.HostdevUse:
        """Return the hostdevs of the server's domain, none after an error."""
        use = connection.HostdevUse()
        with error_guards.log_errors(
            "can't read the domain of %s", instance.uuid
        ):
            use = libvirt_guest.read_use(self._host, instance)
        return use

    def _claimed_handles(self, instance: Any = None) -> frozenset[str]:
        claims = (
            self._accel.claims()
            if instance is None
            else self._accel.claims_of(instance.uuid)
        )
        return _handles_of(claims)

    @contextlib.contextmanager
    def _retained_claims(self, uuid: str) -> Iterator[None]:
        """Retain a server's claims in the calls of this thread's reboot."""
        self._reboot.uuid = uuid
        try:
            yield
        finally:
            self._reboot.uuid = None


def _handles_of(claims: Iterable[model.Claim]) -> frozenset[str]:
    """Return the handles of claims, and of the functions with them."""
    return frozenset(
        handle for claim in claims for handle in (claim.handle, *claim.members)
    )
