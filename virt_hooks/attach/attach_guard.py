# SPDX-License-Identifier: Apache-2.0
"""Attach guard: refuses moves of servers with an attached profile.

On another host Nova claims the resources of the flavor only. Moves are
refused before anything of the server is changed.
"""

import logging
from typing import Any

import nova.conf
from nova import exception
from nova.compute import task_states, vm_states
from nova.virt.libvirt import driver

from nova_accel import errors
from nova_accel.model import attachment
from virt_hooks.instance import instance_request
from virt_hooks.operations import bypass, nova_database

LOG = logging.getLogger(__name__)


class AttachGuardDriver(driver.LibvirtDriver):
    """Base of AccelLibvirtDriver: refuses moves with an attached profile."""

    @bypass.accelerators_only
    def migrate_disk_and_power_off(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse cold migrations and resizes; the server keeps running."""
        if reason := _refusal(instance, "be migrated or resized"):
            raise exception.InstanceFaultRollback(
                exception.ResizeError(reason=reason)
            )
        return super().migrate_disk_and_power_off(
            context, instance, *args, **kwargs
        )

    @bypass.accelerators_only
    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse to power off a server that is to leave its host."""
        if _is_leaving(instance.task_state) and (
            reason := _refusal(instance, "leave its host")
        ):
            raise exception.InstancePowerOffFailure(reason=reason)
        super().power_off(instance, *args, **kwargs)

    @bypass.accelerators_only
    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse live migrations before the other checks."""
        _check_live(instance)
        return super().check_can_live_migrate_destination(
            context, instance, *args, **kwargs
        )

    @bypass.accelerators_only
    def check_can_live_migrate_source(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse live migrations to hosts with an older nova-accel."""
        _check_live(instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs
        )

    def _drop_lost_attachments(self, instance: Any) -> None:
        """Remove attachments of another host from an evacuated server.

        Nova saves the server after its spawn. It must not be saved before,
        since its resources are those of the migration context during the
        spawn (nova/objects/instance.py, mutated_migration_context).
        """
        if nova_database.is_rebuilt(instance):
            return
        attachments = instance_request.attachments_of(instance)
        served = instance_request.served_attachments(instance)
        if attachments == served:
            return
        LOG.warning(
            "server %s was evacuated without its attached profiles: %s;"
            " attach them again",
            instance.uuid,
            ", ".join(
                each.profile for each in attachments if each not in served
            ),
        )
        instance.system_metadata = attachment.update_metadata(
            instance.system_metadata, served
        )


def _check_live(instance: Any) -> None:
    if reason := _refusal(instance, "be migrated live"):
        raise exception.MigrationPreCheckError(reason=reason)


def _is_leaving(task_state: str | None) -> bool:
    """Return whether a server is stopped in order to leave its host."""
    if task_state == task_states.SHELVING:
        return bool(nova.conf.CONF.shelved_offload_time == 0)
    return task_state in (
        task_states.SHELVING_OFFLOADING,
        task_states.RESIZE_MIGRATING,
    )


def _refusal(instance: Any, operation: str) -> str:
    """Return why a server can't be moved, empty if it can."""
    try:
        attachments = instance_request.attachments_of(instance)
    except errors.MalformedError as error:
        return f"server {instance.uuid} can't {operation}: {error}"
    listed = ", ".join(f"{each.name} ({each.profile})" for each in attachments)
    if not listed:
        return ""
    is_shelved = instance.vm_state == vm_states.SHELVED
    return (
        f"server {instance.uuid} can't {operation} while {listed} is attached"
        f" to it; {'unshelve it, then ' if is_shelved else ''}run"
        f" `nova-accel server detach {instance.uuid}` first"
    )
