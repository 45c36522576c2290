# SPDX-License-Identifier: Apache-2.0
"""The role ``nova_accel`` installs a wheel by path, with its hash.

The wheel has the collection, which its ``nova-accel driver`` uses.

The wheel, pip and the package index are real. The environment sees Debian's
libraries; libvirt-python and pyudev are Debian's, too.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functional.contrib.ansible import debian_host
from tests.support import wheels

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_VENV = "/opt/nova"


@pytest.fixture(scope="module")
def host(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[debian_host.DebianHost]:
    place = tmp_path_factory.mktemp("wheel")
    source = wheels.copy_source(place / "source")
    wheel = wheels.build("wheel", source, place / "wheel")
    with debian_host.DebianHost() as host:
        host.run("apt-get", "install", "python3-venv", "python3-libvirt")
        host.run("python3", "-m", "venv", "--system-site-packages", _VENV)
        (host.files / wheel.name).write_bytes(wheel.read_bytes())
        yield host


@pytest.fixture
def variables(host: debian_host.DebianHost) -> dict[str, Any]:
    """Return the variables of an installation on a host of the API."""
    (wheel,) = host.files.glob("*.whl")
    return {
        "nova_accel_services": ["api"],
        "nova_accel_extras": ["compute"],
        "nova_accel_python": f"{_VENV}/bin/python",
        "nova_accel_wheel": f"/mnt/{wheel.name}",
        "nova_accel_wheel_sha256": hash_of(wheel),
    }


def hash_of(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name", ["nova_accel_wheel", "nova_accel_wheel_sha256"]
)
def test_the_wheel_and_its_hash_are_required(
    host: debian_host.DebianHost, variables: dict[str, Any], name: str
) -> None:
    del variables[name]
    install = host.play("install", "nova_accel", variables)
    assert install.status != 0
    assert "set nova_accel_wheel to the path of a wheel" in install.output
    assert host.execute("test", "-e", f"{_VENV}/bin/nova-accel").returncode


def test_a_wheel_with_another_hash_is_refused(
    host: debian_host.DebianHost, variables: dict[str, Any]
) -> None:
    variables["nova_accel_wheel_sha256"] = "0" * 64
    install = host.play("install", "nova_accel", variables)
    assert install.status != 0
    assert "expected 0000" in install.output
    assert host.execute("test", "-e", f"{_VENV}/bin/nova-accel").returncode


def test_the_wheel_is_installed_once_and_removed(
    host: debian_host.DebianHost, variables: dict[str, Any]
) -> None:
    check = host.play("install", "nova_accel", variables, "--check")
    assert check.status == 0, check.output
    install = host.play("install", "nova_accel", variables)
    assert install.status == 0, install.output
    assert host.run(f"{_VENV}/bin/nova-accel", "--version").startswith("nova-")
    again = host.play("install", "nova_accel", variables)
    assert (again.status, again.changed) == (0, 0), again.output
    remove = host.play("remove", "nova_accel", variables)
    assert remove.status == 0, remove.output
    assert host.execute("test", "-e", f"{_VENV}/bin/nova-accel").returncode


def test_the_command_of_a_wheel_finds_its_roles(
    host: debian_host.DebianHost, variables: dict[str, Any]
) -> None:
    """No collection of Ansible's own directories is used."""
    without = ("env", "-u", "ANSIBLE_COLLECTIONS_PATH")
    pip = (f"{_VENV}/bin/pip", "install", "--no-cache-dir")
    host.run(*pip, f"{variables['nova_accel_wheel']}[compute,drivers]")
    driver = (*without, f"{_VENV}/bin/nova-accel", "driver")
    files = host.list_files()
    install = host.execute(*driver, "install", "--role", "blacklist")
    assert install.returncode == 0, install.stdout + install.stderr
    assert "blacklist: Blacklist modules: changed" in install.stderr
    remove = host.execute(*driver, "remove")
    assert remove.returncode == 0, remove.stdout + remove.stderr
    assert host.list_files() == files
