# SPDX-License-Identifier: Apache-2.0
"""Descriptions of NVIDIA's cards, with the vGPU types of the catalog."""

import dataclasses
from typing import Any

from nova_accel.catalog import loader
from tests.hosts import build

# NVIDIA's cards since Ampere have 32 virtual functions, from 0.4 on.
_VFS, _OFFSET = 32, 4
_FIRST_TYPE = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """A model, its PCI id, and the series of its time-sliced types."""

    key: str
    pci_id: str
    series: str
    has_vfs: bool = True


L40S = Gpu(key="L40S", pci_id="10de:26b9", series="Q")
A100 = Gpu(key="A100", pci_id="10de:20f1", series="C")
T4 = Gpu(key="T4", pci_id="10de:1eb8", series="Q", has_vfs=False)


def describe(
    gpu: Gpu, address: str, group: int = 1, **attributes: Any
) -> build.Description:
    """Return the description of one card; see ``tests.hosts.build``.

    :param group: its IOMMU group; those of its VFs follow.
    :param attributes: further keys of the card's function.
    """
    function = {
        "address": address,
        "id": gpu.pci_id,
        "class": "030200",
        "driver": "nvidia",
        "numa": 0,
        "group": group,
        **attributes,
    }
    parents = [address]
    if gpu.has_vfs:
        parents = [build.vf_address(address, _OFFSET + n) for n in range(_VFS)]
        function["vfs"] = {
            "total": _VFS,
            "count": _VFS,
            "offset": _OFFSET,
            "driver": "nvidia",
            "first_group": group + 1,
        }
    types = [
        vgpu_type
        for vgpu_type in loader.load().profiles_of(gpu.key)
        if not vgpu_type.instance and vgpu_type.name.endswith(gpu.series)
    ]
    listed = [
        [
            str(number),
            f"NVIDIA {vgpu_type.name}",
            1 if gpu.has_vfs else vgpu_type.limit,
            [vgpu_type.framebuffer_mb, vgpu_type.limit],
        ]
        for number, vgpu_type in enumerate(types, _FIRST_TYPE)
    ]
    return {
        "functions": [function],
        "parents": [{"on": parents, "prefix": "nvidia", "types": listed}],
    }


def join(*descriptions: build.Description) -> build.Description:
    """Return the description of a host that has all of it."""
    return {
        key: [entry for each in descriptions for entry in each.get(key, ())]
        for key in ("functions", "parents")
    }
