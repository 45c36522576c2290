# SPDX-License-Identifier: Apache-2.0
"""This compute node's accelerators, as nova.conf describes them."""

from collections.abc import Callable
from typing import Any

from nova_accel import conf, plugin, survey
from nova_accel.host import (
    bitstream_cache,
    execute,
    fs,
    nvml,
    privileged,
    quarantine,
)
from virt_hooks import connection, lifecycle, programming, snapshot

# Where this machine's own kernel is; below any other root is a simulated
# one, of which this machine's libvirt and NVML know nothing.
_OWN = "/"


def read_node(
    options: Any, connect: Callable[[], Any]
) -> lifecycle.Lifecycle:
    """Return the accelerators of this host; nothing is read of it yet.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :param connect: returns the connection to this host's libvirt.
    :raises ConfigurationError: a setting can't be used.
    """
    settings = conf.read_settings(options)
    drivers = plugin.load(settings.drivers)
    is_own = settings.root == _OWN

    def read_gpus() -> nvml.Gpus:
        # Of GPU instances NVML speaks to root only.
        return privileged.read_gpus() if is_own else nvml.Gpus({})

    kept = settings.bitstreams
    faulted = quarantine.Quarantine(kept.state_dir)
    cache = bitstream_cache.Cache(kept.cache_dir, kept.limit)
    found = survey.Survey(
        fs.Disk(settings.root), drivers, settings.rules, read_gpus, faulted
    )
    return lifecycle.Lifecycle(
        drivers,
        settings.rules,
        execute.Executor(
            settings.root,
            nodedev=connection.NodeDevices(connect) if is_own else None,
            read_gpus=read_gpus,
            program_s=kept.seconds,
        ),
        snapshot.Snapshot(found),
        found.look,
        programming.Programming(faulted, cache.read_file),
    )
