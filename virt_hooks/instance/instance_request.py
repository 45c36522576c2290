# SPDX-License-Identifier: Apache-2.0
"""Request of a ``nova.objects.Instance``: groups, slots and bitstreams."""

import contextlib
import dataclasses
import types
from collections.abc import Iterable
from typing import Any

from nova_accel import errors, model
from nova_accel.model import attachment, flavors, providers

# Prefix of the resource classes whose slots are of Nova's own libvirt driver
# (nova/virt/libvirt/driver.py, _update_provider_tree_for_vpmems).
PMEM_PREFIX = "CUSTOM_PMEM_NAMESPACE_"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRequest:
    """Accelerators of a server on this host, parsed once per operation."""

    uuid: str
    #: Of its flavor, and of its attachments that have their slot.
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...] = ()
    #: Provider and identifier of the attachments' slots.
    attached: frozenset[tuple[str, str]] = frozenset()
    #: Its allocations by provider, if it comes to this host.
    allocated: model.Allocations = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )
    #: Ids of the images of its bitstreams.
    images: frozenset[str] = frozenset()
    options: flavors.Options = dataclasses.field(
        default_factory=flavors.Options
    )
    #: Whether Nova rebuilds it on this host.
    is_rebuild: bool = False

    def list_claims(
        self, claims: Iterable[model.Claim], is_attached: bool
    ) -> tuple[model.Claim, ...]:
        """Return the claims of attachments, or those of the flavor."""
        return tuple(
            claim
            for claim in claims
            if ((claim.provider, claim.slot) in self.attached) is is_attached
        )


def parse(
    instance: Any,
    root: providers.ProviderRoot | None,
    allocated: model.Allocations,
    is_rebuild: bool = False,
) -> InstanceRequest:
    """Return the request of a server.

    :param instance: a ``nova.objects.Instance``.
    :param root: Nova's root provider, whose slots are left out.
    :raises MalformedError: its flavor or its record of attachments can't be
        read.
    """
    extra_specs = instance.flavor.extra_specs
    attachments = served_attachments(instance)
    groups = (
        *flavors.parse_groups(extra_specs),
        *(each.request_group() for each in attachments),
    )
    return InstanceRequest(
        uuid=instance.uuid,
        groups=groups,
        slots=slots_of(instance.resources, root),
        attached=frozenset((each.provider, each.slot) for each in attachments),
        allocated=allocated,
        images=_images_of(groups),
        options=flavors.parse_options(extra_specs),
        is_rebuild=is_rebuild,
    )


def attachments_of(instance: Any) -> tuple[attachment.Attachment, ...]:
    """Return all recorded attachments of a server, in any state.

    :param instance: a ``nova.objects.Instance``.
    :raises MalformedError: its record can't be read.
    """
    return attachment.parse_metadata(instance.system_metadata)


def served_attachments(instance: Any) -> tuple[attachment.Attachment, ...]:
    """Return the attachments of a server that still have their slot."""
    slots = {
        (resource.provider_uuid, resource.identifier)
        for resource in instance.resources or ()
    }
    return tuple(
        each
        for each in attachments_of(instance)
        if (each.provider, each.slot) in slots
    )


def groups_of(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the request groups of a server's flavor and attachments.

    :raises MalformedError: the record of attachments can't be read.
    """
    return (
        *flavors.parse_groups(instance.flavor.extra_specs),
        *(each.request_group() for each in served_attachments(instance)),
    )


def all_groups_of(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the same, with the attachments that lost their slots."""
    return (
        *flavors.parse_groups(instance.flavor.extra_specs),
        *(each.request_group() for each in attachments_of(instance)),
    )


def images_of(instance: Any) -> frozenset[str]:
    """Return the ids of the images of a server's bitstreams.

    Of attachments only those that still have their slot count: an
    evacuation loses the others.
    """
    groups = flavors.parse_groups(instance.flavor.extra_specs)
    # A malformed record is reported where the attachments are needed.
    with contextlib.suppress(errors.MalformedError):
        groups = groups_of(instance)
    return _images_of(groups)


def _images_of(groups: Iterable[flavors.RequestGroup]) -> frozenset[str]:
    return frozenset(group.bitstream for group in groups if group.bitstream)


def slots_of(
    resources: Any, root: providers.ProviderRoot | None = None
) -> tuple[model.Slot, ...]:
    """Return the slots of a server's resources.

    :param resources: a ``nova.objects.ResourceList``, or None.
    :param root: Nova's root provider, whose slots are left out.
    """
    slots = (
        model.Slot(
            provider=resource.provider_uuid,
            resource_class=resource.resource_class,
            identifier=resource.identifier,
        )
        for resource in resources or ()
    )
    return slots_below_root(root, slots)


def has_accelerator_slots(resources: Any) -> bool:
    """Return whether a server's resources have slots of accelerators.

    :param resources: as of ``slots_of``, of any host.
    """
    return any(
        not resource.resource_class.startswith(PMEM_PREFIX)
        for resource in resources or ()
    )


def slots_below_root(
    root: providers.ProviderRoot | None, slots: Iterable[model.Slot]
) -> tuple[model.Slot, ...]:
    """Return the slots without those of Nova's root provider."""
    return tuple(
        slot for slot in slots if root is None or slot.provider != root.uuid
    )


def slots_released_by_move(instance: Any) -> tuple[model.Slot, ...]:
    """Return the slots that a moved server had and does not have any more.

    :param instance: a ``nova.objects.Instance``.
    """
    migration_context = instance.migration_context
    if migration_context is None:
        return ()
    new = set(slots_of(migration_context.new_resources))
    old = slots_of(migration_context.old_resources)
    return tuple(slot for slot in old if slot not in new)


def slots_released_by_resize(
    instance: Any, migration: Any
) -> tuple[model.Slot, ...]:
    """Return the slots of the old size after a resize on one host.

    :param instance: a ``nova.objects.Instance``.
    :param migration: its ``nova.objects.Migration``; there are no such
        slots if it is to another host.
    """
    if migration.source_compute != migration.dest_compute:
        return ()
    return slots_released_by_move(instance)
