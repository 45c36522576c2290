# SPDX-License-Identifier: Apache-2.0
"""Samples of the usage of this host's devices, at an interval.

It has a thread of its own, and holds none of Nova's locks and none of the
locks of cards: a source that hangs costs the figures only. NVML and debugfs
are read by Nova's privileged daemon, which has the rights; no process is
started.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from nova_accel import model
from nova_accel.host.execute.technologies import nvml_privileged, qat_telemetry
from nova_accel.host.sysfs import fs, usage_files
from nova_accel.model import usage
from placement_sync.daemon import heartbeat, loop
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

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
