# SPDX-License-Identifier: Apache-2.0
"""Spawn of a server, and the configuration of its guest."""

import logging
from typing import Any

from nova_accel.model import attachment, flavors
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import nova_database, rebuild, server_partitions

LOG = logging.getLogger(__name__)


class Spawn:
    """Makes the partitions of a server, and adds them to its guest."""

    def __init__(self, partitions: server_partitions.ServerPartitions) -> None:
        self._partitions = partitions

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
        is_rebuild = nova_database.is_rebuilt(instance)
        with rebuild.with_current_slots(instance, is_rebuild):
            with (
                self._partitions.as_nova_error(context, instance, is_rebuild),
                self._partitions.reconciler.operations.measure("spawn"),
            ):
                request = self._partitions.parse(
                    instance, allocations, is_rebuild
                )
                self._partitions.fetch_bitstreams(
                    context, request, is_new=not is_rebuild
                )
                claims = self._partitions.ensure(request)
            if claims:
                # Published at once: otherwise the scheduler would select
                # this host for profiles that the card can't make any more.
                self._partitions.publish(context)
            with self._partitions.ensured(request):
                result = stock()
        if not is_rebuild:
            _drop_lost_attachments(instance)
        return result

    def get_guest_config(
        self, stock: Stock, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Add the server's hostdevs to the stock configuration; return it."""
        request, claims = self._partitions.read_for_guest(instance)
        config = stock()
        with error_guards.as_nova_error():
            version = self._partitions.host.get_connection().getLibVersion()
            own = request.list_claims(claims, is_attached=False)
            attached = request.list_claims(claims, is_attached=True)
            libvirt_guest.add_claims(config, own, request.options, version)
            # The options of the flavor are for its own devices only.
            libvirt_guest.add_claims(
                config, attached, flavors.Options(), version
            )
        return config


def _drop_lost_attachments(instance: Any) -> None:
    """Remove attachments of another host from an evacuated server.

    Nova saves the server after its spawn. It must not be saved before,
    since its resources are those of the migration context during the
    spawn (nova/objects/instance.py, mutated_migration_context).
    """
    attachments = instance_request.attachments_of(instance)
    served = instance_request.served_attachments(instance)
    if attachments == served:
        return
    LOG.warning(
        "server %s was evacuated without its attached profiles: %s;"
        " attach them again",
        instance.uuid,
        ", ".join(each.profile for each in attachments if each not in served),
    )
    instance.system_metadata = attachment.update_metadata(
        instance.system_metadata, served
    )
