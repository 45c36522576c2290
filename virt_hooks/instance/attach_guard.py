# SPDX-License-Identifier: Apache-2.0
"""Attach guard: refuses moves that would lose an attached profile.

nova-scheduler requests the resources of attached profiles for a server that
moves (``filters.attached_profiles``). Where it did not, as without
AcceleratorFilter or between cells, Nova has claimed the resources of the
flavor only. Such a move is refused before anything of the server is changed.
"""

from typing import Any

import nova.conf
from nova import exception
from nova.compute import task_states

from nova_accel import errors
from virt_hooks.error_guards import Stock
from virt_hooks.instance import instance_request, ledger


def migrate_disk_and_power_off(
    stock: Stock, context: Any, instance: Any, *_: Any, **__: Any
) -> Any:
    """Refuse cold migrations and resizes; the server keeps running.

    :raises nova.exception.InstanceFaultRollback: a profile would be lost.
    """
    if reason := _explain_loss(instance):
        raise exception.InstanceFaultRollback(
            exception.ResizeError(reason=reason)
        )
    return stock()


def power_off(stock: Stock, instance: Any, *_: Any, **__: Any) -> None:
    """Refuse to power off a server that is to leave its host.

    :raises nova.exception.InstancePowerOffFailure: a profile would be lost.
    """
    reason = ""
    if instance.task_state == task_states.RESIZE_MIGRATING:
        reason = _explain_loss(instance)
    elif _is_offloaded(instance.task_state):
        reason = _explain_unreadable(instance)
    if reason:
        raise exception.InstancePowerOffFailure(reason=reason)
    stock()


def check_live_migration(instance: Any) -> None:
    """Refuse live migrations before the other checks.

    The slots are checked on the destination, once Nova has claimed them.

    :raises nova.exception.MigrationPreCheckError: the record of the attached
        profiles can't be read.
    """
    if reason := _explain_unreadable(instance):
        raise exception.MigrationPreCheckError(reason=reason)


def _is_offloaded(task_state: str | None) -> bool:
    """Return whether a server is stopped in order to be offloaded."""
    if task_state == task_states.SHELVING:
        return bool(nova.conf.CONF.shelved_offload_time == 0)
    return bool(task_state == task_states.SHELVING_OFFLOADING)


def _explain_loss(instance: Any) -> str:
    """Return why a server can't be moved, empty if it can."""
    _, slots = ledger.moved_slots(instance)
    try:
        instance_request.check_carried(
            instance, instance.new_flavor or instance.flavor, slots
        )
    except errors.AcceleratorError as error:
        return str(error)
    return ""


def _explain_unreadable(instance: Any) -> str:
    """Return why a record of attached profiles can't be read, or nothing."""
    try:
        instance_request.attachments_of(instance)
    except errors.MalformedError as error:
        return f"server {instance.uuid} can't leave its host: {error}"
    return ""
