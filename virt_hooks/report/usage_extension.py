# SPDX-License-Identifier: Apache-2.0
"""Samples of usage and metrics, as an extension of the status."""

import logging

from nova_accel import errors
from nova_accel.config import logs
from placement_sync.daemon import heartbeat, metrics
from virt_hooks.report import status_extensions, usage_sampler

LOG = logging.getLogger(__name__)


class UsageExtension:
    """``status_extensions.StatusExtension`` of usage and metrics."""

    def __init__(self, context: status_extensions.ExtensionContext) -> None:
        self._settings = context.settings.sync
        self._operations = context.operations
        self._metrics: metrics.Metrics | None = None
        self._sampler = usage_sampler.UsageSampler(
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
                self._settings.metrics_textfile,
                self._settings.metrics_port,
                self._operations,
            )
        except errors.ConfigurationError as error:
            logs.error(LOG, "can't publish metrics of the passes: %s", error)
        if self._settings.stats_interval:
            self._sampler.start(self._settings.stats_interval)

    def stop(self) -> None:
        """Take no more samples, and close the port of the metrics."""
        self._sampler.stop()
        if self._metrics is not None:
            self._metrics.close()

    def publish(self, status: heartbeat.Status) -> None:
        """Publish the status of a new pass as metrics."""
        if self._metrics is not None:
            self._metrics.publish(status)

    def update(self, status: heartbeat.Status) -> None:
        """Publish the status of a new sample as metrics."""
        if self._metrics is not None:
            self._metrics.update(status)
