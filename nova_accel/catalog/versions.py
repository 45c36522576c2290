# SPDX-License-Identifier: Apache-2.0
"""Versions of vendors' drivers, and of the kernels that they support.

The data are in ``data/versions.json``, each with its source; ``date`` is when
the sources were read.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping

from nova_accel.catalog import loader

_FILE = "versions.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverBranch:
    """Branch of NVIDIA's driver, and the vGPU release that it belongs to."""

    release: str
    is_supported: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """All version data; ``nvidia_branches`` by the driver's first number."""

    date: str
    nvidia_branches: Mapping[str, DriverBranch]
    gim_kernels: frozenset[tuple[int, ...]]


@functools.cache
def load() -> Versions:
    """Return the versions of vendors' drivers."""
    data = json.loads(loader.text(_FILE))
    return Versions(
        date=data["date"],
        nvidia_branches={
            branch: DriverBranch(**row)
            for branch, row in data["nvidia_branches"].items()
        },
        gim_kernels=frozenset(map(tuple, data["gim_kernels"])),
    )
