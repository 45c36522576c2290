# SPDX-License-Identifier: Apache-2.0
"""Checks that nova-compute makes when it starts."""

from collections.abc import Iterator

from nova_accel.doctor import (
    checked_host,
    host_checks,
    offers,
    registry,
)
from nova_accel.doctor.areas import nova_options
from nova_accel.host.sysfs import host_reader

# Checks that nova-compute's start makes itself, and a module of those whose
# results its passes log.
_LOGGED = frozenset({*nova_options.START_CHECKS, "state.directory"})
_PASSES = (offers.__name__,)
# Checks whose warnings count as failures: what nova-compute ignores.
_IGNORED = frozenset({"nova.options", "nova.sections"})


def find_failures(
    reader: host_reader.HostReader,
) -> Iterator[tuple[str, str]]:
    """Yield name and observations of each failed check of a compute host.

    NVML is not called: the passes report its errors, and the devices that
    are not offered. nova-compute itself logs the errors of its configuration.

    :raises ConfigurationError: checks of another package can't be loaded.
    """
    checks = [
        check
        for check in registry.select(
            registry.list_checks(), (host_checks.Role.COMPUTE,)
        )
        if check.name not in _LOGGED and check.find.__module__ not in _PASSES
    ]
    for result in registry.run(checks, checked_host.CheckedHost(reader)):
        if result.level is host_checks.Level.FAIL or (
            result.level is host_checks.Level.WARN
            and result.check.name in _IGNORED
        ):
            yield (
                result.check.name,
                "; ".join(dict.fromkeys(o.text for o in result.observations)),
            )
