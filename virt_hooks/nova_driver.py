# SPDX-License-Identifier: Apache-2.0
"""AccelLibvirtDriver: the overrides of Nova's libvirt driver.

Every override calls the stock method and adds to it; none re-implements
it. What fails here in a periodic path is logged and leaves the stock
behaviour; what fails in a spawn fails that spawn, and Nova reschedules.
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
from virt_hooks.attach import attach_guard, attach_rpc, hot_attach
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import bitstream_images, instance_request, slots
from virt_hooks.operations import (
    bypass,
    cold_migration,
    config_checks,
    live_migration,
    nova_database,
    rebuild,
    suspend,
)
from virt_hooks.report import (
    consumers,
    missing_allocations,
    reconcile,
    reporter,
)
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

        A setting that can't be used stops the service with one line.
        """
        super().__init__(virtapi, read_only)
        try:
            self._accel = setup.read_node(
                nova.conf.CONF, self._host.get_connection
            )
            kept = conf.read_settings(nova.conf.CONF).bitstreams
            self._images = bitstream_images.BitstreamImages(kept)
        except errors.ConfigurationError as error:
            LOG.error("nova-accel can't start: %s", error)
            sys.exit(1)
        self._reporter = reporter.Reporter(self._accel, virtapi)
        self._unallocated = missing_allocations.MissingAllocations(
            self._accel, virtapi
        )
        self._at_start = nova_database.StartupServers(self._accel)
        self._bus = attach_rpc.RpcServer(self)
        self._rebuilt = rebuild.RebuiltServers(
            self._accel,
            self._reporter,
            rebuild_allocations.RebuildAllocations(kept.state_dir),
        )
        self._consumers = consumers.Consumers(
            self._accel, self._reporter.providers_of
        )
        # Of each thread: a delete may overlap a reboot of the same server.
        self._rebooting = threading.local()
        self._looking = threading.Lock()
        #: Orphans whose guests still run, and were logged.
        self._abandoned: set[str] = set()
        self._reconciler = reconcile.Reconciler(
            nova.conf.CONF,
            self._accel,
            lambda: self._look(is_again=False),
            self._reporter,
            self._mend_at_start,
        )

    def init_host(self, host: str) -> None:
        """Start, and write down what this host's servers hold.

        Cards that a reboot put out of their mode come first: partitions
        stand on VFs that have to be there. What Nova's servers hold, on or
        off, is asked before that: none of it is taken away.

        :raises ConfigurationError: an option of Nova names a device that
            is offered here, too.
        """
        super().init_host(host)
        refusals: list[errors.ConfigurationError] = []
        with reporter.logged("can't check the configuration"):
            refusals += config_checks.check(
                self, nova.conf.CONF, self._accel.host
            )
        if refusals:
            raise refusals[0]
        self._accel.read_use = self._read_use
        self._accel.read_running = self._read_running
        self._accel.read_awaited = self._at_start.awaited
        with reporter.logged("can't recover this host's accelerators"):
            self._adopt_node()
            self._at_start.learn(self.get_available_nodes)
            self._accel.arrange()
            self._accel.host.refresh()
            self._at_start.recall(self.get_available_nodes)
        with reporter.logged("can't keep Placement in step"):
            self._reconciler.start()
        with reporter.logged("can't be asked over Nova's message bus"):
            self._bus.start(host)

    def cleanup_host(self, host: str) -> None:
        """End our own threads with the service."""
        with reporter.logged("can't leave Nova's message bus"):
            self._bus.stop()
        with reporter.logged("can't end the passes over Placement"):
            self._reconciler.stop()
        super().cleanup_host(host)

    def get_available_resource(self, nodename: str) -> Any:
        """Read the host anew; it is called outside Nova's lock."""
        with reporter.logged("can't refresh this host's accelerators"):
            self._reporter.forget_free()
            self._adopt_node()
            self._look()
            self._reporter.find_free(self.provider_tree)
        with reporter.logged("can't look for missing allocations"):
            self._unallocated.look()
        return super().get_available_resource(nodename)

    def update_provider_tree(
        self,
        provider_tree: Any,
        nodename: str,
        allocations: Any = None,
    ) -> None:
        """Lay our providers beside Nova's own, from the last reading."""
        made: list[str] = []
        with reporter.logged("Can't create new resource providers"):
            made += self._reporter.make_new(provider_tree)
        if made:  # the tracker begins again, with the tree as it is now
            raise exception.ResourceProviderUpdateConflict(
                uuid=made[0], generation=0, error="it is new"
            )
        super().update_provider_tree(
            provider_tree, nodename, allocations=allocations
        )
        with reporter.logged("can't report this host's accelerators"):
            is_first = not self._reporter.is_registered
            if self._reporter.lay(provider_tree, self._at_start.slots):
                self.provider_tree = copy.deepcopy(provider_tree)
                self._reporter.hand_out(provider_tree)
                if is_first:
                    self._reconciler.wake()

    @bypass.accelerators_only
    def rebuild(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Note the server's allocations: Nova may give them up.

        :raises NotImplementedError: always; Nova destroys and spawns then.
        """
        with reporter.logged("can't note what is booked"):
            self._rebuilt.note(instance, kwargs.get("allocations"))
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
        """Make the server's partitions first, then spawn its guest."""
        is_rebuilt = nova_database.is_rebuilt(instance)
        with rebuild.as_it_is_here(instance):
            with self._reporter.reschedule(context, instance.uuid, is_rebuilt):
                self._bring(context, instance, is_new=not is_rebuilt)
            if self._ensure(context, instance, allocations):
                # At once: until Placement knows what the card has become,
                # the scheduler goes on sending what it can't make any more.
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
        self._leave_behind(instance)
        return result

    @bypass.accelerators_only
    def _get_guest_config(
        self, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add the server's hostdevs, whatever operation asks."""
        found = self._ensure(nova_context.get_admin_context(), instance)
        config = super()._get_guest_config(instance, *args, **kwargs)
        with self._reporter.reschedule():
            options = flavors.parse_options(instance.flavor.extra_specs)
            version = self._host.get_connection().getLibVersion()
            own, more = instance_request.parted(instance, found)
            libvirt_guest.add_claims(config, own, options, version)
            # As they were given: a flavor says nothing of these.
            libvirt_guest.add_claims(config, more, flavors.Options(), version)
        return config

    def _vgpu_allocations(self, allocations: Any) -> Any:
        """Leave to Nova's own vGPU code what is not booked on ours."""
        found = super()._vgpu_allocations(allocations)
        if not found:
            return found
        accelerators: set[str] = set()
        with reporter.logged("can't tell which providers are accelerators"):
            if desired := self._reporter.desired():
                accelerators |= {node.uuid for node in desired.nodes}
        return {u: r for u, r in found.items() if u not in accelerators}

    def _guest_add_mdevs(self, guest: Any, chosen_mdevs: Any) -> Any:
        """Leave out our mdevs, which Nova found in the old domain."""
        if not chosen_mdevs:
            return super()._guest_add_mdevs(guest, chosen_mdevs)
        ours = self._handles() | {
            handle
            for device in self._accel.host.state.devices
            if self._accel.root is not None
            for handle in ownership.our_handles(self._accel.root, device)
        }
        stock = [uuid for uuid in chosen_mdevs if uuid not in ours]
        return super()._guest_add_mdevs(guest, stock)

    @bypass.accelerators_only
    def _hard_reboot(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Keep the partitions while the domain is torn down and remade."""
        with self._keeping(instance.uuid):
            with reporter.logged("can't book what Nova gave up"):
                self._rebuilt.look()
            with reporter.logged("can't fetch bitstreams"):
                self._bring(context, instance)
            try:
                return super()._hard_reboot(context, instance, *args, **kwargs)
            finally:
                if not self._accel.claims_of(instance.uuid):
                    self._note_orphaned_guest()

    def _note_orphaned_guest(self) -> None:
        """Note what a guest has whose server was deleted while it started.

        The delete has released its claims, and a function counts as clean.
        """
        with reporter.logged("can't note what guests have"), self._looking:
            self._accel.tidy_now()

    @bypass.accelerators_only
    def unrescue(self, context: Any, instance: Any) -> None:
        """Make what the guest had, if its host was restarted meanwhile."""
        if instance.resources:
            self._bring_back(context, instance)
        super().unrescue(context, instance)

    def _bring_back(self, context: Any, instance: Any) -> None:
        with reporter.logged("can't fetch bitstreams"):
            self._bring(context, instance)
        self._ensure(context, instance)

    @bypass.accelerators_only
    def _cleanup(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Unmake the server's partitions once its domain is gone."""
        had = self._read_domain(instance)
        try:
            return super()._cleanup(context, instance, *args, **kwargs)
        finally:  # also if it fails: nobody asks again, and a guest that
            # still runs keeps what it has
            keep = instance.uuid == getattr(self._rebooting, "uuid", None)
            if not (keep or nova_database.is_rebuilt(instance)):
                self._release(instance, lambda: self._held(instance, had), had)

    def _handles(self, instance: Any = None) -> frozenset[str]:
        """Return what the guests, or one, have of ours in their XML."""
        found = (
            self._accel.claims()
            if instance is None
            else self._accel.claims_of(instance.uuid)
        )
        return _handles_of(found)

    def _adopt_node(self) -> None:
        for uuid, name in self.get_nodenames_by_uuid().items():
            self._accel.adopt(providers.ProviderRoot(name=name, uuid=uuid))

    def _read_use(self) -> connection.HostdevUse:
        return connection.read_hostdevs(self._host.get_connection())

    def _read_running(self) -> connection.HostdevUse:
        return connection.read_hostdevs(
            self._host.get_connection(), is_running=True
        )

    def _look(self, is_again: bool = True) -> None:
        """Read the host anew, and bring in order what is found there.

        :param is_again: see ``Lifecycle.arrange``.
        """
        with self._looking:
            self._accel.host.refresh_changed()
            self._at_start.recall(self.get_available_nodes)
            with reporter.logged("can't look after servers that failed"):
                self._rebuilt.look()
            if self._accel.is_alone:
                with reporter.logged("can't compare claims with Nova"):
                    self._release_orphans()
                with reporter.logged("can't see what guests lack"):
                    self._plug_missing()
            self._accel.tidy_now()
            self._accel.arrange(is_again)

    def _release_orphans(self) -> None:
        """Release what consumers hold that Nova does not back any more.

        A release that fails is tried again with the next pass; until then
        what the consumer holds is reserved.
        """
        expected = self._passage.expected()
        orphans = self._consumers.list_orphans(
            self.get_available_nodes(), expected
        )
        self._accel.set_orphans(frozenset(orphans))
        self._abandoned &= self._accel.orphans
        for uuid, version in orphans.items():
            with reporter.logged("can't release accelerators of %s", uuid):
                self._release_orphan(uuid, version)

    def _release_orphan(self, uuid: str, version: int) -> None:
        """Release the claims of a consumer unless a guest runs with them.

        :param version: of the claims; newer ones stay.
        """
        claims, running = self._accel.claims_of(uuid), self._read_running()
        if any(running.holds(handle) for handle in _handles_of(claims)):
            if uuid not in self._abandoned:
                self._abandoned.add(uuid)
                LOG.warning(
                    "a guest runs with accelerators of %s, for which Nova has"
                    " no server, migration or allocation on this host: they"
                    " stay reserved until the guest is gone",
                    uuid,
                )
            return
        given = self._accel.slots_of(uuid)
        if self._accel.is_busy(given):
            return
        LOG.warning(
            "releasing accelerators of %s: Nova has no server, migration or"
            " allocation for it on this host",
            uuid,
        )
        self._accel.release(
            uuid,
            given,
            lambda claim: self._read_running().holds(claim.handle),
            is_due=lambda: self._accel.book.versions().get(uuid) == version,
        )
        if not self._accel.claims_of(uuid):
            self._at_start.forget(uuid, given)

    def _ensure(
        self, context: Any, instance: Any, allocations: Any = None
    ) -> tuple[model.Claim, ...]:
        booked = {
            uuid: record["resources"]
            for uuid, record in (allocations or {}).items()
        }
        is_rebuilt = nova_database.is_rebuilt(instance)
        with self._reporter.reschedule(context, instance.uuid, is_rebuilt):
            flavors.parse_options(instance.flavor.extra_specs)
            return self._accel.ensure(
                instance.uuid,
                instance_request.groups_of(instance),
                slots.below(
                    self._accel.root, slots.of_resources(instance.resources)
                ),
                booked,
                instance_request.recall(self._images, instance),
            )

    def _bring(
        self, context: Any, instance: Any, is_new: bool = False
    ) -> None:
        """Bring a server's bitstreams; those of the others stay here."""
        keep = self._images_needed()
        instance_request.bring(self._images, context, instance, is_new, keep)

    def _release(
        self,
        instance: Any,
        read_slots: Callable[[], Iterable[model.Slot]],
        had: connection.HostdevUse,
        consumer: str = "",
    ) -> None:
        uuid = consumer or instance.uuid
        with reporter.logged(
            "can't release accelerators of %s", instance.uuid
        ):
            given = slots.below(self._accel.root, read_slots())
            self._at_start.forget(uuid, given)
            self._accel.release(
                uuid,
                given,
                lambda claim: libvirt_guest.is_holding(
                    self._host, instance, claim
                ),
                had,
            )
            if given:
                self._reconciler.wake()

    def _held(
        self, instance: Any, had: connection.HostdevUse
    ) -> tuple[model.Slot, ...]:
        """Return a server's slots, from our own notes if Nova has none.

        A server that was deleted while this service was down has no
        resources in Nova's database any more, and one that was evacuated
        those of another host, but claims or a domain here.
        """
        found = {*self._accel.slots_of(instance.uuid)}
        with contextlib.suppress(exception.NovaException):
            found |= {
                *slots.below(
                    self._accel.root, slots.of_resources(instance.resources)
                )
            }
        with contextlib.suppress(
            exception.NovaException, errors.AcceleratorError
        ):
            if had.functions and self._accel.root is not None:
                found |= ownership.slots_had(
                    self._accel.root,
                    self._accel.host.state,
                    instance_request.all_groups_of(instance),
                    had,
                )
        return tuple(found)

    def _read_domain(self, instance: Any) -> connection.HostdevUse:
        """Return what the server's domain has, nothing if it can't tell."""
        found = connection.HostdevUse()
        with reporter.logged("can't read the domain of %s", instance.uuid):
            found = libvirt_guest.read_use(self._host, instance)
        return found

    @contextlib.contextmanager
    def _keeping(self, uuid: str) -> Iterator[None]:
        """Keep what a server has while this thread reboots it."""
        self._rebooting.uuid = uuid
        try:
            yield
        finally:
            self._rebooting.uuid = None


def _handles_of(claims: Iterable[model.Claim]) -> frozenset[str]:
    """Return the handles of claims, and of what travels with them."""
    return frozenset(h for c in claims for h in (c.handle, *c.members))
