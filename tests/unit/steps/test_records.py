# SPDX-License-Identifier: Apache-2.0
"""A step is skipped only after a pass with the same inputs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.steps import tree_digest
from tests.steps.records import Records
from tests.steps.step_list import Step

NAME, DATE = "fake", "2026-11-27 05:40"
STEP = Step(tests=("tests/unit",), pages=("doc/read.rst",))
FILES = {
    ".gitignore": "/build/\n",
    "doc/other.rst": "words",
    "doc/read.rst": "words",
    "package/module.py": "VALUE = 1\n",
    "package/script": "#!/bin/sh\n",
    "README.rst": "words",
    "setup.cfg": "[options]\n",
    "tests/constraints.txt": "nova==34.0.0\n",
    "tests/lab/fixture.py": "VALUE = 1\n",
    "tests/lab/test_lab.py": "VALUE = 1\n",
    "tests/unit/test_module.py": "VALUE = 1\n",
}


def git(root: Path, *words: str) -> None:
    person = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = ["git", *person, *words]
    subprocess.run(command, cwd=root, check=True)  # noqa: S603


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "a: b")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a clone."""
    top = tmp_path / "clone"
    for name, text in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    git(top, "init", "--quiet")
    commit(top)
    return top


@pytest.fixture
def records(tmp_path: Path, root: Path) -> Records:
    return Records(tmp_path / "lab/passed", root)


def add(records: Records, step: Step = STEP, scope: str = "short") -> bool:
    return records.add(NAME, step, scope, records.compute(step), DATE)


def has_pass(records: Records, scope: str = "short") -> bool:
    return records.find(NAME, STEP, scope) is not None


def test_a_pass_is_described(records: Records, root: Path) -> None:
    assert not has_pass(records)
    assert add(records)
    text = f"passed on {DATE} at {tree_digest.read_commit(root)}"
    assert str(records.find(NAME, STEP, "short")) == text
    (root / "README.rst").write_text("other words")
    assert add(records)
    text += " with changes"
    assert str(records.find(NAME, STEP, "short")) == text


@pytest.mark.parametrize(
    "name",
    [
        "doc/read.rst",
        "package/module.py",
        "setup.cfg",
        "tests/constraints.txt",
        "tests/lab/fixture.py",
        "tests/unit/test_module.py",
        "tests/unit/test_new.py",
    ],
)
def test_a_change_of_an_input_ends_it(
    records: Records, root: Path, name: str
) -> None:
    add(records)
    (root / name).write_text("changed")
    assert not has_pass(records)
    commit(root)
    assert not has_pass(records)


@pytest.mark.parametrize(
    "name",
    [
        "doc/other.rst",
        "README.rst",
        "tests/lab/test_lab.py",
        "build/module.py",
    ],
)
def test_a_change_of_another_file_does_not(
    records: Records, root: Path, name: str
) -> None:
    add(records)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("changed")
    assert has_pass(records)
    commit(root)
    assert has_pass(records)


def make_link(root: Path) -> None:
    (root / "package/module.py").unlink()
    (root / "package/module.py").symlink_to("script")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "package/module.py").unlink(),
        lambda root: (root / "package/script").chmod(0o755),
        lambda root: git(root, "mv", "package/script", "package/program"),
        make_link,
    ],
    ids=["deleted", "executable", "renamed", "link"],
)
def test_more_than_content_is_an_input(
    records: Records, root: Path, change: Callable[[Path], None]
) -> None:
    add(records)
    change(root)
    assert not has_pass(records)


def test_a_file_that_only_a_user_ignores_is_an_input(
    records: Records, root: Path
) -> None:
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text("mine.py\n")
    add(records)
    (root / "mine.py").write_text("changed")
    assert not has_pass(records)


def test_another_machine_runs_it_again(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(records)
    monkeypatch.setattr("platform.release", lambda: "0.1")
    assert not has_pass(records)


@pytest.mark.parametrize(
    ("passed", "counts"),
    [
        ("quick", ["quick"]),
        ("short", ["quick", "short"]),
        ("whole", ["quick", "short", "whole"]),
    ],
)
def test_a_pass_includes_smaller_scopes(
    records: Records, passed: str, counts: list[str]
) -> None:
    add(records, scope=passed)
    scopes = ("quick", "short", "whole")
    assert [s for s in scopes if has_pass(records, s)] == counts


def test_a_step_without_scopes_passed_in_each(records: Records) -> None:
    step = Step(checks_tree=True, has_scopes=False)
    add(records, step, "quick")
    assert records.find(NAME, step, "whole")


def test_a_change_during_the_run_is_not_recorded(
    records: Records, root: Path
) -> None:
    digest = records.compute(STEP)
    (root / "package/module.py").write_text("changed")
    assert not records.add(NAME, STEP, "short", digest, DATE)
    assert not has_pass(records)


def test_a_step_that_checks_the_tree_reads_all_files(
    records: Records, root: Path
) -> None:
    step = Step(checks_tree=True)
    add(records, step)
    assert records.find(NAME, step, "short")
    (root / "doc/other.rst").write_text("changed")
    assert not records.find(NAME, step, "short")


def test_a_step_that_tests_the_commit_is_recorded_without_changes(
    records: Records, root: Path
) -> None:
    step = Step(tests_commit=True)
    (root / "package/module.py").write_text("changed")
    assert not add(records, step)
    commit(root)
    assert add(records, step)


def test_a_step_may_have_no_records(records: Records) -> None:
    step = Step(is_recorded=False)
    assert not records.compute(step)
    assert not add(records, step)


DAMAGED = (
    *("", "{", "[]", "null", "{}", '{"digest": "1"}', "\x00" * 90),
    '{"digest": "", "date": "", "commit": ""}',
)


def test_a_damaged_record_does_not_count(
    records: Records, tmp_path: Path
) -> None:
    add(records)
    (path,) = (tmp_path / "lab/passed").iterdir()
    text = path.read_text()
    for damaged in (*DAMAGED, text[: len(text) // 2]):
        path.write_text(damaged)
        assert not has_pass(records)
    path.write_text(text)
    assert has_pass(records)


def test_a_tree_that_is_no_clone_has_no_records(tmp_path: Path) -> None:
    """An export may be inside another clone."""
    export = tmp_path / "outer/export"
    export.mkdir(parents=True)
    (export / "setup.cfg").write_text("")
    records = Records(tmp_path / "lab", export)
    assert not add(records)
    git(export.parent, "init", "--quiet")
    assert not add(records)
    assert not has_pass(records)


def test_a_machine_without_git_has_no_records(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(records)
    monkeypatch.setenv("PATH", os.devnull)
    assert not has_pass(records)
