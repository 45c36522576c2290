# SPDX-License-Identifier: Apache-2.0
"""This compute node's accelerators, as nova.conf describes them."""

from collections.abc import Callable
from typing import Any

from nova_accel import conf, plugin, survey
from nova_accel.host import execute, fs, nvml, privileged
from virt_hooks import connection, lifecycle, snapshot

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

    found = survey.Survey(
        fs.Disk(settings.root), drivers, settings.rules, read_gpus
    )
    return lifecycle.Lifecycle(
        drivers,
        settings.rules,
        execute.Executor(
            settings.root,
            nodedev=connection.NodeDevices(connect) if is_own else None,
            read_gpus=read_gpus,
        ),
        snapshot.Snapshot(found),
        found.look,
    )
