# SPDX-License-Identifier: Apache-2.0
"""Bar of a device: its holders, reserved units and free units, in place.

On a card in mixed or MIG mode the parts are where the host has reported
them, in units of the card's region. On other devices, and where the places
do not match the allocations, they follow one another in units of the
measured resource class. The parts of a bar do not overlap, and fill it.
"""

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from nova_accel.catalog import vgpu_types
from nova_accel.geometry import occupancy
from nova_accel.model import providers
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

    ``text`` describes it, ``project`` is that of its server, empty if it is
    not known.
    """

    kind: PartKind
    start: float
    size: float
    text: str
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
        total, parts = placed
    else:
        total, parts = _line_up_parts(row, holders)
    return CardBar(row=row, total=total, parts=_fill_gaps(row, total, parts))


_Holders = Sequence[tuple[holder_rows.AllocationRow, holder_rows.HeldPart]]


def _line_up_parts(
    row: device_rows.DeviceRow, holders: _Holders
) -> tuple[float, list[BarPart]]:
    """Return the length of a bar, and its parts one after the other."""
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
    reserved = min(float(capacity.reserved), total - start)
    if reserved:
        parts.append(
            BarPart(
                kind=PartKind.RESERVED,
                start=total - reserved,
                size=reserved,
                text=f"{row.state}, {reserved:g} {row.usage.unit} reserved",
            )
        )
    return total, parts


def _place_parts(
    row: device_rows.DeviceRow,
    holders: _Holders,
    types: offered_devices.VgpuTypes,
) -> tuple[float, list[BarPart]] | None:
    """Return the length of a card's region and its parts in their places.

    None if the places are not known, or do not match the allocations.
    """
    gpu = types.gpu_of(row.device)
    if gpu is None or row.mode not in _PLACED_MODES:
        return None
    region = gpu.mig_region if row.mode == "mig" else gpu.region
    occupied = occupancy.parse_traits(row.device.traits)
    remaining = list(holders)
    parts: list[BarPart] = []
    for place, is_allocated in (
        *((place, True) for place in occupied.places),
        *((place, False) for place in occupied.unallocated),
    ):
        vgpu_type = types.by_trait.get(place.trait)
        length = _measure_place(gpu, vgpu_type) if vgpu_type else 0.0
        for number in range(place.count):
            start = place.start + number * length
            if not is_allocated:
                parts.append(
                    BarPart(
                        kind=PartKind.UNALLOCATED,
                        start=start,
                        size=length,
                        text=_UNKNOWN,
                    )
                )
                continue
            if vgpu_type is None:
                return None
            holder = _take_holder(remaining, vgpu_type, types)
            if holder is None:
                return None
            allocation, held_part = holder
            typed = dataclasses.replace(held_part, name=vgpu_type.name)
            parts.append(_build_server(allocation, typed, start, length))
    parts.sort(key=lambda part: part.start)
    if remaining or not region or not _are_apart(parts, region):
        return None
    return float(region), parts


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
    return BarPart(
        kind=PartKind.SERVER,
        start=start,
        size=size,
        text=f"{server.name if server else allocation.consumer}, {part}",
        project=server.project if server else "",
    )


def _fill_gaps(
    row: device_rows.DeviceRow, total: float, parts: Iterable[BarPart]
) -> tuple[BarPart, ...]:
    """Return the parts, with the free or unusable units between them."""
    filled: list[BarPart] = []
    position = 0.0
    is_free = row.state == "ok"
    text = f"free, fits {row.largest}" if row.largest else "free"
    for part in (*parts, None):
        end = total if part is None else part.start
        if end - position > _TOLERANCE:
            filled.append(
                BarPart(
                    kind=PartKind.FREE if is_free else PartKind.RESERVED,
                    start=position,
                    size=end - position,
                    text=text if is_free else row.state,
                )
            )
        if part is not None:
            filled.append(part)
            position = part.start + part.size
    return tuple(filled)
