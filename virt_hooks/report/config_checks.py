# SPDX-License-Identifier: Apache-2.0
"""Checks of the configuration at the start of nova-compute."""

import logging
from typing import Any

from nova_accel import errors
from nova_accel.config import conf, extensions, logs
from nova_accel.discovery import service_start, snapshot
from nova_accel.host import nova_devices
from nova_accel.host.state import state_dir
from nova_accel.host.sysfs import fs, host_reader

LOG = logging.getLogger(__name__)

# Functions of packages that nova-compute does not import by name. They take
# a ``host_reader.HostReader``, and yield name and reason of each failed check.
CHECKS_GROUP = "nova_accel.start_checks"


def check(
    options: Any, host: snapshot.Snapshot
) -> tuple[errors.ConfigurationError, ...]:
    """Log problems of the configuration.

    An alias of Nova that no device of this host can have is one of them.

    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :returns: an error for each line of Nova's options that names a device
        that nova-accel offers, too.
    """
    settings = conf.read_settings(options)
    try:
        state_dir.check(settings)
    except errors.ConfigurationError as error:
        logs.error(LOG, "%s", error)
    specs, aliases = options.pci.device_spec, options.pci.alias
    if not (specs or aliases or options.devices.enabled_mdev_types):
        return ()
    reader = host_reader.HostReader(source=fs.DiskSource(settings.root))
    state = host.refresh()
    find_functions = nova_devices.list_matches
    for text in service_start.find_idle_aliases(
        aliases, specs, reader, state, find_functions
    ):
        LOG.warning("%s", text)
    return tuple(
        service_start.find_conflicts(
            options, reader, state, settings.rules, find_functions
        )
    )


def log_failed_checks(options: Any) -> tuple[str, ...]:
    """Log each check of this host that fails; return the names.

    The checks are those of installed packages: ``nova-accel doctor`` is one.

    :raises ConfigurationError: a package can't be loaded.
    """
    settings = conf.read_settings(options)
    reader = host_reader.HostReader(source=fs.DiskSource(settings.root))
    failures = [
        failure
        for find_failures in extensions.load(CHECKS_GROUP).values()
        for failure in find_failures(reader)
    ]
    for name, text in failures:
        LOG.error(
            "Check %s of this host failed: %s; see nova-accel doctor",
            name,
            text,
        )
    return tuple(name for name, _ in failures)
