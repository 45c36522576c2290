# SPDX-License-Identifier: Apache-2.0
"""Metrics of single devices and servers, as values.

A figure that is not known has no series: unknown is not 0. The series of a
server end with its claims.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel.model import usage
from placement_sync.daemon import usage_rows
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
    rooms = [((row.address,), row) for row in status.room]
    yield from _list_figures("device", usage_rows.DeviceRoom, rooms, _DEVICE)
    yield (
        "nova_accel_sample_timestamp_seconds",
        "When the usage of the devices was last read",
        (),
        {} if status.sampled is None else {(): status.sampled},
    )
    devices = [((row.address,), row) for row in status.device_usage]
    yield from _list_figures("device", usage.DeviceUsage, devices, _DEVICE)


def list_server_gauges(status: Status) -> Iterator[Family]:
    """Yield the metrics of each server's partitions."""
    servers = [
        (tuple(str(getattr(row, name)) for name in _SERVER), row)
        for row in status.servers
    ]
    yield (
        "nova_accel_server_info",
        "Partition that a server has; always 1",
        _SERVER,
        {key: 1 for key, _ in servers},
    )
    yield from _list_figures(
        "server", usage_rows.ServerUsage, servers, _SERVER, ("scope",)
    )


def _list_figures(
    prefix: str,
    kind: type[Any],
    rows: Iterable[tuple[tuple[str, ...], Any]],
    labels: tuple[str, ...],
    engine_labels: tuple[str, ...] = (),
) -> Iterator[Family]:
    """Yield a metric for each figure of a kind of rows.

    :param rows: each with its label values.
    :param engine_labels: further labels of an engine's utilisation.
    """
    for field, figure in usage.list_figures(kind).items():
        name = f"nova_accel_{prefix}_{figure.metric}"
        if field == "engines":
            own = ("engine", *engine_labels)
            values = {
                (*key, *(str(getattr(engine, o)) for o in own)): engine.ratio
                for key, row in rows
                for engine in row.engines
            }
            yield name, figure.help, (*labels, *own), values
        else:
            values = {
                key: float(value)
                for key, row in rows
                if (value := getattr(row, field)) is not None
            }
            yield name, figure.help, labels, values
