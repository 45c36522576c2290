# SPDX-License-Identifier: Apache-2.0
"""Nova loads the driver from each kind of installation and configuration.

Each installation is a virtual environment of its own, on top of the
environment of the tests. The script starts like nova-compute: Nova's early
reading of the configuration, then the real one, then
``nova.virt.driver.load_compute_driver``.
"""

import configparser
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import wheels
from tools import man_pages

SITE = Path(sysconfig.get_path("purelib"))
LOADED = "virt_hooks.nova_driver.AccelLibvirtDriver"
STOCK = "nova.virt.libvirt.driver.LibvirtDriver"

BY_NAME = "[DEFAULT]\ncompute_driver = accel.AccelLibvirtDriver\n"
BY_SOURCE = "[DEFAULT]\nconfig_source = accel\n[accel]\ndriver = nova_accel\n"
PLAIN = "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"

AS_NOVA_COMPUTE = """
import json, sys
sys.argv = ["nova-compute", "--config-file", sys.argv[1]]
import nova.cmd.compute
from nova import config
from nova.virt import driver
from oslo_log import log
config.parse_args(sys.argv)
config.CONF.set_override("use_stderr", True)
log.setup(config.CONF, "nova")
try:
    loaded = type(driver.load_compute_driver(None))
    said = f"{loaded.__module__}.{loaded.__name__}"
except SystemExit as stop:
    said = f"exit {stop.code}"
roots = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({
    "loaded": said,
    "roots": sorted(roots),
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "shim": getattr(sys.modules.get("nova.virt.accel"), "__file__", None),
}))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation:
    python: Path
    extra_path: str = ""

    def load(self, directory: Path, text: str) -> dict[str, Any]:
        """Return what nova-compute loads with this nova.conf."""
        conf = directory / "nova.conf"
        conf.write_text(f"{text}[oslo_concurrency]\nlock_path = .\n")
        done = subprocess.run(  # noqa: S603 - fixed interpreter and script
            [self.python, "-c", AS_NOVA_COMPUTE, conf],
            cwd=directory,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": self.extra_path,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        answer["stderr"] = done.stderr
        return answer


def new_environment(directory: Path) -> tuple[Path, Path]:
    """Return python and site-packages of an environment on top of SITE."""
    venv.create(directory, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = directory / "lib" / version / "site-packages"
    (site / "below.pth").write_text(f"{SITE}\n")
    return directory / "bin" / "python", site


def unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project, so that building leaves no trace."""
    return wheels.copy_source(tmp_path_factory.mktemp("source") / "project")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return wheels.build("wheel", source, source.parent / "wheel")


@pytest.fixture(scope="module")
def beside_nova(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Return the wheel in the site-packages that holds Nova too."""
    python, site = new_environment(tmp_path_factory.mktemp("beside"))
    shutil.copytree(
        SITE / "nova",
        site / "nova",
        # With the times of its files, Nova stays compiled.
        ignore=shutil.ignore_patterns("tests", "locale", "accel"),
    )
    unpack(wheel, site)
    return Installation(python=python)


@pytest.fixture(scope="module")
def elsewhere(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Return the wheel in another directory than Nova's."""
    directory = tmp_path_factory.mktemp("elsewhere")
    python, _ = new_environment(directory / "env")
    unpack(wheel, directory / "local")
    return Installation(python=python, extra_path=str(directory / "local"))


@pytest.fixture(scope="module")
def editable(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Return ``pip install -e``."""
    python, site = new_environment(tmp_path_factory.mktemp("editable"))
    unpack(wheels.build("editable", source, source.parent / "editable"), site)
    return Installation(python=python)


def test_the_wheel_adds_to_nova_and_replaces_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    below_nova = [name for name in names if name.startswith("nova/")]
    assert below_nova == ["nova/virt/accel/__init__.py"]
    for package in wheels.PACKAGES:
        assert f"{package}/py.typed" in names
    tops = {name.partition("/")[0] for name in names}
    (data,) = [top for top in tops if top.endswith(".data")]
    top = f"{data}/data/share/nova-accel/"
    shared = {n.removeprefix(top) for n in names if n.startswith(f"{data}/")}
    outside = {name for name in shared if name.startswith((data, "."))}
    assert outside == {
        f"{data}/data/share/{place}/{path.name}"
        for place, folder in (
            ("man/man1", "man"),
            ("bash-completion/completions", "bash-completion"),
        )
        for path in (wheels.ROOT / "contrib" / folder).iterdir()
    }
    collection = "ansible_collections/nova_accel/host"
    sources = wheels.ROOT / "contrib/ansible"
    assert {n for n in shared if n.startswith(collection)} == {
        f"{collection}/{path.relative_to(sources)}"
        for path in sources.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and "__pycache__" not in path.parts
    }
    assert shared >= {
        "metadefs/compute-accelerators.json",
        "grafana/fleet.json",
        "prometheus/nova-accel.rules.yml",
        "ceilometer/polling.yaml",
        "cloudkitty/gnocchi.yml",
    }
    assert {top for top in tops if "dist-info" not in top} == {
        *wheels.PACKAGES,
        "nova",
        data,
    }


def test_the_wheel_has_the_listed_packages_alone(wheel: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(wheels.ROOT / "setup.cfg")
    with zipfile.ZipFile(wheel) as archive:
        modules = [
            Path(name)
            for name in archive.namelist()
            if name.endswith(".py")
            and ".dist-info/" not in name
            and ".data/" not in name
        ]
    packages = {str(path.parent).replace("/", ".") for path in modules}
    assert packages == set(setup["options"]["packages"].split())
    assert "nova_accel.conformance" not in packages
    assert not [path for path in modules if "refresh" in path.name]


def test_the_conformance_suite_is_a_wheel_of_its_own(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    suite = wheels.build(
        "wheel", source / "tools/conformance", tmp_path / "out"
    )
    python, site = new_environment(tmp_path / "env")
    unpack(wheel, site)
    with zipfile.ZipFile(suite) as archive:
        assert not set(archive.namelist()) & {
            str(path.relative_to(site)) for path in site.rglob("*")
        }
    host = tmp_path / "host"
    (host / "sys").mkdir(parents=True)

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - fixed arguments
            [
                *(python, "-m", "nova_accel.conformance"),
                *("qat", "--root", host),
            ],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "No module named nova_accel.conformance" in check().stderr
    unpack(suite, site)
    assert check().stdout == "qat: 1 host, 0 findings\n"


def git(*arguments: str | Path) -> str:
    return subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *arguments],  # noqa: S607 - the git of this machine
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "user.name",
            "GIT_CONFIG_VALUE_0": "test",
            "GIT_CONFIG_KEY_1": "user.email",
            "GIT_CONFIG_VALUE_1": "test@example.org",
        },
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a git repository with two commits of the project."""
    place = tmp_path_factory.mktemp("repository") / "project"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.egg-info"))
    git("init", "-q", place)
    git("-C", place, "add", "--all")
    for message in ("one", "two"):
        git("-C", place, "commit", "-q", "--allow-empty", "-m", message)
    return place


def find_versions(place: Path) -> list[str]:
    """Return the versions of a tree's source distribution and wheels."""
    out = place.parent / "out"
    source = place.parent / "from sdist"
    archive = wheels.build("sdist", place, out / "sdist")
    shutil.unpack_archive(archive, source)
    (unpacked,) = source.iterdir()
    made = [
        archive,
        wheels.build("wheel", place, out / "wheel"),
        wheels.build("wheel", unpacked, out / "wheel from sdist"),
    ]
    return [path.name.removesuffix(".tar.gz").split("-")[1] for path in made]


@pytest.mark.parametrize(
    "kind",
    [
        "clone",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in ("shallow", "worktree", "archive")
        ),
    ],
)
def test_the_version_names_the_commit(
    repository: Path, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / kind
    if kind == "worktree":
        git("-C", repository, "worktree", "add", "-q", "--detach", place)
    elif kind == "archive":
        archive = tmp_path / "project.tar"
        git("-C", repository, "archive", "-o", archive, "HEAD")
        shutil.unpack_archive(archive, place)
    else:
        depth = ["--depth", "1"] if kind == "shallow" else []
        git("clone", "-q", *depth, repository.as_uri(), place)
    commit = git("-C", repository, "rev-parse", "--short=7", "HEAD")
    count = 2 if kind in ("clone", "worktree") else 1
    version = f"{man_pages.read_number()}+{count}.g{commit}"
    assert find_versions(place) == [version] * 3


def test_a_tree_without_git_has_the_number_alone(wheel: Path) -> None:
    assert wheel.name.startswith(f"nova_accel-{man_pages.read_number()}-")


@pytest.mark.long
def test_a_release_has_the_number_alone(
    repository: Path, tmp_path: Path
) -> None:
    place, number = tmp_path / "release", man_pages.read_number()
    git("clone", "-q", repository.as_uri(), place)
    git("-C", place, "tag", number)
    assert find_versions(place) == [number] * 3


def test_wheel_beside_nova_by_name(
    beside_nova: Installation, tmp_path: Path
) -> None:
    answer = beside_nova.load(tmp_path, BY_NAME)
    assert answer["loaded"] == LOADED
    assert answer["shim"].endswith("nova/virt/accel/__init__.py")
    assert "ShimFinder" not in answer["finders"]


@pytest.mark.long
def test_wheel_beside_nova_by_source(
    beside_nova: Installation, tmp_path: Path
) -> None:
    answer = beside_nova.load(tmp_path, BY_SOURCE)
    assert answer["loaded"] == LOADED
    assert answer["shim"].endswith("nova/virt/accel/__init__.py")


def test_beside_a_distributions_nova_by_name_fails(
    elsewhere: Installation, tmp_path: Path
) -> None:
    """Nova can't import it: the reason for the config source."""
    answer = elsewhere.load(tmp_path, BY_NAME)
    assert answer["loaded"] == "exit 1"
    assert "No module named 'nova.virt.accel'" in answer["stderr"]


def test_a_misspelt_source_is_in_the_log(
    elsewhere: Installation, tmp_path: Path
) -> None:
    text = BY_SOURCE.replace("nova_accel", "nova_acel")
    answer = elsewhere.load(tmp_path, text)
    assert answer["loaded"] == "exit 1"
    (line,) = [
        line
        for line in answer["stderr"].splitlines()
        if "ERROR nova_accel.config.config_source" in line
    ]
    assert "found 'nova_acel'" in line


def test_beside_a_distributions_nova_by_source(
    elsewhere: Installation, tmp_path: Path
) -> None:
    answer = elsewhere.load(tmp_path, BY_SOURCE)
    assert answer["loaded"] == LOADED
    assert answer["shim"].endswith("virt_hooks/shim/__init__.py")
    assert answer["finders"].count("ShimFinder") == 1


@pytest.mark.parametrize(
    "text",
    [BY_NAME, pytest.param(BY_SOURCE, marks=pytest.mark.long)],
    ids=["name", "source"],
)
def test_editable(editable: Installation, tmp_path: Path, text: str) -> None:
    answer = editable.load(tmp_path, text)
    assert answer["loaded"] == LOADED
    assert answer["shim"].endswith("virt_hooks/shim/__init__.py")


@pytest.mark.parametrize(
    "where",
    [
        "beside_nova",
        pytest.param("elsewhere", marks=pytest.mark.long),
        pytest.param("editable", marks=pytest.mark.long),
    ],
)
def test_installed_but_not_named_changes_nothing(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    installation: Installation = request.getfixturevalue(where)
    answer = installation.load(tmp_path, PLAIN)
    assert answer["loaded"] == STOCK
    assert not set(wheels.PACKAGES) & set(answer["roots"])
    assert answer["shim"] is None
    assert "ShimFinder" not in answer["finders"]


def test_nova_conf_overrides_the_source(
    elsewhere: Installation, tmp_path: Path
) -> None:
    text = BY_SOURCE.replace(
        "[DEFAULT]\n", "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"
    )
    answer = elsewhere.load(tmp_path, text)
    assert answer["loaded"] == STOCK
    warning = "WARNING nova_accel.config.config_source"
    assert answer["stderr"].count(warning) == 1
