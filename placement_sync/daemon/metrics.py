# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only import of prometheus_client.

``prometheus_client`` is optional: whoever asks for metrics installs it.
"""

import collections
import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors
from nova_accel.host.state import atomic_write
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
# Whoever collects them runs as another user; they hold no secret.
_MODE = 0o644
# Not for the network: there is no TLS and no password.
_LOOPBACK = "127.0.0.1"
_OUTCOMES = ("ok", "incomplete", "failed")

# A metric's name and help, the names of its labels besides the writer, and
# its values by the values of those.
_Family = tuple[str, str, tuple[str, ...], dict[tuple[str, ...], float]]


class Metrics:
    """A writer's metrics in a file, at a port, in both or in neither.

    Each has the label ``writer``, so that the files of nova-compute and
    placement-sync can be collected together. Thread-safe.
    """

    def __init__(self, textfile: str = "", port: int = 0) -> None:
        """Serve the port, if there is one; it is empty before a pass.

        :param textfile: path of the file for node exporter's textfile
            collector, empty for none.
        :param port: of the loopback interface, 0 for none.
        :raises ConfigurationError: prometheus_client is not installed, or
            the file or port can't be used.
        """
        self._textfile = textfile
        self._series = _Series()
        self._server: Any = None
        self._said = ""
        if not textfile and not port:
            return
        _check(textfile, port)
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self._series)
        if port:
            self._server = _serve(port, self._registry)

    def publish(self, status: Status) -> None:
        """Show a status, and count its pass.

        A file that can't be written is logged once, and stops nobody.
        """
        self._series.add(status)
        if not self._textfile:
            return
        try:
            text = prometheus_client.generate_latest(self._registry)
            atomic_write.replace(self._textfile, text, _MODE)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._said:
                LOG.warning(
                    "metrics can't be written to %s (%s); mend nova.conf %s",
                    self._textfile,
                    reason,
                    _TEXTFILE,
                )
            self._said = reason
        else:
            self._said = ""

    def close(self) -> None:
        """Serve the port no more; the file stays as it is."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


def _check(textfile: str, port: int) -> None:
    if prometheus_client is None:
        raise errors.ConfigurationError(
            _TEXTFILE if textfile else _PORT,
            textfile or str(port),
            "prometheus_client is not installed;"
            " pip install nova-accel[metrics]",
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


def _serve(port: int, registry: Any) -> Any:
    """Return the server of a port, which runs in threads of its own."""
    try:
        server, _ = prometheus_client.start_http_server(
            port, _LOOPBACK, registry
        )
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        mend = (
            "another program has it, perhaps nova-compute or placement-sync"
            " itself; choose another one for each"
            if number == errno.EADDRINUSE
            else "choose a port that this user may open, or 0 for none"
        )
        raise errors.ConfigurationError(
            _PORT, str(port), f"{error}; {mend}"
        ) from error
    return server


class _Series:
    """What prometheus_client asks for the metrics of now.

    Nothing is counted in its own objects: a scrape sees one status whole,
    and devices' states and classes that are gone leave no old numbers.
    """

    def __init__(self) -> None:
        self._status: Status | None = None
        self._passes: collections.Counter[str] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._requests: collections.Counter[str] = collections.Counter()
        self._guard = threading.Lock()

    def add(self, status: Status) -> None:
        with self._guard:
            self._status = status
            self._passes[status.outcome] += 1
            self._calls.update(status.calls)
            self._requests.update(read=status.reads, write=status.writes)

    def collect(self) -> Iterable[Any]:
        """Return the metric families, as prometheus_client wants them."""
        with self._guard:
            status = self._status
            if status is None:
                return []
            families = [*_gauges(status), *self._counters()]
        return [_metric(status.writer, family) for family in families]

    def _counters(self) -> Iterator[_Family]:
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


def _gauges(status: Status) -> Iterator[_Family]:
    yield (
        "nova_accel_build_info",
        "Version of the library that passes; always 1",
        ("version",),
        {(status.version,): 1},
    )
    for name, words, value in (
        ("last_success_timestamp_seconds", "ended", status.succeeded),
        ("last_attempt_timestamp_seconds", "began", status.attempted),
    ):
        yield (
            f"nova_accel_{name}",
            f"When a pass last {words}, in seconds since 1970",
            (),
            {} if value is None else {(): value},
        )
    yield (
        "nova_accel_interval_seconds",
        "Time from pass to pass as configured",
        (),
        {(): status.interval_s} if status.interval_s else {},
    )
    yield (
        "nova_accel_pass_seconds",
        "How long the last pass took",
        (),
        {(): status.seconds},
    )
    yield (
        "nova_accel_problems",
        "What the last pass that ended could not read, use or do",
        (),
        {(): len(status.problems)},
    )
    yield (
        "nova_accel_devices",
        "Accelerators of the host by their state",
        ("state",),
        {(state,): n for state, n in status.devices.items()},
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


def _metric(writer: str, family: _Family) -> Any:
    name, words, labels, values = family
    kind = (
        metrics_core.CounterMetricFamily
        if name.endswith("_total")
        else metrics_core.GaugeMetricFamily
    )
    metric = kind(name, words, labels=("writer", *labels))
    for key, value in values.items():
        metric.add_metric((writer, *key), value)
    return metric
