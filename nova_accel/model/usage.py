# SPDX-License-Identifier: Apache-2.0
"""Measured usage of devices and partitions: utilisation, memory, power.

Figures are samples for monitoring; Placement counts amounts from allocations,
never from these. None is a value that its source does not report: it is
unknown, not 0.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nova_accel.model import device, json_codec

_FIGURE = "figure"


class Figure(NamedTuple):
    """Names and unit of a field of a row; JSON has the field's own name.

    ``metric`` ends the name of the metric, whose value is the field's.
    Tables and the meter have ``unit``, to which ``scale`` converts it.
    """

    metric: str
    help: str
    unit: str
    scale: Callable[[Any], float] = float
    meter: str = ""

    def format(self, *values: float) -> str:
        """Return values of the field as a text, with their unit."""
        return f"{'/'.join(map(self._format_number, values))} {self.unit}"

    def _format_number(self, value: float) -> str:
        scaled = self.scale(value)
        return str(scaled) if isinstance(scaled, int) else f"{scaled:g}"


def to_mib(count: int) -> int:
    """Return a number of bytes in MiB."""
    return count >> 20


def to_percent(ratio: float) -> float:
    return ratio * 100


def figure(*figure: Any, default: Any = None, **named: Any) -> Any:
    """Return a field with a figure; see ``Figure`` for the arguments."""
    metadata = {_FIGURE: Figure(*figure, **named)}
    return dataclasses.field(default=default, metadata=metadata)


def list_figures(row: Any) -> Mapping[str, Figure]:
    """Return the figures of a row or of its class, by field."""
    return {
        field.name: field.metadata[_FIGURE]
        for field in dataclasses.fields(row)
        if _FIGURE in field.metadata
    }


class Scope(enum.StrEnum):
    """Whole of which a utilisation is a share.

    DEVICE: all of the device, also for a time-sliced partition of it.
    INSTANCE: the partition's own GPU instance (MIG).
    """

    DEVICE = "device"
    INSTANCE = "instance"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineUsage:
    """Utilisation of an engine, from 0 to 1, since the last sample.

    ``engine`` is ``compute``, ``memory`` (its bandwidth), ``encoder``,
    ``decoder``, ``jpeg`` or ``ofa`` of a GPU, or a slice of a QAT device as
    its driver names it (``cpr``, ``dcpr``, ``pke``, ...).
    """

    engine: str
    ratio: float
    scope: Scope = Scope.DEVICE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """Usage of a device. Memory is in bytes."""

    address: str
    engines: tuple[EngineUsage, ...] = figure(
        *("utilisation_ratio", "Utilisation of an engine of a device", "%"),
        to_percent,
        default=(),
    )
    memory_used: int | None = figure(
        "memory_used_bytes", "Memory in use", "MiB", to_mib
    )
    memory_total: int | None = figure(
        "memory_bytes", "Memory of a device", "MiB", to_mib
    )
    power_watts: float | None = figure(
        "power_watts", "Power that a device draws", "W"
    )
    temperature_celsius: float | None = figure(
        "temperature_celsius", "Temperature of a device", "°C"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUsage:
    """Usage of a partition. Memory is in bytes.

    ``handle`` is the mdev's uuid or the VF's address; ``profile`` is empty
    where the source does not name it. NVML has no handle
    of a VF with a vendor-specific VFIO driver: then it is empty, and
    ``server`` is the uuid of the domain that has the partition.
    """

    device: str
    profile: str = ""
    handle: str = ""
    server: str = ""
    engines: tuple[EngineUsage, ...] = ()
    memory_used: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """Usage of a host's devices; ``problems`` are sources without figures."""

    devices: tuple[DeviceUsage, ...] = ()
    partitions: tuple[PartitionUsage, ...] = ()
    problems: tuple[device.Problem, ...] = ()


#: The form in which Nova's privileged daemon returns the usage.
FORMAT = json_codec.Format(kind=UsageSample)


def merge(*sources: UsageSample) -> UsageSample:
    """Return the usage of several sources as one, with a row per device.

    Of a figure that two sources have, the first one's is used.
    """
    devices: dict[str, DeviceUsage] = {}
    for each in sources:
        for row in each.devices:
            before = devices.get(row.address, DeviceUsage(address=row.address))
            devices[row.address] = _merge_devices(before, row)
    return UsageSample(
        devices=tuple(devices.values()),
        partitions=tuple(p for each in sources for p in each.partitions),
        problems=tuple(p for each in sources for p in each.problems),
    )


def _merge_devices(first: DeviceUsage, second: DeviceUsage) -> DeviceUsage:
    missing = {
        field.name: getattr(second, field.name)
        for field in dataclasses.fields(first)
        if getattr(first, field.name) is None
    }
    named = {each.engine for each in first.engines}
    engines = (
        *first.engines,
        *(each for each in second.engines if each.engine not in named),
    )
    return dataclasses.replace(first, engines=engines, **missing)
