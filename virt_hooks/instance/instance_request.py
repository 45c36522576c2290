# SPDX-License-Identifier: Apache-2.0
"""Request groups, slots and bitstreams of a ``nova.objects.Instance``."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nova_accel import errors, model
from nova_accel.model import attachment, flavors, providers

# Prefix of the resource classes whose slots are of Nova's own libvirt driver
# (nova/virt/libvirt/driver.py, _update_provider_tree_for_vpmems).
PMEM_PREFIX = "CUSTOM_PMEM_NAMESPACE_"


class BitstreamSource(Protocol):
    """Source of bitstreams: Glance, and the cache on this host."""

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """Return bitstreams by image; Glance is read for each image.

        :param keep: images that are not evicted from the cache.
        """
        ...

    def read_cached(
        self, images: Iterable[str]
    ) -> Mapping[str, model.Bitstream]:
        """Return the cached bitstreams; Glance is not read."""
        ...


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


def split_claims(
    instance: Any, claims: Iterable[model.Claim]
) -> tuple[tuple[model.Claim, ...], tuple[model.Claim, ...]]:
    """Return a server's claims: those of its flavor, and the attached."""
    attached = {
        (each.provider, each.slot) for each in served_attachments(instance)
    }
    claims = tuple(claims)
    return (
        tuple(c for c in claims if (c.provider, c.slot) not in attached),
        tuple(c for c in claims if (c.provider, c.slot) in attached),
    )


def fetch_bitstreams(
    images: BitstreamSource,
    context: Any,
    instance: Any,
    is_new: bool = False,
    keep: Iterable[str] = (),
) -> None:
    """Fetch the bitstreams of a server to this host.

    :param context: Nova's, of the request: Glance is read as its user.
    :param is_new: read Glance also if all bitstreams are cached.
    :param keep: ids of the images that other servers need here.
    :raises BitstreamError: one may not be loaded, or can't be fetched.
    """
    image_ids = images_of(instance)
    if not image_ids:
        return
    if is_new or image_ids - images.read_cached(image_ids).keys():
        images.fetch(context, image_ids, keep)


def cached_bitstreams(
    images: BitstreamSource, instance: Any
) -> Mapping[str, model.Bitstream]:
    """Return the bitstreams of a server that are on this host."""
    return images.read_cached(images_of(instance))


def images_of(instance: Any) -> frozenset[str]:
    """Return the ids of the images of a server's bitstreams.

    Of attachments only those that still have their slot count: an
    evacuation loses the others.
    """
    groups = flavors.parse_groups(instance.flavor.extra_specs)
    # A malformed record is reported where the attachments are needed.
    with contextlib.suppress(errors.MalformedError):
        groups = groups_of(instance)
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
