# SPDX-License-Identifier: Apache-2.0
"""Slots of a ``nova.objects.Instance``."""

from collections.abc import Iterable
from typing import Any

from nova_accel import model
from nova_accel.model import providers


def of_resources(resources: Any) -> tuple[model.Slot, ...]:
    """Return the slots that a server's resources are.

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


def below(
    root: providers.ProviderRoot | None, given: Iterable[model.Slot]
) -> tuple[model.Slot, ...]:
    """Return the slots but those that Nova keeps on its own root."""
    return tuple(
        slot for slot in given if root is None or slot.provider != root.uuid
    )


def left_behind(instance: Any) -> tuple[model.Slot, ...]:
    """Return what a server that moved away held here and holds no more.

    :param instance: a ``nova.objects.Instance``.
    """
    moved = instance.migration_context
    if moved is None:
        return ()
    kept = set(of_resources(moved.new_resources))
    return tuple(s for s in of_resources(moved.old_resources) if s not in kept)


def of_migration(instance: Any, migration: Any) -> tuple[model.Slot, ...]:
    """Return what a server had before it was resized where it is.

    :param instance: a ``nova.objects.Instance``.
    :param migration: its ``nova.objects.Migration``; nothing of one that
        leads to another host.
    """
    if migration.source_compute != migration.dest_compute:
        return ()
    return left_behind(instance)
