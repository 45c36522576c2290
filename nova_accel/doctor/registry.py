# SPDX-License-Identifier: Apache-2.0
"""All checks, those of other packages included, and one run of them."""

import errno
import importlib.metadata
from collections.abc import Collection, Iterable, Iterator

from nova_accel import errors
from nova_accel.config import extensions
from nova_accel.doctor import checked_host, host_checks, offers
from nova_accel.doctor.areas import (
    containers,
    fpga_cards,
    host_versions,
    intel_amd_qat,
    iommu,
    kernel_drivers,
    nova_options,
    nvidia,
    nvidia_fabric,
    nvidia_nvml,
    pci_cards,
    state_services,
    vfio_nodes,
)

# Areas of other packages: entry points of ``host_checks.Area`` objects.
GROUP = "nova_accel.checks"
# Areas whose checks call services. They are loaded only if asked for: they
# are no pure functions over files.
CLOUD_GROUP = "nova_accel.cloud_checks"

_AREAS = (
    iommu.AREA,
    pci_cards.AREA,
    *offers.AREAS,
    kernel_drivers.AREA,
    vfio_nodes.AREA,
    containers.AREA,
    nvidia.AREA,
    nvidia_fabric.AREA,
    nvidia_nvml.AREA,
    nvidia_nvml.LICENSES,
    intel_amd_qat.INTEL,
    intel_amd_qat.AMD,
    intel_amd_qat.QAT,
    fpga_cards.AREA,
    host_versions.AREA,
    nova_options.AREA,
    state_services.STATE,
    state_services.SERVICES,
    nova_options.SCHEDULER,
    state_services.PACKAGES,
    state_services.REMOVAL,
)


def list_checks() -> tuple[host_checks.HostCheck, ...]:
    """Return all checks, those of other packages last.

    :raises ConfigurationError: an entry point can't be loaded.
    """
    areas = (*_AREAS, *_load_areas(GROUP))
    return tuple(check for area in areas for check in area.checks)


def list_cloud_checks() -> tuple[host_checks.HostCheck, ...]:
    """Return the checks that call services of the cloud.

    :raises ConfigurationError: an entry point can't be loaded.
    """
    areas = _load_areas(CLOUD_GROUP)
    return tuple(check for area in areas for check in area.checks)


def _load_areas(group: str) -> list[host_checks.Area]:
    return [_load(point) for point in extensions.list_points(group)]


def _load(point: importlib.metadata.EntryPoint) -> host_checks.Area:
    try:
        area = point.load()
    except Exception as error:  # third-party code may raise anything
        raise errors.ConfigurationError(
            point.group,
            point.value,
            f"fails to load ({error!r}); repair or remove its package",
            extensions.PLACE,
        ) from error
    if not isinstance(area, host_checks.Area):
        raise errors.ConfigurationError(
            point.group,
            point.value,
            "is no nova_accel.doctor.host_checks.Area; remove its package",
            extensions.PLACE,
        )
    return area


def select(
    checks: Iterable[host_checks.HostCheck],
    roles: Collection[host_checks.Role],
    technologies: Collection[str] = (),
    names: Collection[str] = (),
) -> tuple[host_checks.HostCheck, ...]:
    """Return the checks of some roles, technologies and names.

    :param technologies: empty for all. The checks that every host needs
        belong to each technology.
    :param names: names of checks or areas, empty for all.
    :raises MalformedError: no check has the technology or the name.
    """
    checks = tuple(checks)
    areas = {check.name.partition(".")[0] for check in checks}
    _require(
        "technology of a check",
        technologies,
        {check.technology for check in checks},
    )
    _require(
        "name of a check", names, {*areas, *(check.name for check in checks)}
    )
    return tuple(
        check
        for check in checks
        if (check.role in roles or check.name in names)
        and (
            not technologies
            or check.technology in {*technologies, host_checks.HOST}
        )
        and (
            not names
            or check.name in names
            or check.name.partition(".")[0] in names
        )
    )


def _require(
    kind: str, values: Collection[str], choices: Collection[str]
) -> None:
    for value in values:
        if value not in choices:
            raise errors.MalformedError(
                kind, value, f"one of {', '.join(sorted(choices))}"
            )


_FORBIDDEN = "run the command as root"
_INCOMPLETE = (
    "see that the host's whole sysfs is there: in a container mount it; of"
    " another host read an archive of `nova-accel capture`"
)
_REMEDIES = {
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ETIMEDOUT: "look for errors of the card's driver in the kernel's log"
    " (dmesg)",
}


def run(
    checks: Iterable[host_checks.HostCheck], host: checked_host.CheckedHost
) -> tuple[host_checks.CheckResult, ...]:
    """Return the results of checks, in their order."""
    return tuple(_run(check, host) for check in checks)


def _run(
    check: host_checks.HostCheck, host: checked_host.CheckedHost
) -> host_checks.CheckResult:
    observations = tuple(_observe(check, host))
    return host_checks.CheckResult(
        check=check,
        observations=observations,
        readings=tuple(
            tuple((path, host.describe(path)) for path in observation.paths)
            for observation in observations
        ),
        is_absent=not host.has_technology(check.technology)
        or (check.is_of_devices and not host.has_accelerators),
    )


def _observe(
    check: host_checks.HostCheck, host: checked_host.CheckedHost
) -> Iterator[host_checks.Observation]:
    try:
        yield from check.find(host)
    except errors.UnreadableError as error:
        yield host_checks.Observation(
            host_checks.Level.UNKNOWN,
            f"can't be read: {error}",
            remedy=_REMEDIES.get(error.number, _INCOMPLETE),
        )
    except Exception as error:  # another package's check may raise anything
        yield host_checks.Observation(
            host_checks.Level.UNKNOWN,
            f"the check failed: {error!r}",
            remedy="report it with an archive of `nova-accel capture`",
        )
