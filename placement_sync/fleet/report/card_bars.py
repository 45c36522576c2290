# SPDX-License-Identifier: Apache-2.0
"""Bar of a device: its holders, reserved units and free units, in place.

On a card in mixed or MIG mode the parts are where the host has reported
them, in units of the card's region. On other devices, and where the places
do not match the allocations, they follow one another in units of the
measured resource class. Reserved units without a place are the last ones
that no part has. The parts of a bar do not overlap, and fill it.
"""

import collections
import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence

from nova_accel.catalog import vgpu_types
from nova_accel.geometry import occupancy
from nova_accel.model import names, providers
from placement_sync.fleet.devices import device_rows, holder_rows
from placement_sync.fleet.flavors import offered_devices

_PLACED_MODES = frozenset({"mixed", "mig"})
# Of sums of thirds and sevenths of a region.
_TOLERANCE = 1e-9
_UNKNOWN = "partition without an allocation"


class PartKind(enum.Enum):
    """Use of a part of a device; the values are classes of the page."""

    SERVER = "server"
    UNALLOCATED = "unallocated"
    RESERVED = "reserved"
    FREE = "free"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """Part of a bar, ``size`` units from ``start``.

    ``text`` describes it. ``holder`` is the name of its server or its
    consumer, ``held_part`` the part of the holding, and ``project`` that of
    its server, empty if it is not known.
    """

    kind: PartKind
    start: float
    size: float
    text: str
    holder: str = ""
    held_part: holder_rows.HeldPart | None = None
    project: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardBar:
    """A device with its parts, in order; ``total`` is their sum."""

    row: device_rows.DeviceRow
    total: float
    parts: tuple[BarPart, ...]


def build_bar(
    row: device_rows.DeviceRow,
    allocations: Iterable[holder_rows.AllocationRow],
    types: offered_devices.VgpuTypes,
) -> CardBar:
    """Return the bar of a device.

    :param allocations: those of the device.
    """
    holders = [
        (allocation, part)
        for allocation in allocations
        for part in allocation.parts
    ]
    placed = _place_parts(row, holders, types)
    if placed is not None:
        total, reserve, parts = placed
    else:
        total, reserve, parts = _line_up_parts(row, holders)
    # Nothing of a device in another state is free.
    reserve = reserve if row.state == "ok" else math.inf
    filled = _fill_gaps(row, total, reserve, parts)
    return CardBar(row=row, total=total, parts=filled)


_Holders = Sequence[tuple[holder_rows.AllocationRow, holder_rows.HeldPart]]


def _line_up_parts(
    row: device_rows.DeviceRow, holders: _Holders
) -> tuple[float, float, list[BarPart]]:
    """Return the length of a bar, its reserve, and its parts in a line."""
    name = device_rows.measured_class(row.device)
    capacity = row.device.capacities.get(
        name, providers.ClassCapacity(capacity=0)
    )
    parts: list[BarPart] = []
    start = 0.0
    for allocation, held_part in holders:
        size = float(held_part.amounts.get(name, 0))
        if size:
            parts.append(_build_server(allocation, held_part, start, size))
            start += size
    # Allocations may exceed a total that became smaller.
    total = max(float(capacity.total), start)
    return total, float(capacity.reserved), parts


def _place_parts(
    row: device_rows.DeviceRow,
    holders: _Holders,
    types: offered_devices.VgpuTypes,
) -> tuple[float, float, list[BarPart]] | None:
    """Return the length of a card's region, its reserve, and placed parts.

    None if the places are not known, or do not match the allocations.
    """
    gpu = types.gpu_of(row.device)
    if gpu is None or row.mode not in _PLACED_MODES:
        return None
    region = gpu.mig_region if row.mode == "mig" else gpu.region
    occupied = occupancy.parse_traits(row.device.traits)
    remaining = list(holders)
    parts: list[BarPart] = []
    # Partitions of one GPU instance begin at the same unit.
    ends: dict[int, float] = {}
    charges: collections.Counter[str] = collections.Counter()
    for place, is_allocated in (
        *((place, True) for place in occupied.places),
        *((place, False) for place in occupied.unallocated),
    ):
        vgpu_type = types.find(place.trait)
        if vgpu_type is None:
            return None
        length = _measure_place(gpu, vgpu_type)
        for _ in range(place.count):
            start = ends.get(place.start, float(place.start))
            ends[place.start] = start + length
            if not is_allocated:
                charges.update(types.terms(vgpu_type).charges)
                parts.append(
                    BarPart(
                        kind=PartKind.UNALLOCATED,
                        start=start,
                        size=length,
                        text=_UNKNOWN,
                    )
                )
                continue
            holder = _take_holder(remaining, vgpu_type, types)
            if holder is None:
                return None
            allocation, held_part = holder
            typed = dataclasses.replace(held_part, name=vgpu_type.name)
            parts.append(_build_server(allocation, typed, start, length))
    parts.sort(key=lambda part: part.start)
    if remaining or not region or not _are_apart(parts, region):
        return None
    reserve = _measure_reserve(row, gpu, float(region), charges)
    return float(region), reserve, parts


def _measure_reserve(
    row: device_rows.DeviceRow,
    gpu: vgpu_types.CatalogGpu,
    region: float,
    charges: Mapping[str, int],
) -> float:
    """Return the length of an operator's reserve in a card's region.

    Placement has its units, and no place.

    :param charges: units of partitions without an allocation, which the
        host has reserved.
    """
    # Of the smallest GPU instance: A100 has 8 units and 7 slices.
    unit = min((k.size / k.slices for k in gpu.kinds if k.slices), default=0.0)
    lengths = {
        names.MIG_SLICE_CLASS: unit,
        names.GPU_MEMORY_CLASS: region / gpu.memory_mb,
    }
    reserves = [
        (capacity.reserved - charges.get(name, 0)) * lengths[name]
        for name, capacity in row.device.capacities.items()
        if name in lengths
    ]
    return max(0.0, *reserves)


def _measure_place(
    gpu: vgpu_types.CatalogGpu, vgpu_type: vgpu_types.CatalogVgpuType
) -> float:
    """Return the length of one vGPU in its card's region."""
    if not vgpu_type.instance:
        return float(vgpu_type.span)
    sizes = {kind.name: kind.size for kind in gpu.kinds}
    return sizes.get(vgpu_type.instance, 0) / vgpu_type.per_instance


def _take_holder(
    remaining: list[tuple[holder_rows.AllocationRow, holder_rows.HeldPart]],
    vgpu_type: vgpu_types.CatalogVgpuType,
    types: offered_devices.VgpuTypes,
) -> tuple[holder_rows.AllocationRow, holder_rows.HeldPart] | None:
    """Remove the holder of a type's charges from a list, and return it.

    Holders of the same charges are interchangeable: Placement does not
    have their places.
    """
    charges = dict(types.terms(vgpu_type).charges)
    for index, (_, part) in enumerate(remaining):
        if {n: a for n, a in part.amounts.items() if a} == charges:
            return remaining.pop(index)
    return None


def _are_apart(parts: Sequence[BarPart], region: float) -> bool:
    """Return whether sorted parts have a size, and do not overlap."""
    ends = [0.0, *(part.start + part.size for part in parts)]
    starts = [*(part.start for part in parts), float(region)]
    return all(part.size > 0 for part in parts) and all(
        end <= start + _TOLERANCE
        for end, start in zip(ends, starts, strict=True)
    )


def _build_server(
    allocation: holder_rows.AllocationRow,
    part: holder_rows.HeldPart,
    start: float,
    size: float,
) -> BarPart:
    server = allocation.server
    holder = server.name if server else allocation.consumer
    return BarPart(
        kind=PartKind.SERVER,
        start=start,
        size=size,
        text=f"{holder}, {part}",
        holder=holder,
        held_part=part,
        project=server.project if server else "",
    )


def _fill_gaps(
    row: device_rows.DeviceRow,
    total: float,
    reserve: float,
    parts: Sequence[BarPart],
) -> tuple[BarPart, ...]:
    """Return sorted parts, with free and reserved units between them.

    :param reserve: units; more than the parts leave are all of these.
    """
    free = f"free, fits {row.largest}" if row.largest else "free"
    state = "reserved" if row.state == "ok" else row.state
    filled = list(parts)
    ends = [0.0, *(part.start + part.size for part in parts)]
    starts = [*(part.start for part in parts), total]
    for start, end in zip(reversed(ends), reversed(starts), strict=True):
        size = max(end - start, 0.0)
        reserved = min(reserve, size)
        reserve -= reserved
        for kind, text, first, length in (
            (PartKind.FREE, free, start, size - reserved),
            (PartKind.RESERVED, state, end - reserved, reserved),
        ):
            if length > _TOLERANCE:
                filled.append(
                    BarPart(kind=kind, start=first, size=length, text=text)
                )
    return tuple(sorted(filled, key=lambda part: part.start))
