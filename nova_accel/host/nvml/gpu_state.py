# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVML describes them: value types, and their plain form.

The plain form is JSON, for archives and child processes.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.model import pci

_FORM = "what NVML said, as nova-accel capture writes it"

T = TypeVar("T")
U = TypeVar("U")


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


def parse_bus_id(text: str) -> str:
    """Return the PCI address of NVML's bus id ``00000000:41:00.0``.

    :raises MalformedError: the text is no bus id.
    """
    head, _, rest = text.strip().lower().partition(":")
    if not re.fullmatch(r"[0-9a-f]{4,8}", head):
        raise errors.MalformedError(
            "bus id of NVML", text, "DDDDDDDD:BB:SS.F in hexadecimal"
        )
    return str(pci.parse_address(f"{int(head, 16):04x}:{rest}"))


def to_plain(gpus: Mapping[str, NvmlGpu]) -> dict[str, Any]:
    """Return GPUs as dicts, lists, texts and numbers."""
    return {
        "gpus": [_gpu(gpus[address]) for address in sorted(gpus)],
        "problems": [[p.where, p.reason] for p in problems(gpus)],
        "reason": gpus.reason if isinstance(gpus, NvmlGpus) else "",
        "lost": list(gpus.lost) if isinstance(gpus, NvmlGpus) else [],
    }


def from_plain(plain: Any) -> NvmlGpus:
    """Return the GPUs in a result of ``to_plain``.

    :raises MalformedError: the values have another form.
    """
    try:
        gpus = [_parse_gpu(row) for row in plain["gpus"]]
        return NvmlGpus(
            {gpu.address: gpu for gpu in gpus},
            tuple(
                model.Problem(
                    where=str(where),
                    reason=str(reason),
                    address=str(where) if pci.is_address(str(where)) else "",
                )
                for where, reason in plain["problems"]
            ),
            str(plain["reason"]),
            tuple(str(error) for error in plain.get("lost", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.MalformedError(
            "record of NVML", str(plain)[:40], f"{_FORM} ({error!r})"
        ) from error


def _gpu(gpu: NvmlGpu) -> dict[str, Any]:
    return {
        "address": gpu.address,
        "driver_version": gpu.driver_version,
        "memory_mb": gpu.memory_mb,
        "is_mig": gpu.is_mig,
        "is_mixed": gpu.is_mixed,
        "types": [
            [
                t.name,
                t.type_id,
                t.framebuffer_mb,
                t.max_instances,
                t.instance,
                t.per_instance,
            ]
            for t in gpu.types
        ],
        "placements": [[t.span, list(t.starts)] for t in gpu.types],
        "kinds": [
            [k.name, k.size, k.slices, list(k.starts), k.limit]
            for k in gpu.kinds
        ],
        "instances": [
            [i.kind, i.handle, i.span and [i.span.start, i.span.size]]
            for i in gpu.instances
        ],
        "unread": sorted(gpu.unread),
        "fault": gpu.fault,
        "recovery": gpu.recovery,
        "links": gpu.links
        and {
            "peers": sorted(gpu.links.peers),
            "is_switched": gpu.links.is_switched,
        },
        "vgpus": (
            None
            if gpu.vgpus is None
            else [dataclasses.asdict(vgpu) for vgpu in gpu.vgpus]
        ),
        "ecc": gpu.ecc and list(gpu.ecc),
        "fabric": gpu.fabric and list(gpu.fabric),
    }


def _parse_gpu(row: Mapping[str, Any]) -> NvmlGpu:
    return NvmlGpu(
        address=str(pci.parse_address(row["address"])),
        driver_version=str(row["driver_version"]),
        memory_mb=_number(row["memory_mb"]),
        is_mig=_truth(row["is_mig"]),
        is_mixed=_truth(row["is_mixed"]),
        types=tuple(_parse_types(row)),
        kinds=tuple(
            model.InstanceKind(
                name=str(name),
                size=int(size),
                slices=int(slices),
                starts=tuple(int(start) for start in starts),
                limit=_number(limit),
            )
            for name, size, slices, starts, limit in row["kinds"]
        ),
        instances=tuple(
            model.Instance(kind=str(kind), handle=str(handle), span=_span(at))
            for kind, handle, at in row["instances"]
        ),
        unread=frozenset(str(name) for name in row["unread"]),
        # Archives of older releases lack these.
        fault=str(row.get("fault", "")),
        recovery=_number(row.get("recovery")),
        links=_links(row.get("links")),
        vgpus=_vgpus(row.get("vgpus")),
        ecc=_pair(row.get("ecc"), bool, bool),
        fabric=_pair(row.get("fabric"), str, int),
    )


def _parse_types(row: Mapping[str, Any]) -> Iterator[NvmlVgpuType]:
    rows = row["types"]
    # Archives of older releases lack placements.
    placements = row.get("placements", [(0, ())] * len(rows))
    for fields, (span, starts) in zip(rows, placements, strict=True):
        name, type_id, framebuffer_mb, most, instance, shared = fields
        yield NvmlVgpuType(
            name=str(name),
            type_id=str(type_id),
            framebuffer_mb=int(framebuffer_mb),
            max_instances=int(most),
            instance=str(instance),
            per_instance=int(shared),
            span=int(span),
            starts=tuple(int(start) for start in starts),
        )


def _links(row: Mapping[str, Any] | None) -> topology.GpuLinks | None:
    if row is None:
        return None
    return topology.GpuLinks(
        peers=frozenset(str(pci.parse_address(peer)) for peer in row["peers"]),
        is_switched=bool(row["is_switched"]),
    )


def _vgpus(rows: Any) -> tuple[NvmlVgpu, ...] | None:
    if rows is None:
        return None
    fields = [field.name for field in dataclasses.fields(NvmlVgpu)]
    return tuple(
        NvmlVgpu(**{name: str(row[name]) for name in fields}) for row in rows
    )


def _pair(
    values: Any, first: Callable[[Any], T], second: Callable[[Any], U]
) -> tuple[T, U] | None:
    if values is None:
        return None
    left_value, right_value = values
    return first(left_value), second(right_value)


def _span(at: Any) -> model.Span | None:
    if at is None:
        return None
    start, size = at
    return model.Span(start=int(start), size=int(size))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)
