# SPDX-License-Identifier: Apache-2.0
"""Codec of NVML's value types, for archives and child processes."""

from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.host.nvml import gpu_reader
from nova_accel.model import pci

_FORM = "what NVML said, as nova-accel capture writes it"


def to_plain(gpus: Mapping[str, gpu_reader.NvmlGpu]) -> dict[str, Any]:
    """Return GPUs as dicts, lists, texts and numbers."""
    return {
        "gpus": [_gpu(gpus[address]) for address in sorted(gpus)],
        "problems": [[p.where, p.reason] for p in gpu_reader.problems(gpus)],
        "reason": gpus.reason if isinstance(gpus, gpu_reader.NvmlGpus) else "",
        "lost": list(gpus.lost)
        if isinstance(gpus, gpu_reader.NvmlGpus)
        else [],
    }


def from_plain(plain: Any) -> gpu_reader.NvmlGpus:
    """Return the GPUs in a result of ``to_plain``.

    :raises MalformedError: the values have another form.
    """
    try:
        gpus = [_parse_gpu(row) for row in plain["gpus"]]
        return gpu_reader.NvmlGpus(
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


def _gpu(gpu: gpu_reader.NvmlGpu) -> dict[str, Any]:
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
    }


def _parse_gpu(row: Mapping[str, Any]) -> gpu_reader.NvmlGpu:
    return gpu_reader.NvmlGpu(
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
    )


def _parse_types(row: Mapping[str, Any]) -> Iterator[gpu_reader.NvmlVgpuType]:
    rows = row["types"]
    # Archives of older releases lack placements.
    placements = row.get("placements", [(0, ())] * len(rows))
    for fields, (span, starts) in zip(rows, placements, strict=True):
        name, type_id, framebuffer_mb, most, instance, shared = fields
        yield gpu_reader.NvmlVgpuType(
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


def _span(at: Any) -> model.Span | None:
    if at is None:
        return None
    start, size = at
    return model.Span(start=int(start), size=int(size))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)
