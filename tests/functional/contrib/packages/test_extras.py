# SPDX-License-Identifier: Apache-2.0
"""Installations by pip of the wheel and its extras, in new environments.

Upper constraints are those that OpenStack published for its releases; pip
and the package index are real. Nothing of Nova, libvirt or udev is there.
"""

import configparser
import hashlib
import os
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts import look
from tests.support import wheels

pytestmark = pytest.mark.long

_CONSTRAINTS = Path(__file__).with_name("constraints")
_RELEASES = sorted(path.stem for path in _CONSTRAINTS.glob("*.txt"))
# Prints the help of commands; their names are the arguments, with _ for a
# space, and the first argument is the function that runs one.
_HELP = """
import importlib, sys
module, _, function = sys.argv[1].partition(":")
main = getattr(importlib.import_module(module), function)
for name in sys.argv[2:]:
    words = [*name.split("_"), "--help"]
    sys.argv = ["program", *words]
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    assert not status, name
"""


class Environment:
    """Virtual environment with a wheel."""

    def __init__(self, place: Path, requirement: str, *options: str) -> None:
        venv.create(place, with_pip=True)
        self.programs = place / "bin"
        words = ("-m", "pip", "install", "-q", "--no-cache-dir", *options)
        self.python(*words, requirement)

    def execute(
        self, program: str, *words: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; its status may be any."""
        return subprocess.run(  # noqa: S603 - commands of the tests
            [self.programs / program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": ""},
        )

    def python(self, *words: str) -> str:
        """Run Python, which must succeed; return its output."""
        done = self.execute("python", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def list_distributions(self) -> Mapping[str, str]:
        """Return the versions of what is installed."""
        lines = self.python("-m", "pip", "list", "--format=freeze")
        return dict(line.split("==") for line in lines.splitlines())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    source = wheels.copy_source(place / "source")
    return wheels.build("wheel", source, place / "wheel")


@pytest.fixture(scope="module")
def plain(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Return an environment with the wheel, without extras."""
    place = tmp_path_factory.mktemp("plain")
    return Environment(place, refer(wheel))


def refer(wheel: Path, extras: str = "", digest: str = "") -> str:
    """Return a requirement with path and hash, as the install page has it."""
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"nova-accel[{extras}] @ {wheel.as_uri()}#sha256={digest}"


def list_commands(group: str) -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(wheels.ROOT / "setup.cfg")
    lines = setup["options.entry_points"][group].split("\n")
    return [line.partition(" ")[0] for line in lines if line]


def check_help(
    environment: Environment, program: str, commands: list[str]
) -> None:
    assert len(commands) > 10
    environment.python("-W", "ignore", "-c", _HELP, program, *commands)


@pytest.mark.parametrize("release", _RELEASES)
def test_a_laptop_gets_the_commands_of_each_release(
    wheel: Path, tmp_path: Path, release: str
) -> None:
    """Only the extra ``compute`` needs libvirt's headers."""
    path = str(_CONSTRAINTS / f"{release}.txt")
    laptop = Environment(tmp_path, refer(wheel, "cli,report"), "-c", path)
    installed = laptop.list_distributions()
    assert not installed.keys() & {"libvirt-python", "pyudev", "nova"}
    pinned = _CONSTRAINTS.joinpath(f"{release}.txt").read_text()
    client = installed["python-openstackclient"]
    assert f"python-openstackclient==={client}" in pinned
    laptop.python("-m", "pip", "check")
    openstack = list_commands("openstack.accel.v1")
    check_help(laptop, "openstackclient.shell:main", openstack)
    own = list_commands("nova_accel.commands")
    check_help(laptop, "nova_accel.cli.commands:main", own)


@pytest.mark.parametrize("release", _RELEASES)
def test_each_extra_fits_the_constraints_of_each_release(
    plain: Environment, release: str
) -> None:
    """pip resolves the base and all extras together."""
    setup = configparser.ConfigParser()
    setup.read(wheels.ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert extras["compute"].split() == [
        "libvirt-python>=9.0.0",
        "pyudev>=0.24.0",
    ]
    base = setup["options"]["install_requires"]
    requirements = "\n".join([base, *extras.values()]).split()
    constraints = ("-c", str(_CONSTRAINTS / f"{release}.txt"))
    words = ("-m", "pip", "install", "-q", "--dry-run", "--ignore-installed")
    plain.python(*words, *constraints, *requirements)


def test_pip_refuses_a_wheel_with_another_hash(
    wheel: Path, tmp_path: Path
) -> None:
    requirement = refer(wheel, digest="0" * 64)
    with pytest.raises(AssertionError, match="THESE PACKAGES DO NOT MATCH"):
        Environment(tmp_path, requirement, "--no-deps")


def test_the_plain_wheel_reads_a_host(
    plain: Environment, tmp_path: Path
) -> None:
    look.make("a40-vf-mdev", tmp_path / "tree")
    report = plain.execute(
        *("nova-accel", "inspect", "--root", str(tmp_path / "tree"))
    )
    assert report.returncode == 0, report.stderr
    assert "A40" in report.stdout


@pytest.mark.parametrize(
    "script",
    [
        "from nova_accel.cli import registered_readers as readers;"
        "readers.read_domains()",
        "import logging; from nova_accel.host.sysfs import udev;"
        "logging.basicConfig(); udev.UdevMonitor(print).start(); 1 / 0",
    ],
    ids=["libvirt", "pyudev"],
)
def test_a_missing_library_is_named_with_its_extra(
    plain: Environment, script: str
) -> None:
    done = plain.execute("python", "-c", script)
    assert done.returncode
    assert "nova-accel[compute]" in done.stderr


def test_a_command_names_the_extra_that_it_needs(plain: Environment) -> None:
    words = ("driver", "install", "--role", "vfio", "--check")
    done = plain.execute("nova-accel", *words)
    assert done.returncode
    assert done.stderr.endswith("install nova-accel[drivers]\n")
