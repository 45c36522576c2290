# SPDX-License-Identifier: Apache-2.0
"""Loader of the catalog data that is part of the package.

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
