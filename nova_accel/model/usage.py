# SPDX-License-Identifier: Apache-2.0
"""Measured usage of devices and partitions: utilisation, memory, power.

Figures are samples for monitoring; Placement counts amounts from allocations,
never from these. None is a value that its source does not report: it is
unknown, not 0.
"""

import dataclasses
import enum

from nova_accel.model import device, json_codec


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
    engines: tuple[EngineUsage, ...] = ()
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


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
