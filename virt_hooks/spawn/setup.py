# SPDX-License-Identifier: Apache-2.0
"""Builds the Lifecycle of this compute node from nova.conf."""

from collections.abc import Callable
from typing import Any

from nova_accel.config import conf
from nova_accel.discovery import change_detection, plugin, snapshot
from nova_accel.host.bitstreams import bitstream_cache
from nova_accel.host.execute import action_executor, privileged, serials
from nova_accel.host.nvml import gpu_reader, xid_events
from nova_accel.host.state import (
    claims_file,
    drains,
    error_baseline,
    faults,
    service_lock,
)
from nova_accel.host.sysfs import fs
from nova_accel.inventory import health
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle, region_programs

# Where this machine's own kernel is; below any other root is a simulated
# one, of which this machine's libvirt and NVML know nothing.
_OWN = "/"


def read_node(options: Any, connect: Callable[[], Any]) -> lifecycle.Lifecycle:
    """Return the accelerators of this host; nothing is read of it yet.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :param connect: returns the connection to this host's libvirt.
    :raises ConfigurationError: a setting can't be used.
    """
    settings = conf.read_settings(options)
    drivers = plugin.load(settings.drivers)
    is_own = settings.root == _OWN

    def read_gpus() -> gpu_reader.NvmlGpus:
        # Of GPU instances NVML speaks to root only.
        return privileged.read_gpus() if is_own else gpu_reader.NvmlGpus({})

    kept = settings.bitstreams
    faulted = faults.FaultNotes(kept.state_dir)
    if is_own:
        read_gpus = xid_events.listening(
            read_gpus, lambda: health.gpus_in_use(shown.state), faulted
        )
    cache = bitstream_cache.BitstreamCache(kept.cache_dir, kept.limit)
    found = change_detection.ChangeDetector(
        fs.DiskSource(settings.root),
        drivers,
        settings.rules,
        read_gpus,
        faulted,
        drains.DrainNotes(kept.state_dir),
    )
    shown = snapshot.Snapshot(found)
    found.seen_to = error_baseline.ErrorBaseline(kept.state_dir)
    accel = lifecycle.Lifecycle(
        drivers,
        settings.rules,
        action_executor.Executor(
            settings.root,
            nodedev=connection.NodeDevices(connect) if is_own else None,
            read_gpus=read_gpus,
            program_s=kept.seconds,
        ),
        shown,
        found.look,
        region_programs.RegionPrograms(faulted, cache.read_file),
    )
    accel.published = claims_file.ClaimsFile(kept.state_dir)
    accel.serials = serials.SerialNumbers(kept.state_dir, settings.root)
    accel.service_lock = service_lock.ServiceLock(kept.state_dir)
    return accel
