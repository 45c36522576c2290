# SPDX-License-Identifier: Apache-2.0
"""The man pages and completions that the packages install."""

import configparser
import os
import pathlib
import shutil
import subprocess

import pytest

from tests.support import golden
from tests.unit.house import sources
from tools import man_pages

PATHS = sorted(man_pages.render_all())


@pytest.mark.parametrize("path", PATHS, ids=[path.name for path in PATHS])
def test_a_file_is_that_of_the_commands(path: pathlib.Path) -> None:
    golden.check(path, man_pages.render_all()[path])


def test_each_command_is_on_a_page() -> None:
    setup = configparser.ConfigParser()
    setup.read(sources.ROOT / "setup.cfg")
    text = "".join(man_pages.render_all().values()).replace("\\-", "-")
    for group, program in (
        ("nova_accel.commands", "nova-accel"),
        ("openstack.accel.v1", "openstack"),
    ):
        for line in setup["options.entry_points"][group].split("\n"):
            name = line.split(" =")[0].replace("_", " ")
            assert not name or f'.SS "{program} {name}"' in text


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
@pytest.mark.parametrize(
    "path",
    [path for path in PATHS if path.suffix],
    ids=[path.name for path in PATHS if path.suffix],
)
def test_groff_has_no_warning(path: pathlib.Path) -> None:
    done = subprocess.run(  # noqa: S603
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(path)],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""


@pytest.mark.parametrize("program", ["nova-accel", "placement-sync"])
def test_bash_completes_a_command(program: str) -> None:
    path = sources.ROOT / "contrib/bash-completion" / program
    word = {"nova-accel": "undr", "placement-sync": "ru"}[program]
    function = f"_{program.replace('-', '_')}"
    script = (
        f"source {path}\n"
        # Functions of the package bash-completion.
        "_get_comp_words_by_ref() {\n"
        f"cur={word} prev={program} words=({program} {word}) cword=1\n}}\n"
        f'{function}; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(  # noqa: S603
        ["bash", "-c", script],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {"nova-accel": "undrain", "placement-sync": "run"}[program]
    assert (done.stdout.split(), done.stderr) == ([expected], "")
