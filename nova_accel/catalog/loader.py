# SPDX-License-Identifier: Apache-2.0
"""Loader of the catalog data that is part of the package.

Use::

    from nova_accel.catalog import loader

    gpu = loader.load().of_card(profile_names, "10de", "2235")
    vgpu_type = loader.load().find("A40-8Q")

``load`` reads the file once per process.
"""

import functools
from importlib import resources

from nova_accel.catalog import vgpu_types

FILE = "nvidia_vgpu.json"


@functools.cache
def load() -> vgpu_types.Catalog:
    """Return the catalog of NVIDIA's GPUs and vGPU types.

    :raises MalformedError: the installed file is damaged.
    """
    return vgpu_types.parse(text())


def text(name: str = FILE) -> str:
    """Return the text of an installed data file."""
    path = resources.files("nova_accel.catalog") / "data" / name
    return path.read_text(encoding="utf-8")
