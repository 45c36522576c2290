# SPDX-License-Identifier: Apache-2.0
"""Traits of devices to try first, as registered readers know them.

A reader is an entry point of the group ``nova_accel.preferred_traits``: a
function that takes Nova's request context and an ``AcceleratorRequest``, and
returns traits by the suffixes of groups. It waits a second at most, and
raises nothing. FPGA regions that hold the function of an image are one.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from filters.request import AcceleratorRequest
from nova_accel.config import extensions

GROUP = "nova_accel.preferred_traits"

_Read = Callable[[Any, AcceleratorRequest], Mapping[str, str]]


@functools.cache
def load() -> tuple[_Read, ...]:
    """Return the registered readers; nova-scheduler starts with them only.

    :raises ConfigurationError: one can't be loaded.
    """
    return tuple(extensions.load(GROUP).values())


def read(context: Any, request: AcceleratorRequest) -> dict[str, str]:
    """Return the traits by the suffixes of groups."""
    traits: dict[str, str] = {}
    for read_traits in load():
        traits |= read_traits(context, request)
    return traits
