# SPDX-License-Identifier: Apache-2.0
"""Groups and bitstreams of a server on this host."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nova_accel import errors, model
from nova_accel.model import attachment, flavors


class BitstreamSource(Protocol):
    """Where bitstreams come from: Glance, and what is kept of it."""

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """Return bitstreams by image; Glance is asked about each.

        :param keep: images that don't go to make room.
        """
        ...

    def recall(self, images: Iterable[str]) -> Mapping[str, model.Bitstream]:
        """Return those that are here; nobody is asked."""
        ...


def attachments_of(instance: Any) -> tuple[attachment.Attachment, ...]:
    """Return what was attached to a server, whatever has become of it.

    :param instance: a ``nova.objects.Instance``.
    :raises MalformedError: its record can't be read.
    """
    return attachment.parse(instance.system_metadata)


def served(instance: Any) -> tuple[attachment.Attachment, ...]:
    """Return what was attached to a server and has its slot still."""
    held = {
        (resource.provider_uuid, resource.identifier)
        for resource in instance.resources or ()
    }
    return tuple(
        each
        for each in attachments_of(instance)
        if (each.provider, each.slot) in held
    )


def groups_of(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the request groups of a server: its flavor's, and attached.

    :raises MalformedError: its record can't be read.
    """
    return (
        *flavors.parse_groups(instance.flavor.extra_specs),
        *(each.group() for each in served(instance)),
    )


def all_groups_of(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the same, with what was attached and lost its slot."""
    return (
        *flavors.parse_groups(instance.flavor.extra_specs),
        *(each.group() for each in attachments_of(instance)),
    )


def parted(
    instance: Any, claims: Iterable[model.Claim]
) -> tuple[tuple[model.Claim, ...], tuple[model.Claim, ...]]:
    """Return a server's claims: its flavor's, and those attached."""
    more = {(each.provider, each.slot) for each in served(instance)}
    found = tuple(claims)
    return (
        tuple(c for c in found if (c.provider, c.slot) not in more),
        tuple(c for c in found if (c.provider, c.slot) in more),
    )


def bring(
    images: BitstreamSource,
    context: Any,
    instance: Any,
    is_new: bool = False,
    keep: Iterable[str] = (),
) -> None:
    """Bring the bitstreams of a server to this host.

    :param context: Nova's, of the request: Glance is asked as its user.
    :param is_new: ask Glance also about what is here already.
    :param keep: ids of the images that other servers need here.
    :raises BitstreamError: one may not be loaded, or can't be had.
    """
    names = images_of(instance)
    if not names:
        return
    if is_new or names - images.recall(names).keys():
        images.fetch(context, names, keep)


def recall(
    images: BitstreamSource, instance: Any
) -> Mapping[str, model.Bitstream]:
    """Return the bitstreams of a server that are on this host."""
    return images.recall(images_of(instance))


def images_of(instance: Any) -> frozenset[str]:
    """Return the ids of the images that a server's bitstreams are.

    Those that its flavor names, and those of what was attached to it and
    has its slot still: an evacuation leaves the others behind.
    """
    groups = flavors.parse_groups(instance.flavor.extra_specs)
    # Who needs more than the images is told that a record can't be read.
    with contextlib.suppress(errors.MalformedError):
        groups = groups_of(instance)
    return frozenset(group.bitstream for group in groups if group.bitstream)
