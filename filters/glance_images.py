# SPDX-License-Identifier: Apache-2.0
"""FPGA functions of a request's bitstreams, read from Glance.

A flavor names an image; regions that already hold its function need no
programming. Glance is queried with the credentials of the request, once per
image and cache period. A scheduling request waits at most one second for
it.
"""

import functools
import uuid
from typing import Any

from nova.image import glance

from filters.placement import stale_cache
from filters.request import AcceleratorRequest
from nova_accel import errors
from nova_accel.model import names

# An image's properties hardly ever change, and an outdated function costs
# one more programming of a region. An image that was refused to its user
# may be shared with them meanwhile, hence a retry after a minute.
_TIMES = stale_cache.CacheTimes(fresh=600.0, retry=60.0, patience=1.0)
# A cloud has fewer bitstreams in use.
_MAX_IMAGES = 512


class ImageFunctions:
    """Function traits of images, from the images' properties in Glance.

    :param times: time to live of a trait.
    :param api: Nova's image API, if not its default.
    """

    def __init__(
        self, times: stale_cache.CacheTimes = _TIMES, api: Any = None
    ) -> None:
        self._api = glance.API() if api is None else api
        self._traits: stale_cache.StaleCache[str] = stale_cache.StaleCache(
            times, _MAX_IMAGES
        )

    def find_traits(
        self, context: Any, request: AcceleratorRequest
    ) -> dict[str, str]:
        """Return the traits of regions that hold a request's functions.

        By the suffixes of groups; images that can't be read have none.

        :param context: of the request: its user must have access to the
            images.
        """
        if context is None:
            return {}
        traits = {
            group.suffix: self._find_trait(context, group.bitstream)
            for group in request.groups
            if group.bitstream
        }
        return {suffix: trait for suffix, trait in traits.items() if trait}

    def _find_trait(self, context: Any, image: str) -> str | None:
        return self._traits.get(
            image, functools.partial(self._read_trait, context, image)
        )

    def _read_trait(self, context: Any, image: str) -> str:
        # Nova's image API raises the errors of several clients, and none of
        # them may fail the scheduling request.
        try:
            # Nova takes an id that is no uuid for a URL to connect to.
            plain = str(uuid.UUID(image.strip()))
            answer = self._api.get(context, plain, show_deleted=False)
            function = answer["properties"][names.FUNCTION_PROPERTY]
            return names.fpga_function_trait(str(function))
        except Exception as error:
            raise errors.BitstreamError(
                image,
                "its function is not known, and no host that holds it is"
                f" preferred: {type(error).__name__}: {error}; see"
                f" Glance, and the image's property {names.FUNCTION_PROPERTY}",
                is_local=True,
            ) from error


@functools.cache
def shared() -> ImageFunctions:
    """Return the cache that filter and weigher of this process share."""
    return ImageFunctions()


def read_traits(context: Any, request: AcceleratorRequest) -> dict[str, str]:
    """Return the traits of a request; see ``preferred_traits``."""
    return shared().find_traits(context, request)
