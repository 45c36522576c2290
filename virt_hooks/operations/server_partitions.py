# SPDX-License-Identifier: Apache-2.0
"""Partitions of one server, as the overrides make and release them."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from nova import context as nova_context
from nova import exception

from nova_accel import errors, model
from nova_accel.config.lines import native_flavors
from nova_accel.model import attachment, names
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import connection, hypervisor, libvirt_guest
from virt_hooks.instance import (
    instance_request,
    served_flavor,
)
from virt_hooks.operations import nova_database
from virt_hooks.report import reporter
from virt_hooks.spawn import claim_store, lifecycle, ownership, spawn_plan


class ServerPartitions:
    """Makes and releases the partitions of servers, and publishes both."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        host: Any,
        hypervisor_reader: hypervisor.HypervisorReader,
        startup_servers: nova_database.StartupServers,
        reporter: reporter.Reporter,
        replacements: Collection[native_flavors.Replacement],
    ) -> None:
        """Serve the objects of one nova-compute.

        :param host: Nova's ``nova.virt.libvirt.host.Host``.
        :param replacements: of flavors for Nova's own vGPUs.
        """
        self.accel = accel
        self.host = host
        self.hypervisor = hypervisor_reader
        self.startup_servers = startup_servers
        self.reporter = reporter
        self._replacements = replacements
        self.wake_ups, self.measured = reporter.wake_ups, reporter.measured
        #: Operation of a thread: the server that it reboots, the request
        #: that it has ensured, and the claims. Of each thread, since a delete
        #: may overlap another operation on the same server.
        self._operation = threading.local()

    def publish(self, context: Any) -> None:
        """Publish a change of the cards in Placement at once."""
        self.reporter.publish(context)
        self.wake_ups.wake()

    # -- spawn -------------------------------------------------------------

    def receive(
        self, instance: Any, allocations: Any, is_rebuild: bool = False
    ) -> instance_request.InstanceRequest:
        """Return the request of a server that comes to this host.

        A flavor for Nova's own vGPUs, or with choices, is replaced
        (``served_flavor``).

        :param allocations: Nova's, of the server.
        :raises MalformedError: it can't be read.
        """
        allocated = _amounts_of(allocations)
        served_flavor.replace(
            instance,
            allocated,
            self._replacements,
            lambda: self._list_devices(allocated),
        )
        return self.parse(instance, allocations, is_rebuild)

    def _list_devices(
        self, allocated: model.Allocations
    ) -> list[model.Device]:
        """Return the devices of this host that allocations name."""
        root = self.accel.root
        return [
            device
            for device in self.accel.host.state.devices
            if root is not None
            and names.provider_uuid(root.uuid, device.address) in allocated
        ]

    def parse(
        self,
        instance: Any,
        allocations: Any = None,
        is_rebuild: bool = False,
        slots: tuple[model.Slot, ...] | None = None,
    ) -> instance_request.InstanceRequest:
        """Return the request of a server.

        :param allocations: Nova's, of a server that comes to this host.
        :param slots: as of ``instance_request.parse``.
        :raises MalformedError: it can't be read.
        """
        return instance_request.parse(
            instance,
            self.accel.root,
            _amounts_of(allocations),
            is_rebuild,
            slots,
        )

    def ensure(
        self, request: instance_request.InstanceRequest
    ) -> tuple[model.Claim, ...]:
        """Make the partitions of a server's slots; return their claims.

        :raises AcceleratorError: they can't be made here.
        """
        self._check_assigned(request)
        claims = self.accel.ensure(
            request.uuid,
            request.groups,
            request.slots,
            request.allocated,
            self.accel.programs.read_cached(request.images)
            if request.images
            else {},
        )
        self._operation.claims = claims
        return claims

    def _check_assigned(
        self, request: instance_request.InstanceRequest
    ) -> None:
        """Check that a server that comes here has a slot of what it has.

        Nova claims none of a device that could not be read: its provider
        stays in Placement, and has no slots.

        :raises ClaimError: it has none; it would start without its device.
        """
        allocated = request.allocated.keys() & self.reporter.reported
        if allocated and not request.slots and not request.is_rebuild:
            raise spawn_plan.unassigned_error(
                request.uuid,
                f"Placement allocates {', '.join(sorted(allocated))}",
                {n for uuid in allocated for n in request.allocated[uuid]},
            )

    def record_moved(
        self, instance: Any, request: instance_request.InstanceRequest
    ) -> instance_request.InstanceRequest:
        """Record the slots that a move gave to a server's attachments.

        The record changes in memory only: in each operation that moves a
        server, Nova saves the server after the driver has returned. Until
        then the groups of these attachments are open, so a service that
        ends before finds the same partitions, and the next operation on
        the server records their slots.

        :param request: of its slots on this host.
        :returns: the request with the slots of its attachments.
        :raises ClaimError: the slots do not match the groups.
        """
        root = self.accel.root
        if root is None or not request.has_open_attachments:
            return request
        located = instance_request.locate(
            request,
            instance_request.attachments_of(instance),
            root,
            self.accel.host.state,
        )
        instance.system_metadata = attachment.update_metadata(
            instance.system_metadata, located
        )
        groups = {each.open_group().suffix: each for each in located}
        return dataclasses.replace(
            request,
            groups=tuple(
                groups[group.suffix].request_group()
                if group.suffix in groups
                else group
                for group in request.groups
            ),
        )

    def record_if_moved(self, instance: Any) -> None:
        """Record the slots that a move gave to a server; log errors."""
        with error_guards.log_errors(
            "can't read which slots the attached profiles of server %s have",
            instance.uuid,
        ):
            self.record_moved(instance, self.parse(instance))

    @contextlib.contextmanager
    def starting(
        self,
        instance: Any,
        request: instance_request.InstanceRequest | None = None,
    ) -> Iterator[None]:
        """Retain what the guest that the block starts runs with.

        A delete may have released the claims before the guest was started.

        :param request: that has just been ensured, None if the block ensures
            it; this thread reads the claims of it.
        """
        self._operation.request = request
        if request is None:
            self._operation.claims = self.accel.claims_of(instance.uuid)
        try:
            yield
        finally:
            self._operation.request = None
            with error_guards.log_errors(
                "can't read the devices of the guest of %s", instance.uuid
            ):
                self._retain_running(instance, self._operation.claims)

    def _retain_running(
        self, instance: Any, claims: tuple[model.Claim, ...]
    ) -> None:
        if self.accel.retain_running(
            instance.uuid,
            claims,
            lambda claim: libvirt_guest.is_holding(self.host, instance, claim),
        ):
            self.publish(nova_context.get_admin_context())

    def read_for_guest(
        self, instance: Any
    ) -> tuple[instance_request.InstanceRequest, tuple[model.Claim, ...]]:
        """Return the request and the claims of a server's guest.

        The claims are ensured unless this thread has just done so, and none
        of them is missing by now.

        :raises nova.exception.ComputeResourcesUnavailable: the partitions
            can't be made here.
        """
        request = getattr(self._operation, "request", None)
        if request is not None and request.uuid == instance.uuid:
            claims = claim_store.made_only(self.accel.claims_of(request.uuid))
            if claim_store.has_claims_on(claims, request.slots):
                return request, claims
        else:
            request = None
        context = nova_context.get_admin_context()
        is_rebuild = request is not None and request.is_rebuild
        with self.as_nova_error(context, instance, is_rebuild):
            request = request or self.parse(instance)
            return request, self.ensure(request)

    def restore(self, context: Any, instance: Any) -> None:
        """Make the partitions that a reboot of the host has removed.

        :raises nova.exception.ComputeResourcesUnavailable: they can't be
            made.
        """
        if not instance.resources:
            return
        with self.as_nova_error(context, instance):
            request = self.parse(instance)
            with error_guards.log_errors("can't fetch bitstreams"):
                self.fetch_bitstreams(context, request)
            self.ensure(request)

    def as_nova_error(
        self, context: Any, instance: Any, is_rebuild: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Raise AcceleratorError as Nova's error; publish the host's state."""
        return error_guards.as_nova_error(
            lambda: self.reporter.publish(context), instance.uuid, is_rebuild
        )

    def fetch_bitstreams(
        self,
        context: Any,
        request: instance_request.InstanceRequest,
        is_new: bool = False,
    ) -> None:
        """Fetch a server's bitstreams; those of other servers stay cached.

        :param context: Nova's, of the request: Glance is read as its user.
        :param is_new: read Glance also if all bitstreams are cached.
        :raises BitstreamError: one may not be loaded, or can't be fetched.
        """
        images = request.images
        if images and (
            is_new or images - self.accel.programs.read_cached(images).keys()
        ):
            self.accel.programs.fetch(context, images, self.list_images())

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
        self._operation.retained = uuid
        try:
            yield
        finally:
            self._operation.retained = None

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
            retained = getattr(self._operation, "retained", None)
            is_retained = instance.uuid == retained
            if not (is_retained or nova_database.is_rebuilt(instance)):
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
                self.wake_ups.wake()
        self.accel.store.renew(uuid)  # a release may have failed

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


def _amounts_of(allocations: Any) -> model.Allocations:
    """Return the amounts of Nova's allocations by provider."""
    return {
        uuid: record["resources"]
        for uuid, record in (allocations or {}).items()
    }
