# SPDX-License-Identifier: Apache-2.0
"""The Debian package: built, installed beside Debian's Nova, purged."""

import configparser
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping

import pytest

from tests.functional import test_activation
from tests.functional.contrib import roots
from tests.functional.contrib.packages import debian_package, package_root
from tests.hosts import look
from tests.support import golden

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounts file systems"
)

_PACKAGE = "python3-nova-accel"
# Prints the directory of pip's packages, which precedes Debian's.
_LOCAL = "import sysconfig; print(sysconfig.get_path('purelib'))"


@pytest.fixture(scope="module")
def package() -> Iterator[pathlib.Path]:
    """Return the package, built with its Build-Depends alone."""
    with debian_package.built() as path:
        yield path


@pytest.fixture(scope="module", params=["trixie", "sid"])
def nova(
    request: pytest.FixtureRequest, package: pathlib.Path
) -> Iterator[package_root.PackageRoot]:
    """Return a root with a release's nova-compute; the package is at /mnt."""
    with package_root.PackageRoot(request.param) as root:
        root.run("apt-get", "install", "nova-compute")
        debian_package.copy(package, root)
        yield root


@pytest.fixture(scope="module")
def before(nova: package_root.PackageRoot) -> Mapping[str, str]:
    """Return the files before the package is installed."""
    return nova.list_files()


@pytest.fixture(scope="module")
def host(
    nova: package_root.PackageRoot, before: Mapping[str, str]
) -> package_root.PackageRoot:
    """Return the root with the package."""
    debian_package.install(nova)
    return nova


def run_package_test(root: package_root.PackageRoot, name: str) -> None:
    """Run a test of the package, as autopkgtest does."""
    tests = roots.REPOSITORY / "contrib/debian/tests"
    shutil.copytree(tests, root.files / "tests", dirs_exist_ok=True)
    root.run(f"/mnt/tests/{name}")


def check_inspect(root: package_root.PackageRoot) -> None:
    """Check that the installed command prints the golden report."""
    look.make("a40-vf-mdev", root.files / "tree")
    command = ("nova-accel", "inspect", "--root", "/mnt/tree", "-f", "json")
    text = root.run(*command, "--host", "node1")
    golden.check(golden.PLACE / "a40-vf-mdev.json", text)


def list_own_files(root: package_root.PackageRoot) -> list[str]:
    """Return the files with a name of this project in their paths."""
    own = re.compile("(nova|placement)[_-](accel|sync)|virt_hooks")
    return [name for name in root.list_files() if own.search(name)]


def test_the_package_works_without_nova(package: pathlib.Path) -> None:
    """The short form of the tests below, which have Debian's Nova."""
    with package_root.PackageRoot("trixie") as root:
        debian_package.copy(package, root)
        debian_package.install(root)
        directory = root.run("python3", "-c", _LOCAL).strip()
        script = f"/var/lib/dpkg/info/{_PACKAGE}.postinst"
        assert root.run(script, "configure") == ""
        foreign = root.write(f"{directory}/filters/__init__.py", "")
        output = root.run(script, "configure")
        assert f"warning: Python's package filters is {directory}" in output
        foreign.unlink()
        foreign.parent.rmdir()
        check_inspect(root)
        run_package_test(root, "commands")
        service = "usr/lib/systemd/system/placement-sync.service"
        assert service in list_own_files(root)
        root.run("apt-get", "purge", "--autoremove", _PACKAGE)
        assert not list_own_files(root)


@pytest.mark.long
def test_the_package_has_the_version_of_the_library(
    host: package_root.PackageRoot,
) -> None:
    fields = host.run("dpkg-query", "-W", "-f", "${Version}", _PACKAGE)
    printed = host.run("nova-accel", "--version").split()[-1]
    assert fields == f"{printed}-1"


@pytest.mark.long
@pytest.mark.parametrize("name", ["commands", "driver"])
def test_the_tests_of_the_package_pass(
    host: package_root.PackageRoot, name: str
) -> None:
    run_package_test(host, name)


def test_each_test_of_the_package_is_run() -> None:
    text = (roots.REPOSITORY / "contrib/debian/tests/control").read_text()
    assert re.findall(r"Tests: (.+)", text) == ["commands", "driver"]


@pytest.mark.long
def test_commands_have_help(host: package_root.PackageRoot) -> None:
    setup = configparser.ConfigParser()
    setup.read(roots.REPOSITORY / "setup.cfg")
    lines = setup["options.entry_points"]["nova_accel.commands"].split("\n")
    names = [line.partition(" ")[0] for line in lines if line]
    commands = [f"nova-accel {name.replace('_', ' ')}" for name in names]
    for command in (*commands, "nova-accel", "placement-sync"):
        assert f"usage: {command}" in host.run(*command.split(), "--help")


@pytest.mark.long
def test_inspect_prints_the_golden_report(
    host: package_root.PackageRoot,
) -> None:
    check_inspect(host)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [test_activation.BY_NAME, test_activation.BY_SOURCE],
    ids=["compute_driver", "config_source"],
)
def test_debians_nova_compute_loads_the_driver(
    host: package_root.PackageRoot, text: str
) -> None:
    loaded = package_root.find_loaded_driver(host.files, host.run, text)
    assert loaded == test_activation.LOADED


@pytest.mark.long
def test_the_service_is_installed_and_not_enabled(
    host: package_root.PackageRoot,
) -> None:
    files = host.list_files()
    assert "usr/lib/systemd/system/placement-sync.service" in files
    assert not [
        name
        for name in files
        if name.startswith("etc/systemd") and "placement-sync" in name
    ]


@pytest.mark.long
def test_files_below_share_are_installed(
    host: package_root.PackageRoot,
) -> None:
    files = host.list_files()
    place = "usr/share/nova-accel"
    collection = f"{place}/ansible_collections/nova_accel/host"
    assert f"{collection}/playbooks/driver.yml" in files
    assert f"{place}/grafana/fleet.json" in files
    assert f"{place}/prometheus/nova-accel.rules.yml" in files
    listed = host.run("dpkg", "-L", _PACKAGE).split()
    assert "/usr/share/man/man1/nova-accel.1.gz" in listed
    assert "/usr/share/man/man1/openstack-accel.1.gz" in listed
    assert "/usr/share/bash-completion/completions/nova-accel" in listed
    host.run("apt-get", "install", "ansible-core", "python3-ansible-runner")
    script = "from nova_accel.doctor.ansible import playbook as p;"
    output = host.run("python3", "-c", f"{script}print(p.find_collections())")
    assert output == f"/{place}\n"
    # The test of the purge compares all files.
    host.run(
        *("apt-get", "purge", "--autoremove"),
        *("ansible-core", "python3-ansible-runner"),
    )


@pytest.mark.long
def test_a_purge_leaves_no_file(
    host: package_root.PackageRoot, before: Mapping[str, str]
) -> None:
    as_nova = ("runuser", "-u", "nova", "--")
    host.run(*as_nova, "mkdir", "-p", "/var/lib/nova/accel/drained")
    host.run("apt-get", "purge", "--autoremove", _PACKAGE)
    assert host.list_files().keys() <= before.keys()
