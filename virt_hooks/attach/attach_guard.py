# SPDX-License-Identifier: Apache-2.0
"""Attach guard: refuses moves of servers with an attached profile.

On another host Nova claims the resources of the flavor only. Moves are
refused before anything of the server is changed.
"""

from typing import Any

import nova.conf
from nova import exception
from nova.compute import task_states, vm_states

from nova_accel import errors
from virt_hooks.error_guards import Stock
from virt_hooks.instance import instance_request


def migrate_disk_and_power_off(
    stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
) -> Any:
    """Refuse cold migrations and resizes; the server keeps running.

    :raises nova.exception.InstanceFaultRollback: a profile is attached.
    """
    if reason := _refusal(instance, "be migrated or resized"):
        raise exception.InstanceFaultRollback(
            exception.ResizeError(reason=reason)
        )
    return stock()


def power_off(stock: Stock, instance: Any, *_: Any, **__: Any) -> None:
    """Refuse to power off a server that is to leave its host.

    :raises nova.exception.InstancePowerOffFailure: a profile is attached.
    """
    if _is_leaving(instance.task_state) and (
        reason := _refusal(instance, "leave its host")
    ):
        raise exception.InstancePowerOffFailure(reason=reason)
    stock()


def check_live_migration(instance: Any) -> None:
    """Refuse live migrations before the other checks.

    On the source, those to hosts with an older nova-accel.

    :raises nova.exception.MigrationPreCheckError: a profile is attached.
    """
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
