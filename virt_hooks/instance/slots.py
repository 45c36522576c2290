# SPDX-License-Identifier: Apache-2.0
"""Slots of a ``nova.objects.Instance``."""

from collections.abc import Iterable
from typing import Any

from nova_accel import model
from nova_accel.model import providers


def of_resources(resources: Any) -> tuple[model.Slot, ...]:
    """Return the slots of a server's resources.

    :param resources: a ``nova.objects.ResourceList``, or None.
    """
    return tuple(
        model.Slot(
            provider=resource.provider_uuid,
            resource_class=resource.resource_class,
            identifier=resource.identifier,
        )
        for resource in resources or ()
    )


def below_root(
    root: providers.ProviderRoot | None, slots: Iterable[model.Slot]
) -> tuple[model.Slot, ...]:
    """Return the slots without those of Nova's root provider."""
    return tuple(
        slot for slot in slots if root is None or slot.provider != root.uuid
    )


def released_by_move(instance: Any) -> tuple[model.Slot, ...]:
    """Return the slots that a moved server had and does not have any more.

    :param instance: a ``nova.objects.Instance``.
    """
    migration_context = instance.migration_context
    if migration_context is None:
        return ()
    new = set(of_resources(migration_context.new_resources))
    old = of_resources(migration_context.old_resources)
    return tuple(slot for slot in old if slot not in new)


def released_by_resize(
    instance: Any, migration: Any
) -> tuple[model.Slot, ...]:
    """Return the slots of the old size after a resize on one host.

    :param instance: a ``nova.objects.Instance``.
    :param migration: its ``nova.objects.Migration``; there are no such
        slots if it is to another host.
    """
    if migration.source_compute != migration.dest_compute:
        return ()
    return released_by_move(instance)
