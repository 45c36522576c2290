# SPDX-License-Identifier: Apache-2.0
"""Check of the Python packages that Nova's services import."""

from collections.abc import Iterator

from nova_accel.discovery.doctor import checked_host, host_checks

AREA = host_checks.Area(
    "py", page="troubleshooting", role=host_checks.Role.EVERY
)


@AREA.check(
    "packages",
    why="services of Nova do not start, nova-api checks no extra spec, or"
    " commands fail",
    remedy="remove the other distribution (as phx-filters, which installs a"
    " package filters), or install nova-accel in an environment of its own",
)
def check_packages(
    host: checked_host.CheckedHost,
) -> Iterator[host_checks.Observation]:
    """Python finds nova-accel's own packages under their names."""
    for package in host.packages:
        observe = host_checks.warn if package.is_own else host_checks.fail
        yield observe(str(package))
