# SPDX-License-Identifier: Apache-2.0
"""Versions of vendors' drivers, and of the kernels that they support.

The data are in ``data/versions.json``, each with its source; ``date`` is when
the sources were read.
"""

import dataclasses
import json
from collections.abc import Mapping


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


def parse(text: str) -> Versions:
    """Return the version data in the text of the file."""
    data = json.loads(text)
    return Versions(
        date=data["date"],
        nvidia_branches={
            branch: DriverBranch(**row)
            for branch, row in data["nvidia_branches"].items()
        },
        gim_kernels=frozenset(map(tuple, data["gim_kernels"])),
    )
