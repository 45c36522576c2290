# SPDX-License-Identifier: Apache-2.0
"""Samples of usage and metrics, as an extension of the status.

The sampler has a thread of its own, and holds none of Nova's locks and none of
the locks of cards: a source that hangs costs the figures only. NVML and
debugfs are read by Nova's privileged daemon, which has the rights; no process
is started.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.host.execute.technologies import nvml_privileged, qat_telemetry
from nova_accel.host.sysfs import fs, usage_files
from nova_accel.model import usage
from placement_sync.daemon import heartbeat, loop, metrics
from virt_hooks.report import reconcile
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)


class UsageExtension:
    """``reconcile.StatusExtension`` of usage and metrics."""

    def __init__(self, context: reconcile.ExtensionContext) -> None:
        self._settings = context.settings.sync
        self._operations = context.operations
        self._metrics: metrics.Metrics | None = None
        self._sampler = UsageSampler(
            context.settings.root,
            context.accel,
            context.beat,
            context.read_projects,
        )

    def start(self) -> None:
        """Export metrics and take samples, if nova.conf enables them.

        Metrics that can't be exported are an error in the log.
        """
        try:
            self._metrics = metrics.Metrics(
                self._settings.metrics_textfile, self._operations
            )
        except errors.ConfigurationError as error:
            logs.error(LOG, "can't publish metrics of the passes: %s", error)
        if self._settings.stats_interval:
            self._sampler.start(self._settings.stats_interval)

    def stop(self) -> None:
        """Take no more samples."""
        self._sampler.stop()

    def publish(self, status: heartbeat.Status) -> None:
        """Publish the status of a new pass as metrics."""
        if self._metrics is not None:
            self._metrics.publish(status)

    def update(self, status: heartbeat.Status) -> None:
        """Publish the status of a new sample as metrics."""
        if self._metrics is not None:
            self._metrics.update(status)


# Root of this machine's own kernel files; NVML knows its GPUs only.
_OWN_ROOT = "/"
_STOP_S = 1.0
_QAT = "qat"


class UsageSampler:
    """Reads the usage of devices, and records it in the status."""

    def __init__(
        self,
        root: str,
        accel: lifecycle.Lifecycle,
        beat: heartbeat.Heartbeat,
        read_projects: Callable[[], Mapping[str, str]],
    ) -> None:
        """Read nothing yet.

        :param root: ``[nova_accel] root``.
        :param read_projects: returns the known projects by server, no I/O.
        """
        self._root = root
        self._accel = accel
        self._heartbeat = beat
        self._read_projects = read_projects
        self._files = usage_files.UsageFiles(fs.DiskSource(root))
        #: Problems that were logged.
        self._problems: frozenset[model.Problem] = frozenset()
        self._loop: loop.Loop | None = None

    def start(self, interval_s: float) -> None:
        """Sample from now on."""
        self._loop = loop.Loop(self.sample, interval_s, name="usage samples")
        self._loop.start()

    def stop(self) -> None:
        """Sample no more; wait shortly for a sample in progress."""
        if self._loop is not None:
            self._loop.stop(_STOP_S)

    def sample(self) -> None:
        """Read all sources, and record what they have.

        A source that fails is a problem of the sample: it is logged when it
        appears, and the others are read.
        """
        host = self._accel.host.state
        addresses = [device.address for device in host.devices]
        sources: list[tuple[str, Callable[[], usage.UsageSample]]] = [
            ("usage in sysfs", lambda: self._files.read(addresses)),
            ("telemetry of QAT", lambda: self._read_telemetry(host.devices)),
        ]
        if self._root == _OWN_ROOT:
            sources.append(("usage of GPUs", nvml_privileged.read_usage))
        sampled = usage.merge(
            *(_read_source(where, read) for where, read in sources)
        )
        self._log_problems(sampled.problems)
        self._heartbeat.record_sample(
            sampled, host, self._accel.claims(), self._read_projects()
        )

    def _read_telemetry(
        self, devices: Iterable[model.Device]
    ) -> usage.UsageSample:
        return usage.merge(
            *(
                usage_files.judge_telemetry(
                    device.address,
                    *qat_telemetry.read_telemetry(self._root, device.address),
                )
                for device in devices
                if device.plugin == _QAT
            )
        )

    def _log_problems(self, problems: Iterable[model.Problem]) -> None:
        current = frozenset(problems)
        for problem in sorted(
            current - self._problems, key=lambda p: (p.where, p.reason)
        ):
            LOG.warning(
                "usage is not known: %s: %s", problem.where, problem.reason
            )
        self._problems = current


def _read_source(
    where: str, read: Callable[[], usage.UsageSample]
) -> usage.UsageSample:
    try:
        return read()
    except Exception as error:  # the daemon may fail to start for any reason
        return usage.UsageSample(
            problems=(model.Problem(where=where, reason=repr(error)),)
        )
