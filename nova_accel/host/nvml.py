# SPDX-License-Identifier: Apache-2.0
"""NVML's only door: what NVIDIA's host driver says of its cards.

NVML is optional. Where it is missing, or its driver is, nothing is known
of a card but what sysfs and the catalogue say.
"""

import dataclasses

from nova_accel import model


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VgpuType:
    """A vGPU type that a GPU supports, creatable now or not.

    ``type_id`` is the decimal number, ``framebuffer_mb`` in MiB,
    ``max_instances`` for the whole GPU. ``instance`` names the kind of GPU
    instance it stands in, empty for time-sliced types.
    """

    name: str
    type_id: str
    framebuffer_mb: int
    max_instances: int
    instance: str = ""
    per_instance: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What NVML says of one GPU; None where it does not say.

    ``memory_mb`` is in MiB. ``kinds`` and ``instances`` are those of MIG,
    empty where MIG is off or the GPU has none.
    """

    address: str
    driver_version: str = ""
    memory_mb: int | None = None
    is_mig: bool | None = None
    is_mixed: bool | None = None
    types: tuple[VgpuType, ...] = ()
    kinds: tuple[model.InstanceKind, ...] = ()
    instances: tuple[model.Instance, ...] = ()
