# SPDX-License-Identifier: Apache-2.0
"""Roles whose drivers Debian has, with their own lists of packages.

Packages, APT and DKMS are real; no module is built, since the root has no
headers of this computer's kernel.
"""

import json
import os
from collections.abc import Iterator

import pytest

from tests.functional.contrib.ansible import debian_host

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_SOURCES = "/etc/apt/sources.list"
_COMPONENTS = "main contrib non-free non-free-firmware"
_PACKAGES = {
    "qat": {"firmware-intel-misc"},
    "intel_xe": {"firmware-intel-graphics"},
    "nvidia_datacenter": {"nvidia-open-kernel-dkms", "nvidia-smi", "dkms"},
}


@pytest.fixture
def host() -> Iterator[debian_host.DebianHost]:
    with debian_host.DebianHost() as host:
        host.run("sed", "-i", f"s/ main$/ {_COMPONENTS}/", _SOURCES)
        host.run("apt-get", "update")
        yield host


def install(host: debian_host.DebianHost, role: str) -> None:
    """Install a role with its defaults, twice; check the packages."""
    play = host.play("install", role, {})
    assert play.status == 0, play.output
    installed = {line.split()[0] for line in host.list_packages()}
    assert installed >= _PACKAGES[role]
    again = host.play("install", role, {})
    assert (again.status, again.changed) == (0, 0), again.output


@pytest.mark.parametrize("role", _PACKAGES)
def test_a_removal_restores_the_host(
    host: debian_host.DebianHost, role: str
) -> None:
    files, packages = host.list_files(), host.list_packages()
    check = host.play("install", role, {}, "--check")
    assert check.status == 0, check.output
    install(host, role)
    remove = host.play("remove", role, {})
    assert remove.status == 0, remove.output
    assert host.list_packages() == packages
    assert host.list_files() == files


def test_a_verification_says_that_no_module_was_built(
    host: debian_host.DebianHost,
) -> None:
    install(host, "nvidia_datacenter")
    verify = host.play("verify", "nvidia_datacenter", {})
    assert verify.status != 0
    release = os.uname().release
    assert "drv.dkms" in verify.output
    assert f"is not built for {release}" in verify.output
    assert "the kernel's headers are not installed" in verify.output
    report = host.execute(
        "nova-accel", "doctor", "-f", "json", "--only", "drv.dkms"
    )
    (check,) = json.loads(report.stdout)["checks"]
    assert "linux-headers" in json.dumps(check)
