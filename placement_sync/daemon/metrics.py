# SPDX-License-Identifier: Apache-2.0
"""Metrics for node exporter's textfile collector, in Prometheus's format.

``prometheus_client`` is optional: the extra ``metrics`` installs it, and only
this module imports it. A figure that is not known has no series: unknown is
not 0. The series of a server end with its claims.
"""

import collections
import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.host.state import directories
from nova_accel.model import usage
from placement_sync.daemon import operations, usage_rows
from placement_sync.daemon.status import Status

try:
    import prometheus_client
    from prometheus_client import metrics_core
except ImportError:  # the extra "metrics" is not installed
    prometheus_client = metrics_core = None

LOG = logging.getLogger(__name__)

_TEXTFILE = "[nova_accel] metrics_textfile"
# Node exporter's textfile collector reads no other names.
_SUFFIX = ".prom"
# Node exporter runs as another user; the metrics contain no secret.
_MODE = 0o644
_OUTCOMES = ("ok", "incomplete", "failed")

# A metric's name and help, the names of its labels without ``writer``, and
# its values by label values.
Family = tuple[str, str, tuple[str, ...], dict[tuple[str, ...], float]]

_DEVICE = ("device",)
# A server may have several partitions of one profile on a device.
_SERVER = ("server", "project", "device", "profile", "partition")


class Metrics:
    """Metrics of a writer, in a file. Thread-safe.

    Each metric has the label ``writer``, so that those of nova-compute and
    placement-sync can be collected together. prometheus_client's own Gauge and
    Counter are not used: states and classes that are gone must leave no series
    behind.
    """

    def __init__(
        self,
        textfile: str,
        counted: operations.Operations | None = None,
    ) -> None:
        """Write no file before a pass.

        :param textfile: its path, empty for none.
        :param counted: operations on servers, None for a writer without.
        :raises ConfigurationError: prometheus_client is not installed, or
            node exporter does not read a file of that name.
        """
        self._textfile = textfile
        self._operations = counted
        self._passes: collections.Counter[str] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._requests: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._last_reason = ""
        if textfile:
            _check_textfile(textfile)
            with contextlib.suppress(OSError):
                directories.remove_partial_files(*os.path.split(textfile))

    def publish(self, status: Status) -> None:
        """Write the metrics of a status, and count its pass.

        A failed write of the file is logged once.
        """
        with self._lock:
            self._passes[status.outcome] += 1
            self._calls.update(status.calls)
            self._requests.update(read=status.reads, write=status.writes)
            self._write(status)

    def update(self, status: Status) -> None:
        """Write the metrics of a status; its pass was counted before."""
        with self._lock:
            self._write(status)

    def _write(self, status: Status) -> None:
        if not self._textfile:
            return
        families = _Families(self._build_families(status))
        try:
            text = prometheus_client.generate_latest(families)
            directories.replace_file(self._textfile, text, _MODE)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._last_reason:
                logs.warning(
                    LOG,
                    "Can't write metrics to %s (%s); correct nova.conf %s",
                    self._textfile,
                    reason,
                    _TEXTFILE,
                )
            self._last_reason = reason
        else:
            self._last_reason = ""

    def _build_families(self, status: Status) -> list[Any]:
        families = (
            *_list_pass_gauges(status),
            *_list_host_gauges(status),
            *_list_device_gauges(status),
            *_list_server_gauges(status),
            *self._list_counters(),
        )
        return [
            *(_metric(status.writer, family) for family in families),
            *self._list_operations(status.writer),
        ]

    def _list_operations(self, writer: str) -> Iterator[Any]:
        """Yield the metrics of operations, none for a writer without."""
        if self._operations is None:
            return
        histogram = metrics_core.HistogramMetricFamily(
            "nova_accel_operation_seconds",
            "Durations of operations on servers that succeeded",
            labels=("writer", "operation"),
        )
        for name, durations in self._operations.durations().items():
            bounds = [*map(str, map(float, operations.BOUNDS_S)), "+Inf"]
            counts = [*durations.counts, durations.count]
            histogram.add_metric(
                (writer, name),
                list(zip(bounds, counts, strict=True)),
                durations.sum_s,
            )
        yield histogram
        yield _metric(
            writer,
            (
                "nova_accel_refusals_total",
                "Operations on servers that failed",
                ("operation", "reason"),
                {
                    (operation, reason): count
                    for (operation, reason), count in (
                        self._operations.refusals().items()
                    )
                },
            ),
        )

    def _list_counters(self) -> Iterator[Family]:
        yield (
            "nova_accel_passes_total",
            "Passes over Placement since the writer started",
            ("outcome",),
            {(name,): self._passes[name] for name in _OUTCOMES},
        )
        yield (
            "nova_accel_placement_calls_total",
            "Changes made in Placement",
            ("kind",),
            {(kind,): n for kind, n in self._calls.items()},
        )
        yield (
            "nova_accel_placement_requests_total",
            "Requests sent to Placement",
            ("kind",),
            {(kind,): self._requests[kind] for kind in ("read", "write")},
        )


class _Families(list[Any]):
    """Metric families, as a collector of prometheus_client."""

    def collect(self) -> Iterable[Any]:
        return self


def _check_textfile(textfile: str) -> None:
    if prometheus_client is None:
        raise errors.ConfigurationError(
            _TEXTFILE,
            textfile,
            "prometheus_client is not installed; install nova-accel[metrics]",
        )
    if not (os.path.isabs(textfile) and textfile.endswith(_SUFFIX)):
        raise errors.ConfigurationError(
            _TEXTFILE,
            textfile,
            f"must be an absolute path that ends in {_SUFFIX}, in the"
            " directory of node exporter's textfile collector",
        )


def _list_pass_gauges(status: Status) -> Iterator[Family]:
    yield (
        "nova_accel_build_info",
        "Version of the library of the writer; always 1",
        ("version",),
        {(status.version,): 1},
    )
    for name, event, value in (
        ("last_success_timestamp_seconds", "ended", status.succeeded),
        ("last_attempt_timestamp_seconds", "began", status.attempted),
    ):
        yield (
            f"nova_accel_{name}",
            f"When a pass last {event}, in seconds since 1970",
            (),
            {} if value is None else {(): value},
        )
    yield (
        "nova_accel_interval_seconds",
        "Configured time between two passes",
        (),
        {(): status.interval_s} if status.interval_s else {},
    )
    yield (
        "nova_accel_pass_seconds",
        "Duration of the last pass",
        (),
        {(): status.seconds},
    )
    yield (
        "nova_accel_problems",
        "Problems of the last complete pass",
        (),
        {(): len(status.problems)},
    )


def _list_host_gauges(status: Status) -> Iterator[Family]:
    yield (
        "nova_accel_failed_check",
        "Checks of the host that failed when the writer started; always 1",
        ("check",),
        {(name,): 1 for name in status.failed_checks},
    )
    yield (
        "nova_accel_devices",
        "Accelerators of the host by state",
        ("state",),
        {(state,): n for state, n in status.devices.items()},
    )
    yield (
        "nova_accel_vgpu_license",
        "State of the licence of a guest with a vGPU; always 1",
        ("server", "device", "profile", "state", "driver"),
        {
            (
                *(guest.server, guest.device, guest.profile),
                *(guest.license or "unknown", guest.driver),
            ): 1
            for guest in status.guests
        },
    )
    yield (
        "nova_accel_units",
        "Units of a resource class over all devices of the host",
        ("resource_class", "kind"),
        {
            (name, kind): getattr(use, kind)
            for name, use in status.use.items()
            for kind in ("total", "reserved", "claimed")
        },
    )


def _list_device_gauges(status: Status) -> Iterator[Family]:
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


def _list_server_gauges(status: Status) -> Iterator[Family]:
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


def _metric(writer: str, family: Family) -> Any:
    name, help_text, labels, values = family
    kind = (
        metrics_core.CounterMetricFamily
        if name.endswith("_total")
        else metrics_core.GaugeMetricFamily
    )
    metric = kind(name, help_text, labels=("writer", *labels))
    for key, value in values.items():
        metric.add_metric((writer, *key), value)
    return metric
