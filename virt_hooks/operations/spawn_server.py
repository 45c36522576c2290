# SPDX-License-Identifier: Apache-2.0
"""Spawn of a server, and the configuration of its guest."""

import logging
from typing import Any

from nova import context as nova_context

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
        is_rebuilt = nova_database.is_rebuilt(instance)
        with rebuild.with_current_slots(instance):
            with error_guards.as_nova_error(
                lambda: self._partitions.reporter.publish(context),
                instance.uuid,
                is_rebuilt,
            ):
                self._partitions.fetch_bitstreams(
                    context, instance, is_new=not is_rebuilt
                )
            if self._partitions.ensure(context, instance, allocations):
                # Published at once: otherwise the scheduler would select
                # this host for profiles that the card can't make any more.
                self._partitions.publish(context)
            result = stock()
        if not is_rebuilt:
            _drop_lost_attachments(instance)
        return result

    def get_guest_config(
        self, stock: Stock, instance: Any, *_: Any, **__: Any
    ) -> Any:
        """Add the server's hostdevs to the stock configuration; return it.

        Partitions that are missing are made, for any operation.
        """
        claims = self._partitions.ensure(
            nova_context.get_admin_context(), instance
        )
        config = stock()
        with error_guards.as_nova_error():
            options = flavors.parse_options(instance.flavor.extra_specs)
            version = self._partitions.host.get_connection().getLibVersion()
            own, attached = instance_request.split_claims(instance, claims)
            libvirt_guest.add_claims(config, own, options, version)
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
