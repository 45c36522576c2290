# SPDX-License-Identifier: Apache-2.0
"""Unit tests run on the Python of sid, with Nova and libraries of Debian."""

import os

import pytest

from tests.functional.contrib.packages import package_root

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_PACKAGES = (
    *("python3-cliff", "python3-fixtures", "python3-hypothesis"),
    *("python3-jinja2", "python3-libvirt", "python3-lxml", "python3-nova"),
    *("python3-openstacksdk", "python3-prometheus-client"),
    *("python3-pytest", "python3-pyudev", "python3-testtools"),
)
#: the rooms that need neither an installed package nor programs
_ROOMS = tuple(
    f"tests/unit/{room}"
    for room in (
        "nova_accel/claims/test_migration.py",
        "nova_accel/geometry",
        "nova_accel/model",
        "placement_sync/sync",
        "virt_hooks/guest/test_hostdev.py",
        "virt_hooks/guest/test_libvirt_guest.py",
    )
)


def test_unit_tests_pass_on_the_python_of_sid() -> None:
    with package_root.PackageRoot("sid") as root:
        root.copy_commit()
        root.run("apt-get", "install", *_PACKAGES)
        version = root.run(
            "python3", "-c", "import sys; print(*sys.version_info)"
        )
        assert tuple(map(int, version.split()[:2])) >= (3, 14)
        root.run(
            *("env", "PYTHONPATH=.", "python3", "-m", "pytest"),
            *("-q", "-p", "no:cacheprovider", *_ROOMS),
            directory="/mnt/source",
        )
