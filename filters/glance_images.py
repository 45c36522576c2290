# SPDX-License-Identifier: Apache-2.0
"""FPGA functions of a request's bitstreams, read from Glance.

A flavor names an image; the regions that hold its function already need
not be programmed. Glance is asked as the user of the request, once for an
image and then not for minutes: whoever schedules waits a second for it at
most, and goes on without.
"""

import functools
import uuid
from typing import Any

from nova.image import glance

from filters import request
from filters.placement import stale_cache
from nova_accel import errors
from nova_accel.fpga import bitstreams
from nova_accel.model import names

# An image's properties hardly ever change: a wrong guess programs one
# region more. Who shares an image after a refusal waits a minute.
_TIMES = stale_cache.CacheTimes(fresh=600.0, retry=60.0, patience=1.0)
# A cloud has fewer bitstreams in use.
_MAX_IMAGES = 512


class ImageFunctions:
    """The function traits of images, by what Glance says of them.

    :param times: for how long an answer is kept.
    :param api: Nova's image API, if it isn't to be its usual one.
    """

    def __init__(
        self, times: stale_cache.CacheTimes = _TIMES, api: Any = None
    ) -> None:
        self._api = glance.API() if api is None else api
        self._known: stale_cache.StaleCache[str] = stale_cache.StaleCache(
            times, _MAX_IMAGES
        )

    def of(
        self, context: Any, wanted: request.AcceleratorRequest
    ) -> frozenset[str]:
        """Return the traits of regions that hold what a request loads.

        Of an image that can't be asked about there is none.

        :param context: the request's own: its user has to see the images.
        """
        return frozenset(self.by_group(context, wanted).values())

    def by_group(
        self, context: Any, wanted: request.AcceleratorRequest
    ) -> dict[str, str]:
        """Return the same, one by one: traits by the groups' suffixes."""
        if context is None:
            return {}
        found = {
            group.suffix: self._trait(context, group.bitstream)
            for group in wanted.groups
            if group.bitstream
        }
        return {suffix: trait for suffix, trait in found.items() if trait}

    def _trait(self, context: Any, image: str) -> str | None:
        return self._known.get(
            image, functools.partial(self._ask, context, image)
        )

    def _ask(self, context: Any, image: str) -> str:
        # A seam: Nova's image API raises any client's errors, and none of
        # them must keep a server from being placed.
        try:
            # Nova takes what is no uuid for an address to ask at.
            plain = str(uuid.UUID(image.strip()))
            answer = self._api.get(context, plain, show_deleted=False)
            function = answer["properties"][bitstreams.FUNCTION]
            return names.function_trait(str(function))
        except Exception as error:
            raise errors.BitstreamError(
                image,
                "its function is not known, and no host that holds it is"
                f" preferred: {type(error).__name__}: {error}; see"
                f" Glance, and the image's property {bitstreams.FUNCTION}",
            ) from error


@functools.cache
def shared() -> ImageFunctions:
    """Return those of this service, for its filter and its weigher."""
    return ImageFunctions()
