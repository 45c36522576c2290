# SPDX-License-Identifier: Apache-2.0
"""Each file that names the version has the number of setup.py."""

import importlib.metadata
import pathlib
import re
import tomllib

import pytest

from tests.unit.house import sources
from tools import man_pages

#: The number in each file; a Debian version may have a revision behind it.
_FILES = {
    ".git_archival.txt": r"describe-name: \$Format:([\d.]+)-1-g%h",
    "contrib/ansible/CHANGELOG.md": r"## ([\d.]+)",
    "contrib/ansible/galaxy.yml": r"version: ([\d.]+)",
    "contrib/debian/changelog": r"nova-accel \(([\d.]+)(?:-\d+)?\) ",
    "tools/conformance/setup.cfg": r"version = ([\d.]+)",
}


@pytest.mark.parametrize("name", _FILES)
def test_a_file_has_the_number(name: str) -> None:
    text = (sources.ROOT / name).read_text()
    numbers = re.findall(f"^{_FILES[name]}", text, re.MULTILINE)
    assert numbers[:1] == [man_pages.read_number()]


def test_the_installed_version_begins_with_the_number() -> None:
    installed = importlib.metadata.version("nova-accel")
    assert installed.partition("+")[0] == man_pages.read_number()


def test_the_examples_of_the_pages_have_the_number() -> None:
    pages: list[pathlib.Path] = [
        *(sources.ROOT / "doc/source").rglob("*.rst"),
        sources.ROOT / "README.rst",
    ]
    named = {
        number
        for page in pages
        for number in re.findall(r"nova_accel-([\d.]+)-py3", page.read_text())
    }
    assert named == {man_pages.read_number()}


def test_the_supported_releases_are_those_that_are_tested() -> None:
    page = (sources.ROOT / "doc/source/project/releases.rst").read_text()
    setup = (sources.ROOT / "pyproject.toml").read_text()
    (nova, python) = re.findall(r"^ +- (\d[\d., ]+, [\d., ]+)$", page, re.M)
    tox = (sources.ROOT / "tox.ini").read_text()
    (older,) = re.findall(r"testenv:nova\{([\d,]+)\}", tox)
    # The environment "functional" has the newest.
    newest = re.findall(
        r"(?m)^nova==(\d+)\.",
        (sources.ROOT / "tests/constraints.txt").read_text(),
    )
    assert sorted(nova.split(", ")) == sorted([*older.split(","), *newest])
    classifiers = tomllib.loads(setup)["project"]["classifiers"]
    assert python.split(", ") == re.findall(
        r"Python :: (3\.\d+)", " ".join(classifiers)
    )


def test_the_addresses_of_the_project_have_one_domain() -> None:
    names = (
        *(
            "pyproject.toml",
            "contrib/debian/control",
            "contrib/debian/changelog",
        ),
        "doc/source/project/releases.rst",
    )
    texts = [(sources.ROOT / name).read_text() for name in names]
    domains = [
        set(re.findall(r"nova-accel(?:-security)?[@.]([\w.]+[a-z])", text))
        for text in texts
    ]
    assert domains == [domains[0]] * len(names)
    assert len(domains[0]) == 1
