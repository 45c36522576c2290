# SPDX-License-Identifier: Apache-2.0
"""``tests/run`` skips what passed, in a small clone; tox is a substitute."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.house.sources import ROOT
from tests.unit.steps.test_records import commit, git

# Writes its environment's name and pytest's arguments, and fails for those
# environments in the file "broken".
TOX = """\
#!/bin/sh
case "$*" in *"-e "*) ;; *) exit 9 ;; esac
environment=$(echo "$*" | sed 's/.*-e \\([^ ]*\\).*/\\1/')
echo "$environment $PYTEST_ADDOPTS" >> "$NOVA_ACCEL_LAB/calls"
! grep -qx "$environment" "$NOVA_ACCEL_LAB/broken"
"""
QUICK = ("lint", "types", "unit", "house")
pytestmark = pytest.mark.slow


class Result(NamedTuple):
    """Exit status, output, and the word of the table for each step."""

    status: int
    output: str
    steps: dict[str, str]


class Runner:
    """Clone with the runner, and what it called."""

    def __init__(self, place: Path) -> None:
        self.root, self.lab = place / "clone", place / "lab"
        tools = self.lab / "tools/bin"
        tools.mkdir(parents=True)
        for name in ("tox", "uv"):
            (tools / name).write_text(TOX)
            (tools / name).chmod(0o755)
        self.break_environment("")
        for name in ("tests/run", "tests/steps", "tests/__init__.py"):
            source, target = ROOT / name, self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        self.write(".gitignore", "__pycache__/\n")
        self.write("bindep.txt", "")
        self.write("doc/page.rst", "words")
        self.write("nova_accel/module.py", "VALUE = 1\n")
        git(self.root, "init", "--quiet")
        commit(self.root)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def break_environment(self, name: str) -> None:
        (self.lab / "broken").write_text(f"{name}\n")

    def run(self, *arguments: str, **settings: str) -> Result:
        """Run steps; the environment has these settings only."""
        done = subprocess.run(  # noqa: S603 - the runner itself
            [self.root / "tests/run", *arguments],
            env={
                "HOME": str(self.lab),
                "NOVA_ACCEL_LAB": str(self.lab),
                "PATH": os.environ["PATH"],
                "TMPDIR": str(self.lab),
                **settings,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        rows = [line.split() for line in done.stdout.splitlines()]
        table = [row for row in rows if row and row[0] in QUICK]
        steps = {row[0]: row[1] for row in table[-len(QUICK) :]}
        return Result(done.returncode, done.stdout, steps)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_steps_that_passed_are_skipped(runner: Runner) -> None:
    first = runner.run("quick")
    assert (first.status, first.steps) == (0, dict.fromkeys(QUICK, "ok"))
    calls = (runner.lab / "calls").read_text()
    second = runner.run("quick")
    assert second.status == 0
    assert second.steps == dict.fromkeys(QUICK, "skipped")
    assert "skipped passed on 20" in second.output
    now, minutes, lines = second.output.splitlines()[-3:]
    assert now.split()[-2:] == ["now", "goal"]
    assert minutes.split()[-4:] == ["2", "4", "steps", "skipped"]
    assert lines.split()[-1] == "101000"
    assert (runner.lab / "calls").read_text() == calls
    # Documentation runs the steps that read it.
    runner.write("doc/page.rst", "other words")
    assert runner.run("quick").steps == {
        "lint": "ok",
        "types": "skipped",
        "unit": "skipped",
        "house": "ok",
    }
    again = runner.run("quick", "--again")
    assert again.steps == dict.fromkeys(QUICK, "ok")


def test_a_quick_pass_is_none_of_the_whole_step(runner: Runner) -> None:
    assert runner.run("quick").steps["unit"] == "ok"
    calls = (runner.lab / "calls").read_text().splitlines()
    # The step "house" has the environment of the unit tests.
    assert calls.count("unit-py311  -m 'not long and not slow'") == 2
    assert runner.run("unit").steps == {"unit": "ok"}
    whole = (runner.lab / "calls").read_text().splitlines()[len(calls) :]
    assert [line.split() for line in whole] == [
        ["unit-py311"],
        ["unit-py312"],
        ["unit-py313"],
    ]


def test_a_failure_is_not_recorded(runner: Runner) -> None:
    runner.break_environment("types")
    first, second = runner.run("quick"), runner.run("quick")
    failed = {"types": "FAILED"}
    assert first.steps == dict.fromkeys(QUICK, "ok") | failed
    assert second.steps == dict.fromkeys(QUICK, "skipped") | failed
    assert (first.status, second.status) == (1, 1)


def test_settings_and_arguments_of_ones_own_are_not_recorded(
    runner: Runner,
) -> None:
    assert runner.run("quick", NOVA_ACCEL_EXAMPLES="1").status == 0
    assert runner.run("unit", "--", "-k", "x").status == 0
    assert not (runner.lab / "passed").exists()
