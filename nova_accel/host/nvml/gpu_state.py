# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVML describes them: value types."""

import dataclasses
import re
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.model import pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NvmlVgpuType:
    """A vGPU type that a GPU supports, creatable now or not.

    ``type_id`` is the decimal number, ``framebuffer_mb`` in MiB,
    ``max_instances`` for the whole GPU. ``instance`` names the kind of GPU
    instance it stands in, empty for time-sliced types. ``span`` is its
    length in the GPU's region and ``starts`` are its places there, read in
    mixed-size mode only.
    """

    name: str
    type_id: str
    framebuffer_mb: int
    max_instances: int
    instance: str = ""
    per_instance: int = 1
    span: int = 0
    starts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """What NVML says of one GPU; None where it does not say.

    ``memory_mb`` is in MiB. ``kinds`` and ``instances`` are those of MIG,
    empty where MIG is off or the GPU has none. ``unread`` names the fields
    that could not be read: empty is no answer there. ``fault`` is why NVML
    gives no answer of an ill GPU, ``recovery`` what it recommends, as
    ``nvml_library.recovery`` tells. ``links`` are its active NVLinks: none
    of a GPU that has no NVLink.
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


class NvmlGpus(dict[str, NvmlGpu]):
    """The facts by PCI address, and what could not be learnt.

    ``reason`` says why nobody could be asked: no library, no driver. That
    is no problem in itself. ``lost`` tells of each GPU that is so ill that
    not even its address can be learnt.
    """

    def __init__(
        self,
        facts: Mapping[str, NvmlGpu],
        problems: tuple[model.Problem, ...] = (),
        reason: str = "",
        lost: tuple[str, ...] = (),
    ) -> None:
        super().__init__(facts)
        self.problems = problems
        self.reason = reason
        self.lost = lost


def problems(gpus: Mapping[str, NvmlGpu]) -> tuple[model.Problem, ...]:
    """Return what could not be learnt when these facts were read."""
    return gpus.problems if isinstance(gpus, NvmlGpus) else ()


def parse_bus_id(text: str) -> str:
    """Return the kernel's spelling of NVML's ``00000000:41:00.0``.

    :raises MalformedError: the text is no bus id.
    """
    head, _, rest = text.strip().lower().partition(":")
    if not re.fullmatch(r"[0-9a-f]{4,8}", head):
        raise errors.MalformedError(
            "bus id of NVML", text, "DDDDDDDD:BB:SS.F in hexadecimal"
        )
    return str(pci.parse_address(f"{int(head, 16):04x}:{rest}"))
