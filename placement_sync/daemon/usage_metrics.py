# SPDX-License-Identifier: Apache-2.0
"""Metrics of single devices and servers, as values.

A figure that is not known has no series: unknown is not 0. The series of a
server end with its claims.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from placement_sync.daemon.status import Status

# A metric's name and help, the names of its labels without ``writer``, and
# its values by label values.
Family = tuple[str, str, tuple[str, ...], dict[tuple[str, ...], float]]

_DEVICE = ("device",)
# A server may have several partitions of one profile on a device.
_SERVER = ("server", "project", "device", "profile", "partition")


def list_device_gauges(status: Status) -> Iterator[Family]:
    """Yield the metrics of each device."""
    yield (
        "nova_accel_device_info",
        "Model and state of a device; always 1",
        (*_DEVICE, "model", "state"),
        {(row.address, row.model, row.state): 1 for row in status.room},
    )
    free: dict[tuple[str, ...], float] = {}
    for row in status.room:
        for profile, count in row.free.items():
            free[(profile,)] = free.get((profile,), 0) + count
    yield (
        "nova_accel_free_profiles",
        "Further partitions of a profile that fit, without those of others",
        ("profile",),
        free,
    )
    yield (
        "nova_accel_device_fragmentation_ratio",
        "Share of the free memory that the largest profile can't take",
        _DEVICE,
        {
            (row.address,): row.fragmentation
            for row in status.room
            if row.fragmentation is not None
        },
    )
    yield (
        "nova_accel_sample_timestamp_seconds",
        "When the usage of the devices was last read",
        (),
        {} if status.sampled is None else {(): status.sampled},
    )
    yield (
        "nova_accel_device_utilisation_ratio",
        "Utilisation of an engine of a device",
        (*_DEVICE, "engine"),
        {
            (row.address, engine.engine): engine.ratio
            for row in status.device_usage
            for engine in row.engines
        },
    )
    keys = {row: (row.address,) for row in status.device_usage}
    for name, field, help_text in (
        ("memory_used_bytes", "memory_used", "Memory in use"),
        ("memory_bytes", "memory_total", "Memory of a device"),
        ("power_watts", "power_watts", "Power that a device draws"),
        (
            "temperature_celsius",
            "temperature_celsius",
            "Temperature of a device",
        ),
    ):
        values = _list_known(keys, field)
        yield f"nova_accel_device_{name}", help_text, _DEVICE, values


def list_server_gauges(status: Status) -> Iterator[Family]:
    """Yield the metrics of each server's partitions."""
    keys = {
        row: (row.server, row.project, row.device, row.profile, row.partition)
        for row in status.servers
    }
    yield (
        "nova_accel_server_info",
        "Partition that a server has; always 1",
        _SERVER,
        dict.fromkeys(keys.values(), 1),
    )
    yield (
        "nova_accel_server_utilisation_ratio",
        "Utilisation of an engine by a server",
        (*_SERVER, "engine", "scope"),
        {
            (*key, engine.engine, engine.scope.value): engine.ratio
            for row, key in keys.items()
            for engine in row.engines
        },
    )
    for name, field, help_text in (
        ("memory_used_bytes", "memory_used", "Memory that a server uses"),
        ("memory_bytes", "memory_total", "Memory of a server's partition"),
    ):
        values = _list_known(keys, field)
        yield f"nova_accel_server_{name}", help_text, _SERVER, values


def _list_known(
    keys: Mapping[Any, tuple[str, ...]], field: str
) -> dict[tuple[str, ...], float]:
    """Return the known values of a field of rows, by their label values."""
    return {
        key: float(value)
        for row, key in keys.items()
        if (value := getattr(row, field)) is not None
    }
