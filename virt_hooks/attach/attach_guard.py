# SPDX-License-Identifier: Apache-2.0
"""Guard: refuses moves while a profile is attached.

Nova claims on another host what the flavor asks for, and no more. So they
are refused where they begin, while the server is as it was.
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
    """LibvirtDriver whose servers stay where something was attached.

    It is a part of AccelLibvirtDriver, not a driver by itself.
    """

    @bypass.accelerators_only
    def migrate_disk_and_power_off(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse cold migrations and resizes; the server runs on."""
        if reason := _refusal(instance, "be migrated or resized"):
            raise exception.InstanceFaultRollback(
                exception.ResizeError(reason=reason)
            )
        return super().migrate_disk_and_power_off(
            context, instance, *args, **kwargs
        )

    @bypass.accelerators_only
    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse to stop for being taken off this host."""
        if _is_leaving(instance.task_state) and (
            reason := _refusal(instance, "leave its host")
        ):
            raise exception.InstancePowerOffFailure(reason=reason)
        super().power_off(instance, *args, **kwargs)

    @bypass.accelerators_only
    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse live migrations before anything is asked."""
        _check_live(instance)
        return super().check_can_live_migrate_destination(
            context, instance, *args, **kwargs
        )

    @bypass.accelerators_only
    def check_can_live_migrate_source(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse them where the destination runs an older nova-accel."""
        _check_live(instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs
        )

    def _leave_behind(self, instance: Any) -> None:
        """Forget what was attached on a host that is lost, and say so.

        For a server that is evacuated: it runs with what its flavor gives.
        Nova saves it when its spawn is done, and not before: while it
        lasts, the server has what its destination has claimed, and must
        not be saved (nova/objects/instance.py, mutated_migration_context).
        """
        if nova_database.is_rebuilt(instance):
            return
        known = instance_request.attachments_of(instance)
        kept = instance_request.served(instance)
        if known == kept:
            return
        LOG.warning(
            "server %s leaves behind what was attached to it: %s; attach it"
            " anew",
            instance.uuid,
            ", ".join(o.profile for o in known if o not in kept),
        )
        instance.system_metadata = attachment.write(
            instance.system_metadata, kept
        )


def _check_live(instance: Any) -> None:
    if reason := _refusal(instance, "be migrated live"):
        raise exception.MigrationPreCheckError(reason=reason)


def _is_leaving(task_state: str | None) -> bool:
    """Return whether a server is stopped to be taken off its host."""
    if task_state == task_states.SHELVING:
        return bool(nova.conf.CONF.shelved_offload_time == 0)
    return task_state in (
        task_states.SHELVING_OFFLOADING,
        task_states.RESIZE_MIGRATING,
    )


def _refusal(instance: Any, what: str) -> str:
    """Return why a server can't be moved, empty if it can."""
    try:
        attachments = instance_request.attachments_of(instance)
    except errors.MalformedError as error:
        return f"server {instance.uuid} can't {what}: {error}"
    known = ", ".join(f"{one.name} ({one.profile})" for one in attachments)
    if not known:
        return ""
    shelved = instance.vm_state == vm_states.SHELVED
    return (
        f"server {instance.uuid} can't {what} while {known} is attached to"
        f" it; {'unshelve it, then ' if shelved else ''}run"
        f" `nova-accel server detach {instance.uuid}` first"
    )
