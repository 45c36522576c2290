# SPDX-License-Identifier: Apache-2.0
"""Loader of the data files that come with the library.

Use::

    from nova_accel.catalog import loader

    facts = loader.load().of_card(profile_names, "10de", "2235")
    one = loader.load().find("A40-8Q")

``load`` reads the file once for the life of the process.
"""

import functools
from importlib import resources

from nova_accel.catalog import vgpu_types

FILE = "nvidia_vgpu.json"


@functools.cache
def load() -> vgpu_types.Catalog:
    """Return the catalogue of NVIDIA's GPUs and vGPU types.

    :raises MalformedError: the installed file is damaged.
    """
    return vgpu_types.parse(text())


def text() -> str:
    """Return the catalogue's file as it is installed."""
    place = resources.files("nova_accel.catalog") / "data" / FILE
    return place.read_text(encoding="utf-8")
