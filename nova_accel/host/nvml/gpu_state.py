# SPDX-License-Identifier: Apache-2.0
"""Plain form of GPUs, which is JSON: for archives and child processes."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.host.nvml_gpus import (
    NvmlGpu,
    NvmlGpus,
    NvmlVgpu,
    NvmlVgpuType,
    problems,
)
from nova_accel.model import pci

_FORM = "what NVML said, as nova-accel capture writes it"

T = TypeVar("T")
U = TypeVar("U")


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
