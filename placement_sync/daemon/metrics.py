# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only import of prometheus_client.

``prometheus_client`` is optional: the extra ``metrics`` installs it.
"""

import collections
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.host.state import directories
from placement_sync.daemon import operations, usage_metrics
from placement_sync.daemon.status import Status

try:
    import prometheus_client
    from prometheus_client import metrics_core
except ImportError:  # the extra "metrics" is not installed
    prometheus_client = metrics_core = None

LOG = logging.getLogger(__name__)

_TEXTFILE = "[nova_accel] metrics_textfile"
_PORT = "[nova_accel] metrics_port"
# Node exporter's textfile collector reads no other names.
_SUFFIX = ".prom"
# Node exporter runs as another user; the metrics contain no secret.
_MODE = 0o644
# The server has neither TLS nor authentication.
_LOOPBACK = "127.0.0.1"
_OUTCOMES = ("ok", "incomplete", "failed")


class Metrics:
    """Metrics of a writer, in a file, at a port, or both. Thread-safe.

    Each metric has the label ``writer``, so that those of nova-compute and
    placement-sync can be collected together.
    """

    def __init__(
        self,
        textfile: str = "",
        port: int = 0,
        counted: operations.Operations | None = None,
    ) -> None:
        """Start the server of the port; it has no metrics before a pass.

        :param textfile: path of a file for node exporter's textfile
            collector, empty for none.
        :param port: port of the loopback interface, 0 for none.
        :param counted: operations on servers, None for a writer without.
        :raises ConfigurationError: prometheus_client is not installed, or
            the file or port can't be used.
        """
        self._textfile = textfile
        self._collector = _StatusCollector(counted)
        self._server: Any = None
        self._last_reason = ""
        if not textfile and not port:
            return
        _check_settings(textfile, port)
        if textfile:
            with contextlib.suppress(OSError):
                directories.remove_partial_files(*os.path.split(textfile))
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self._collector)
        if port:
            self._server = _start_server(port, self._registry)

    def publish(self, status: Status) -> None:
        """Replace the published status, and count its pass.

        A failed write of the file is logged once.
        """
        self._collector.add(status)
        self._write_file()

    def update(self, status: Status) -> None:
        """Replace the published status; its pass was counted before."""
        self._collector.replace(status)
        self._write_file()

    def _write_file(self) -> None:
        if not self._textfile:
            return
        try:
            text = prometheus_client.generate_latest(self._registry)
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

    def close(self) -> None:
        """Stop the server of the port; the file stays as it is."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


def _check_settings(textfile: str, port: int) -> None:
    if prometheus_client is None:
        raise errors.ConfigurationError(
            _TEXTFILE if textfile else _PORT,
            textfile or str(port),
            "prometheus_client is not installed; install nova-accel[metrics]",
        )
    if textfile and not (
        os.path.isabs(textfile) and textfile.endswith(_SUFFIX)
    ):
        raise errors.ConfigurationError(
            _TEXTFILE,
            textfile,
            f"must be an absolute path that ends in {_SUFFIX}, in the"
            " directory of node exporter's textfile collector",
        )


def _start_server(port: int, registry: Any) -> Any:
    try:
        server, _ = prometheus_client.start_http_server(
            port, _LOOPBACK, registry
        )
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        hint = (
            "another program uses it, perhaps nova-compute or placement-sync"
            " itself; set a different port for each"
            if number == errno.EADDRINUSE
            else "set a port that this user may open, or 0 for none"
        )
        raise errors.ConfigurationError(
            _PORT, str(port), f"{error}; {hint}"
        ) from error
    return server


class _StatusCollector:
    """Custom collector: builds the metrics of the last status at a scrape.

    prometheus_client's own Gauge and Counter are not used: a scrape must
    see one consistent status, and states and classes that are gone must
    leave no series behind.
    """

    def __init__(self, counted: operations.Operations | None = None) -> None:
        self._operations = counted
        self._status: Status | None = None
        self._passes: collections.Counter[str] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._requests: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def add(self, status: Status) -> None:
        with self._lock:
            self._status = status
            self._passes[status.outcome] += 1
            self._calls.update(status.calls)
            self._requests.update(read=status.reads, write=status.writes)

    def replace(self, status: Status) -> None:
        with self._lock:
            self._status = status

    def collect(self) -> Iterable[Any]:
        """Return the metric families; prometheus_client's interface."""
        with self._lock:
            status = self._status
            if status is None:
                return []
            families = [
                *_list_pass_gauges(status),
                *_list_host_gauges(status),
                *usage_metrics.list_device_gauges(status),
                *usage_metrics.list_server_gauges(status),
                *self._list_counters(),
            ]
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

    def _list_counters(self) -> Iterator[usage_metrics.Family]:
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


def _list_pass_gauges(status: Status) -> Iterator[usage_metrics.Family]:
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


def _list_host_gauges(status: Status) -> Iterator[usage_metrics.Family]:
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


def _metric(writer: str, family: usage_metrics.Family) -> Any:
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
