# SPDX-License-Identifier: Apache-2.0
"""This compute node's accelerators, as nova.conf describes them."""

from typing import Any

from nova_accel import conf, discovery, model, plugin
from nova_accel.host import execute, sysfs
from virt_hooks import lifecycle, snapshot


def read_node(options: Any) -> lifecycle.Lifecycle:
    """Return the accelerators of this host; nothing is read of it yet.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :raises ConfigurationError: a setting can't be used.
    """
    settings = conf.read_settings(options)
    drivers = plugin.load(settings.drivers)

    def read() -> model.HostState:
        return discovery.read(
            sysfs.HostReader(settings.root), drivers, settings.rules
        )

    return lifecycle.Lifecycle(
        drivers,
        settings.rules,
        execute.Executor(settings.root),
        snapshot.Snapshot(read),
    )
