# SPDX-License-Identifier: Apache-2.0
"""Checks of the configuration at the start of nova-compute."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors, model
from nova_accel.config import conf, extensions, nova_pci_spec, policy
from nova_accel.discovery import nova_devices, snapshot
from nova_accel.host.state import state_dir
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import conditions
from nova_accel.model import pci
from virt_hooks import nova_private

LOG = logging.getLogger(__name__)

# Functions of packages that nova-compute does not import by name. They take
# a ``host_reader.HostReader``, and yield name and reason of each failed check.
CHECKS_GROUP = "nova_accel.start_checks"

_MDEV_TYPES = "[devices] enabled_mdev_types"


def check(
    driver: Any, options: Any, host: snapshot.Snapshot
) -> tuple[errors.ConfigurationError, ...]:
    """Log problems of the configuration.

    :param driver: Nova's libvirt driver, initialized.
    :param options: the service's parsed ``oslo_config.cfg.ConfigOpts``.
    :returns: an error for each line of Nova's options that names a device
        that nova-accel offers, too.
    """
    settings = conf.read_settings(options)
    _log_problems(settings)
    if not (options.pci.device_spec or options.devices.enabled_mdev_types):
        return ()
    reader = host_reader.HostReader(source=fs.DiskSource(settings.root))
    return tuple(
        _find_shared(driver, options, reader, host.refresh(), settings.rules)
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


def _log_problems(settings: conf.Settings) -> None:
    try:
        state_dir.check(settings)
    except errors.ConfigurationError as error:
        LOG.error("%s", error)
    for problem in settings.problems:
        LOG.warning("%s: %s", problem.where, problem.reason)


def _find_shared(
    driver: Any,
    options: Any,
    reader: host_reader.HostReader,
    host: model.HostState,
    rules: policy.DeviceRules,
) -> Iterator[errors.ConfigurationError]:
    """Yield the first error of each line of Nova's options."""
    for line in options.pci.device_spec:
        matches = _list_matches(line, reader)
        yield from _refuse(nova_pci_spec.OPTION, line, matches, host, rules)
    for type_id in options.devices.enabled_mdev_types:
        addresses = [
            parent.name
            for parent in reader.mdev_parents()
            if type_id in {mdev_type.type_id for mdev_type in parent.types}
            and type_id == _type_of(driver, parent.name)
        ]
        yield from _refuse(_MDEV_TYPES, type_id, addresses, host, rules)


def _list_matches(line: str, reader: host_reader.HostReader) -> list[str]:
    """Return the addresses that a line of Nova's option names."""
    try:
        functions = nova_devices.list_matches(line, reader)
    except errors.ConfigurationError as error:
        LOG.warning("%s", error)  # Nova's own error follows
        return []
    return [str(function.address) for function in functions]


def _type_of(driver: Any, name: str) -> str | None:
    """Return the mdev type that Nova uses on a parent, None without one."""
    if pci.is_address(name):
        name = pci.nodedev_name(name)
    return nova_private.mdev_type_of(driver, name)


def _refuse(
    option: str,
    value: str,
    addresses: Iterable[str],
    host: model.HostState,
    rules: policy.DeviceRules,
) -> Iterator[errors.ConfigurationError]:
    for address in addresses:
        device = conditions.find_device(host, address)
        if device is None or not device.counters:
            continue
        line = rules.of(device).line
        source = f"by {policy.OPTION} = {line}" if line else "by default"
        card = device.parent or device.address
        yield errors.ConfigurationError(
            option,
            value,
            f"names {address}, which nova-accel offers {source}; remove it"
            f" here, or write {policy.OPTION} ="
            f' {{"address": "{card}", "use": "off"}}',
        )
        return
