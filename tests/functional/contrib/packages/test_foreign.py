# SPDX-License-Identifier: Apache-2.0
"""Nova's services beside phx-filters, which has a package ``filters``, too.

phx-filters is the real one, installed by pip from the package index.
"""

import subprocess
import venv
from pathlib import Path

import pytest

from tests.functional import test_activation
from tests.support import wheels

pytestmark = pytest.mark.long

_FILTERS = """\
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = filters.accelerator_filter.AcceleratorFilter
enabled_filters = AcceleratorFilter
"""
_AS_NOVA_SCHEDULER = """
import sys
sys.argv = ["nova-scheduler", "--config-file", sys.argv[1]]
import nova.conf
from nova import config
from oslo_log import log
config.parse_args(sys.argv)
config.CONF.set_override("use_stderr", True)
log.setup(config.CONF, "nova")
from nova.scheduler import filters
handler = filters.HostFilterHandler()
names = config.CONF.filter_scheduler.available_filters
for found in handler.get_matching_classes(names):
    if found.__name__ == "AcceleratorFilter":
        found()
"""
_AS_NOVA_API = """
import sys
from oslo_log import log
from oslo_config import cfg
log.register_options(cfg.CONF)
cfg.CONF([], project="nova")
cfg.CONF.set_override("use_stderr", True)
log.setup(cfg.CONF, "nova")
import nova.api.validation.extra_specs.validators
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    source = wheels.copy_source(place / "source")
    return wheels.build("wheel", source, place / "wheel")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with phx-filters and what it needs."""
    place = tmp_path_factory.mktemp("foreign")
    venv.create(place / "env", with_pip=True)
    program = place / "env/bin/pip"
    words = ("install", "-q", "--target", place / "local", "phx-filters")
    subprocess.run([program, *words], check=True)  # noqa: S603
    return place / "local"


class Services:
    """Environment with the library, and phx-filters in one directory."""

    def __init__(self, place: Path, wheel: Path, path: str) -> None:
        self._place, self._path = place, path
        self.python, self.site = test_activation.new_environment(place / "env")
        test_activation.unpack(wheel, self.site)

    def run(self, *words: str, conf: str = "") -> str:
        """Run Python; return what it prints."""
        path = self._place / "nova.conf"
        path.write_text(conf)
        done = subprocess.run(  # noqa: S603 - scripts of the tests
            [self.python, *words, *([str(path)] if conf else [])],
            cwd=self._place,
            env={"PYTHONPATH": self._path},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def shadowed(wheel: Path, foreign: Path, tmp_path: Path) -> Services:
    """Return services whose Python finds phx-filters first."""
    return Services(tmp_path, wheel, str(foreign))


def mix(services: Services, foreign: Path) -> None:
    """Install phx-filters into the directory of the library."""
    for source in foreign.iterdir():
        subprocess.run(  # noqa: S603
            ["cp", "-r", source, services.site],  # noqa: S607
            check=True,
        )


def test_the_scheduler_says_whose_filters_it_found(
    shadowed: Services, foreign: Path
) -> None:
    """nova.conf names the source, whose code runs before the import."""
    conf = f"{test_activation.BY_SOURCE}{_FILTERS}"
    output = shadowed.run("-c", _AS_NOVA_SCHEDULER, conf=conf)
    (line,) = [x for x in output.splitlines() if "Python's package" in x]
    assert " ERROR nova_accel.config.config_source" in line
    assert f"filters is {foreign}/filters of phx-filters" in line


def test_a_mixed_directory_ends_the_scheduler_with_the_cause(
    wheel: Path, foreign: Path, tmp_path: Path
) -> None:
    services = Services(tmp_path, wheel, "")
    mix(services, foreign)
    conf = f"{test_activation.BY_SOURCE}{_FILTERS}"
    output = services.run("-c", _AS_NOVA_SCHEDULER, conf=conf)
    (line,) = [x for x in output.splitlines() if "phx-filters inst" in x]
    assert " ERROR nova_accel.config.config_source" in line


def test_a_mixed_directory_that_works_is_in_the_log(
    wheel: Path, foreign: Path, tmp_path: Path
) -> None:
    """The library was installed after phx-filters."""
    services = Services(tmp_path, wheel, "")
    mix(services, foreign)
    test_activation.unpack(wheel, services.site)
    conf = f"[DEFAULT]\n{_FILTERS}"
    output = services.run("-c", _AS_NOVA_SCHEDULER, conf=conf)
    (line,) = [x for x in output.splitlines() if "phx-filters inst" in x]
    assert " WARNING filters.accelerator_filter" in line


def test_nova_api_starts_and_says_whose_filters_it_found(
    shadowed: Services, foreign: Path
) -> None:
    output = shadowed.run("-c", _AS_NOVA_API)
    assert "Traceback" not in output
    (line,) = [x for x in output.splitlines() if "Extra specs of" in x]
    assert " ERROR nova_accel.config.spec_validators" in line
    assert f"filters is {foreign}/filters of phx-filters" in line


@pytest.mark.parametrize("options", [(), ("--scheduler",)])
def test_doctor_says_whose_packages_are_found(
    shadowed: Services, foreign: Path, options: tuple[str, ...]
) -> None:
    words = ("-m", "nova_accel.cli.commands", "doctor", *options)
    output = shadowed.run(*words, "--only", "py")
    assert f"{foreign}/filters of phx-filters" in " ".join(output.split())


def test_a_command_says_whose_packages_are_found(
    wheel: Path, tmp_path: Path
) -> None:
    """No command of a host needs the package that phx-filters hides."""
    package = tmp_path / "other/placement_sync"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    services = Services(tmp_path, wheel, str(package.parent))
    output = services.run("-m", "nova_accel.cli.commands", "drain", "--help")
    assert f"{package}, not that of nova-accel" in " ".join(output.split())
    assert "Traceback" not in output


def test_own_packages_alone_are_no_finding(
    wheel: Path, tmp_path: Path
) -> None:
    services = Services(tmp_path, wheel, "")
    words = ("-m", "nova_accel.cli.commands", "doctor", "--only", "py")
    assert services.run(*words) == "1 check: 1 ok.\n"
