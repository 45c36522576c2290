# SPDX-License-Identifier: Apache-2.0
"""A command has one name, and each program its own commands."""

import configparser
import pathlib
import re
from collections.abc import Callable, Sequence

import pytest

from nova_accel.cli import command_manager, commands
from placement_sync.cli import main

ROOT = pathlib.Path(__file__).parents[4]


def test_a_command_is_registered_once() -> None:
    setup = configparser.ConfigParser()
    text = (ROOT / "setup.cfg").read_text()
    setup.read_string(text)
    points = setup["options.entry_points"]
    names = [
        *points[command_manager.HOST_GROUP].strip().splitlines(),
        *points[command_manager.CLOUD_GROUP].strip().splitlines(),
    ]
    classes = re.findall(r"= (\S+commands:[A-Z]\w+)", text)
    assert len(classes) == len({*classes}) == len(names)


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (commands.main, "device list"),
        (commands.main, "status --json"),
        (main.main, "audit"),
        (main.main, "run --json"),
    ],
)
def test_names_of_release_0_9_are_unknown(
    capsys: pytest.CaptureFixture[str],
    run: Callable[[Sequence[str]], int],
    line: str,
) -> None:
    with pytest.raises(SystemExit) as end:
        run(line.split())
    assert end.value.code == 2
    refusal = capsys.readouterr().err
    assert re.search("unknown command|unrecognized arguments: --json", refusal)
