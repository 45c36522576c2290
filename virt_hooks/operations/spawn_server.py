# SPDX-License-Identifier: Apache-2.0
"""Spawn of a server, and the configuration of its guest."""

import contextlib
from collections.abc import Callable
from typing import Any

from nova_accel.model import flavors
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import (
    cold_migration,
    nova_database,
    server_partitions,
)

# Returns a context, by Nova's context and the instance.
Carried = Callable[[Any, Any], contextlib.AbstractContextManager[None]]


class Spawn:
    """Makes the partitions of a server, and adds them to its guest."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        moves: cold_migration.ColdMigration,
        carried: Carried,
        layouts: libvirt_guest.GuestLayouts,
    ) -> None:
        """Spawn servers.

        :param carried: returns the context in which an evacuated server is
            spawned with its attachments (``ExtraOperations.carried``).
        """
        self._partitions = partitions
        self._moves = moves
        self._carried = carried
        self._layouts = layouts

    def spawn(
        self,
        stock: Stock,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        """Fetch bitstreams and make partitions before the stock method."""
        if nova_database.is_evacuated(instance):
            with self._carried(context, instance):
                return self._spawn(stock, context, instance, allocations)
        return self._spawn(stock, context, instance, allocations)

    def _spawn(
        self, stock: Stock, context: Any, instance: Any, allocations: Any
    ) -> Any:
        is_rebuild = nova_database.is_rebuilt(instance)
        with (
            self._moves.rebuilt_in_place(instance)
            if is_rebuild
            else contextlib.nullcontext()
        ):
            with (
                self._partitions.as_nova_error(context, instance, is_rebuild),
                self._partitions.measured.measure("spawn"),
            ):
                if not is_rebuild:
                    instance_request.check_carried(
                        instance,
                        instance.flavor,
                        instance_request.slots_of(instance.resources),
                    )
                request = self._partitions.receive(
                    instance, allocations, is_rebuild
                )
                self._partitions.fetch_bitstreams(
                    context, request, is_new=not is_rebuild
                )
                claims = self._partitions.ensure(request)
                request = self._partitions.record_moved(instance, request)
            if claims:
                # Published at once: otherwise the scheduler would select
                # this host for profiles that the card can't make any more.
                self._partitions.publish(context)
            with self._partitions.starting(instance, request):
                return stock()

    def get_guest_config(
        self, stock: Stock, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Add the server's hostdevs to the stock configuration; return it."""
        request, claims = self._partitions.read_for_guest(instance)
        config = stock()
        with error_guards.as_nova_error():
            reader = self._partitions.hypervisor
            own = request.list_claims(claims, is_attached=False)
            attached = request.list_claims(claims, is_attached=True)
            places = self._layouts.plan(
                config, instance.uuid, request.options, (*own, *attached)
            )
            libvirt_guest.add_claims(
                config, own, request.options, reader, places
            )
            # The options of the flavor are for its own devices only.
            libvirt_guest.add_claims(
                config, attached, flavors.Options(), reader, places
            )
        return config

    def check_defined(
        self, instance: Any, post_xml_callback: Callable[[], None] | None
    ) -> Callable[[], None]:
        """Return what Nova calls between definition and start of a guest.

        :param post_xml_callback: Nova's own, None for none.
        """

        def check() -> None:
            with error_guards.as_nova_error(uuid=instance.uuid):
                self._layouts.correct_buses(
                    self._partitions.host.get_guest(instance)
                )
            if post_xml_callback is not None:
                post_xml_callback()

        return check
