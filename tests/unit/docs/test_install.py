# SPDX-License-Identifier: Apache-2.0
"""No page, role or package installs nova-accel by its name.

The name is not published: pip would install whatever is registered there.
"""

import configparser
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.unit.docs import pages
from tests.unit.house import sources

_PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
_TEXTS = sorted(
    {
        *pages.PAGES,
        *(
            path
            for top in ("contrib", "doc/source", "tools", *_PACKAGES)
            for path in (pages.ROOT / top).rglob("*")
            if path.suffix in (".md", ".py", ".yml", ".j2", ".cfg", "")
            and path.is_file()
        ),
    }
)
_COMMAND = re.compile(r"\bpip3? install (.*)")
_BY_NAME = re.compile(r"nova[-_]accel(\[[^]]*\])?([=<>~!].*)?")
_ROLE = pages.ROOT / "contrib/ansible/roles/nova_accel"


def list_bare_names(text: str) -> list[str]:
    """Return the requirements by name of the pip commands in a text."""
    bare = []
    for match in _COMMAND.finditer(text.replace("\\\n", " ")):
        command = match[1].partition("&&")[0]
        words = re.split(r"\s+", re.sub(r"[\"'`,;]", " ", command))
        for word, after in zip(words, [*words[1:], ""], strict=True):
            if _BY_NAME.fullmatch(word) and after != "@":
                bare.append(match[0])
    return bare


@pytest.mark.parametrize(
    ("command", "is_bare"),
    [
        ("pip install nova-accel", True),
        ("pip install --no-deps nova-accel", True),
        ("pip install 'nova-accel[cli]'", True),
        ("``pip install nova-accel[metrics]``, or", True),
        ("pip install nova_accel==0.1", True),
        ('pip install "nova-accel[cli] @ $WHEEL"', False),
        ("pip install -e ../nova-accel", False),
        ("pip install dist/nova_accel-0.1-py3-none-any.whl", False),
    ],
)
def test_commands_are_judged(command: str, is_bare: bool) -> None:
    assert bool(list_bare_names(command)) is is_bare


def test_no_text_installs_by_name() -> None:
    assert len(_TEXTS) > 300
    bare = {pages.name_of(p): list_bare_names(p.read_text()) for p in _TEXTS}
    assert {name: lines for name, lines in bare.items() if lines} == {}


def test_each_installed_wheel_has_a_hash_on_the_install_page() -> None:
    text = (pages.MANUAL / "install/index.rst").read_text()
    (wheel,) = re.findall(r"^   # WHEEL=(\S+)$", text, re.MULTILINE)
    assert wheel.startswith("file:///") and "#sha256=" in wheel
    for name in (
        pages.ROOT / "README.rst",
        pages.MANUAL / "install/index.rst",
    ):
        words = " ".join(name.read_text().split())
        assert "is not published: who registers it" in words


@pytest.mark.parametrize("name", ["setup.cfg", "requirements"])
def test_no_package_of_the_tree_requires_the_name(name: str) -> None:
    files = [p for p in sources.FILES if name in p.name]
    assert files
    for path in files:
        if name == "setup.cfg":
            setup = configparser.ConfigParser()
            setup.read(path)
            text = setup.get("options", "install_requires", fallback="")
        else:
            text = path.read_text()
        for line in text.splitlines():
            assert not _BY_NAME.fullmatch(line.strip()), path


def test_the_role_has_no_default_wheel() -> None:
    defaults = yaml.safe_load((_ROLE / "defaults/main.yml").read_text())
    assert defaults["nova_accel_wheel"] == ""
    assert defaults["nova_accel_wheel_sha256"] == ""
    tasks = yaml.safe_load((_ROLE / "tasks/package.yml").read_text())
    check, *_ = tasks
    required = shlex.split(" ".join(check["ansible.builtin.assert"]["that"]))
    assert {"nova_accel_wheel", "nova_accel_wheel_sha256"} <= set(required)


def test_the_container_file_needs_the_hash() -> None:
    text = Path(pages.ROOT / "contrib/kolla/Containerfile").read_text()
    assert "#sha256=${hash}" in text and "${WHEEL_SHA256:?" in text
