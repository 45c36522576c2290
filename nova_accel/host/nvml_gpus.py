# SPDX-License-Identifier: Apache-2.0
"""GPUs as their management library describes them; NVML is the only one.

The heart reads these values, and never the library: readers of GPUs are
registered.
"""

import dataclasses
from collections.abc import Callable, Mapping

from nova_accel import model
from nova_accel.geometry import topology


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NvmlVgpuType:
    """A vGPU type that a GPU supports, creatable now or not.

    ``type_id`` is the decimal number, ``framebuffer_mb`` in MiB,
    ``max_instances`` for the whole GPU. ``instance`` names the kind of GPU
    instance that it needs, empty for time-sliced types; ``per_instance`` is
    how many fit into one. ``span`` is its length in the GPU's region and
    ``starts`` are its possible starts there, read in mixed-size mode only.
    """

    name: str
    type_id: str
    framebuffer_mb: int
    max_instances: int
    instance: str = ""
    per_instance: int = 1
    span: int = 0
    starts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NvmlVgpu:
    """A running vGPU, and what NVML knows of its guest.

    ``server`` is the uuid of the guest's domain, which is that of the
    server; ``mdev`` is the uuid of a mediated device, empty for a VF;
    ``type_id`` is the decimal number of its type. ``license`` is the state
    of its licence (see ``nvml_library.license_name``), ``expires`` the end
    of it in ISO 8601 or ``permanent``; ``driver`` is the version of the
    driver in the guest. They are empty if unknown, as while a guest boots.
    """

    server: str = ""
    mdev: str = ""
    type_id: str = ""
    license: str = ""
    expires: str = ""
    driver: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """State of one GPU; None for values that NVML does not have.

    ``memory_mb`` is in MiB. ``kinds`` and ``instances`` are those of MIG,
    empty if MIG is off or not supported. ``unread`` names the fields that
    could not be read: these are unknown, not empty. ``fault`` is NVML's
    error for a faulty GPU, ``recovery`` the recommended action (see
    ``nvml_library.recovery``). ``links`` are the active NVLinks, without
    peers if the GPU has no NVLink. ``vgpus`` are the running vGPUs. ``ecc``
    is whether ECC is on, and whether it will be after a reset. ``fabric`` is
    the registration with NVSwitches (see ``nvml_library.fabric``).
    """

    address: str
    driver_version: str = ""
    memory_mb: int | None = None
    is_mig: bool | None = None
    is_mixed: bool | None = None
    types: tuple[NvmlVgpuType, ...] = ()
    kinds: tuple[model.InstanceKind, ...] = ()
    instances: tuple[model.Instance, ...] = ()
    unread: frozenset[str] = frozenset()
    fault: str = ""
    recovery: int | None = None
    links: topology.GpuLinks | None = None
    vgpus: tuple[NvmlVgpu, ...] | None = None
    ecc: tuple[bool, bool] | None = None
    fabric: tuple[str, int] | None = None


class NvmlGpus(dict[str, NvmlGpu]):
    """GPUs by PCI address, with the errors of the reading.

    ``problems`` are values that could not be read. ``reason`` is why NVML
    could not be called at all: no library or no driver, which is no
    problem. ``lost`` has the error of each GPU whose address can't be read.
    """

    def __init__(
        self,
        gpus: Mapping[str, NvmlGpu],
        problems: tuple[model.Problem, ...] = (),
        reason: str = "",
        lost: tuple[str, ...] = (),
    ) -> None:
        super().__init__(gpus)
        self.problems = problems
        self.reason = reason
        self.lost = lost


def problems(gpus: Mapping[str, NvmlGpu]) -> tuple[model.Problem, ...]:
    """Return the values of these GPUs that could not be read."""
    return gpus.problems if isinstance(gpus, NvmlGpus) else ()


#: Returns the GPUs of the host by PCI address.
ReadGpus = Callable[[], Mapping[str, NvmlGpu]]
