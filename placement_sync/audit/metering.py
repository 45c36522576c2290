# SPDX-License-Identifier: Apache-2.0
"""Pollsters of Ceilometer's compute agent; the only import of ceilometer.

Each partition of a server is a resource of its own, so that profiles attached
to a running server are metered, too. Units and memory are those of claims.

They read the status that nova-compute stores on the host, below ``[nova_accel]
state_dir`` of Ceilometer's configuration. A stale status gives no samples: the
servers may have ended since.
"""

import collections
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ceilometer.compute.pollsters import util
from ceilometer.polling import plugin_base

from nova_accel import errors
from nova_accel.config import conf, logs
from nova_accel.model import usage
from placement_sync.daemon import heartbeat, usage_rows

LOG = logging.getLogger(__name__)

_WRITER = "nova-compute"
_CACHE_KEY = "nova_accel_servers"
_ENGINE = "compute"
_FIGURES = usage.list_figures(usage_rows.ServerUsage)
_MEMORY, _UTILISATION = _FIGURES["memory_total"], _FIGURES["engines"]

_Rows = Mapping[str, list[usage_rows.ServerUsage]]


class _PartitionPollster(plugin_base.PollsterBase):
    """Pollster that yields one gauge for each partition of a server."""

    meter = ""
    unit = ""

    @property
    def default_discovery(self) -> str:
        return "local_instances"

    def get_samples(
        self, manager: Any, cache: dict[str, Any], resources: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield the samples of the servers among Ceilometer's instances.

        :param cache: of this polling cycle; the status is read once for all
            meters.
        """
        if _CACHE_KEY not in cache:
            cache[_CACHE_KEY] = read_servers(conf.read_settings(self.conf))
        servers: _Rows = cache[_CACHE_KEY]
        for instance in resources:
            for row in servers.get(instance.id, ()):
                volume = self.measure(row)
                if volume is not None:
                    yield util.make_sample_from_instance(
                        self.conf,
                        instance,
                        name=self.meter,
                        type="gauge",
                        unit=self.unit,
                        volume=volume,
                        resource_id=f"{row.server}-{row.partition}",
                        additional_metadata=describe(row),
                    )

    def measure(self, row: usage_rows.ServerUsage) -> float | None:
        """Return the volume of a partition, None without a figure."""
        raise NotImplementedError


class UnitsPollster(_PartitionPollster):
    """Units of the device's resource class: one for each partition."""

    meter, unit = "accelerator.units", "unit"

    def measure(self, row: usage_rows.ServerUsage) -> float | None:
        return 1


class MemoryPollster(_PartitionPollster):
    """Memory of the partition's profile, used or not."""

    meter, unit = _MEMORY.meter, _MEMORY.unit

    def measure(self, row: usage_rows.ServerUsage) -> float | None:
        amount = row.memory_total
        return None if amount is None else _MEMORY.scale(amount)


class UtilisationPollster(_PartitionPollster):
    """Utilisation of compute engines, where nova-compute samples it."""

    meter, unit = _UTILISATION.meter, _UTILISATION.unit

    def measure(self, row: usage_rows.ServerUsage) -> float | None:
        ratios = [e.ratio for e in row.engines if e.engine == _ENGINE]
        return _UTILISATION.scale(ratios[0]) if ratios else None


def describe(row: usage_rows.ServerUsage) -> dict[str, str]:
    """Return the metadata of a partition's samples."""
    scopes = [e.scope.value for e in row.engines if e.engine == _ENGINE]
    return {
        "server_id": row.server,
        "profile": row.profile,
        "device": row.device,
        "partition": row.partition,
        "resource_class": row.resource_class,
        "scope": scopes[0] if scopes else "",
    }


def read_servers(settings: conf.Settings) -> _Rows:
    """Return the partitions of this host by server; log why there are none.

    :param settings: of the agent's configuration.
    """
    rows: dict[str, list[usage_rows.ServerUsage]] = collections.defaultdict(
        list
    )
    try:
        statuses = heartbeat.read(settings.state_dir)
    except errors.UnreadableError as error:
        logs.warning(LOG, "accelerators are not metered: %s", error)
        return rows
    for status in statuses:
        if status.writer != _WRITER:
            continue
        if status.is_broken or status.is_stale(time.time()):
            LOG.warning(
                "accelerators are not metered: the status of %s in %s is old"
                " or damaged; see `nova-accel status`",
                status.writer,
                settings.state_dir,
            )
            continue
        for row in status.servers:
            rows[row.server].append(row)
    return rows
