# SPDX-License-Identifier: Apache-2.0
"""Each file that names the version has the number of setup.py."""

import importlib.metadata
import pathlib
import re

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
