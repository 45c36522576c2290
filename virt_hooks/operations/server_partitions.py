# SPDX-License-Identifier: Apache-2.0
"""Partitions of one server, as the overrides make and release them."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nova import exception

from nova_accel import errors, model
from nova_accel.model import flavors
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import bitstream_images, instance_request
from virt_hooks.operations import nova_database
from virt_hooks.report import reconcile, reporter
from virt_hooks.spawn import claim_store, lifecycle, ownership


class ServerPartitions:
    """Makes and releases the partitions of servers, and publishes both."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        host: Any,
        images: bitstream_images.BitstreamImages,
        startup_servers: nova_database.StartupServers,
        reporter: reporter.Reporter,
        reconciler: reconcile.Reconciler,
    ) -> None:
        """Serve the objects of one nova-compute.

        :param host: Nova's ``nova.virt.libvirt.host.Host``.
        """
        self.accel = accel
        self.host = host
        self.images = images
        self.startup_servers = startup_servers
        self.reporter = reporter
        self.reconciler = reconciler
        #: Server that a thread reboots. Of each thread, since a delete may
        #: overlap a reboot of the same server.
        self._reboot = threading.local()

    def publish(self, context: Any) -> None:
        """Publish a change of the cards in Placement at once."""
        self.reporter.publish(context)
        self.reconciler.wake()

    # -- spawn -------------------------------------------------------------

    def ensure(
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
            lambda: self.reporter.publish(context), instance.uuid, is_rebuilt
        ):
            flavors.parse_options(instance.flavor.extra_specs)
            return self.accel.ensure(
                instance.uuid,
                instance_request.groups_of(instance),
                instance_request.slots_of(instance.resources, self.accel.root),
                amounts,
                instance_request.cached_bitstreams(self.images, instance),
            )

    def restore(self, context: Any, instance: Any) -> None:
        """Make the partitions that a reboot of the host has removed.

        :raises nova.exception.ComputeResourcesUnavailable: they can't be
            made.
        """
        if instance.resources:
            with error_guards.log_errors("can't fetch bitstreams"):
                self.fetch_bitstreams(context, instance)
            self.ensure(context, instance)

    def fetch_bitstreams(
        self, context: Any, instance: Any, is_new: bool = False
    ) -> None:
        """Fetch a server's bitstreams; those of other servers stay cached."""
        instance_request.fetch_bitstreams(
            self.images, context, instance, is_new, self.list_images()
        )

    def list_images(self) -> set[str]:
        """Return the images that servers of this host need here."""
        images = {claim.image for claim in self.accel.claims()} - {""}
        return images | self.startup_servers.images()

    def exclude_mdevs(self, uuids: Iterable[str]) -> list[str]:
        """Return the mdevs that are Nova's own."""
        owned = set(claim_store.handles_of(self.accel.claims()))
        if self.accel.root is not None:
            for device in self.accel.host.state.devices:
                owned.update(ownership.owned_handles(self.accel.root, device))
        return [uuid for uuid in uuids if uuid not in owned]

    # -- release -----------------------------------------------------------

    @contextlib.contextmanager
    def retained(self, uuid: str) -> Iterator[None]:
        """Retain a server's partitions in the calls of this thread."""
        self._reboot.uuid = uuid
        try:
            yield
        finally:
            self._reboot.uuid = None

    def cleanup(
        self, stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Release the server's partitions after the stock method.

        Also after an error, since Nova does not clean up again; a running
        guest keeps its devices. A reboot or rebuild retains them.
        """
        domain = self.read_domain(instance)
        try:
            return stock()
        finally:
            is_rebooted = instance.uuid == getattr(self._reboot, "uuid", None)
            if not (is_rebooted or nova_database.is_rebuilt(instance)):
                self.release_all(instance, domain)

    def release_all(
        self, instance: Any, domain: connection.HostdevUse
    ) -> None:
        """Release all partitions of a server; log errors."""
        self.release(
            instance, lambda: self._list_slots(instance, domain), domain
        )

    def release(
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
                self.accel.root, read_slots()
            )
            self.startup_servers.forget(uuid, released)
            self.accel.release(
                uuid,
                released,
                lambda claim: libvirt_guest.is_holding(
                    self.host, instance, claim
                ),
                domain,
            )
            if released:
                self.reconciler.wake()

    def read_domain(self, instance: Any) -> connection.HostdevUse:
        """Return the hostdevs of the server's domain, none after an error."""
        use = connection.HostdevUse()
        with error_guards.log_errors(
            "can't read the domain of %s", instance.uuid
        ):
            use = libvirt_guest.read_use(self.host, instance)
        return use

    def _list_slots(
        self, instance: Any, domain: connection.HostdevUse
    ) -> tuple[model.Slot, ...]:
        """Return a server's slots from claims, Nova and its domain.

        A server that was deleted while this service was down has no
        resources in Nova's database any more, and one that was evacuated
        has those of another host, but claims or a domain here.
        """
        server_slots = {*self.accel.slots_of(instance.uuid)}
        with contextlib.suppress(exception.NovaException):
            server_slots.update(
                instance_request.slots_of(instance.resources, self.accel.root)
            )
        with contextlib.suppress(
            exception.NovaException, errors.AcceleratorError
        ):
            if domain.functions and self.accel.root is not None:
                server_slots |= ownership.slots_of_domain(
                    self.accel.root,
                    self.accel.host.state,
                    instance_request.all_groups_of(instance),
                    domain,
                )
        return tuple(server_slots)
