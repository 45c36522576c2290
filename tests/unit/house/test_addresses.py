# SPDX-License-Identifier: Apache-2.0
"""The address of the project is one, and a placeholder says that it is one."""

import pathlib
import re
import tomllib
import urllib.parse

from tests.unit.house import sources

_URLS = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())[
    "project"
]["urls"]
_HOST = urllib.parse.urlsplit(_URLS["Homepage"]).hostname or ""
# Other files with an address of the project.
_FILES = (
    "contrib/debian/control",
    "contrib/debian/watch",
    "doc/source/install/index.rst",
)
_PAGES = ("CONTRIBUTING.rst", "doc/source/project/releases.rst")
_STATED = re.compile(r"project\s+has\s+no\s+address\s+yet")


def test_all_urls_are_of_one_host() -> None:
    hosts = {urllib.parse.urlsplit(url).hostname for url in _URLS.values()}
    assert hosts == {_HOST}


def test_other_files_have_that_host() -> None:
    lacking = [
        name
        for name in _FILES
        if f"https://{_HOST}/" not in (sources.ROOT / name).read_text()
    ]
    assert lacking == []


def test_pages_say_whether_it_is_a_placeholder() -> None:
    is_placeholder = _HOST.endswith(".example.org")
    pages = [pathlib.Path(sources.ROOT / name).read_text() for name in _PAGES]
    stated = [bool(_STATED.search(text)) for text in pages]
    assert stated == [is_placeholder] * len(_PAGES)
