# SPDX-License-Identifier: Apache-2.0
"""The bitstreams that servers' flavors want on this host."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nova_accel import flavors, model


class Images(Protocol):
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


def bring(
    images: Images,
    context: Any,
    instance: Any,
    is_new: bool = False,
    keep: Iterable[str] = (),
) -> None:
    """Bring the bitstreams of a server's flavor to this host.

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


def recall(images: Images, instance: Any) -> Mapping[str, model.Bitstream]:
    """Return the bitstreams of a server's flavor that are on this host."""
    return images.recall(images_of(instance))


def images_of(instance: Any) -> frozenset[str]:
    """Return the ids of the images that a server's flavor names."""
    groups = flavors.parse_groups(instance.flavor.extra_specs)
    return frozenset(group.bitstream for group in groups if group.bitstream)
