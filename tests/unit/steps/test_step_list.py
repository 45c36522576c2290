# SPDX-License-Identifier: Apache-2.0
"""The list of steps fits the tree, ``tests/run`` and the imports of tests."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.steps.step_list import IMPORTED_TESTS, STEPS, is_below, is_input
from tests.unit.house import sources

ROOT = sources.ROOT
RUN = ROOT / "tests/run"
NAMES = [sources.relative(path) for path in sources.FILES]
TESTS = [
    path
    for path in sources.PYTHON
    if sources.relative(path).startswith("tests/")
]
# A page of the manual in the code of a test.
PAGE = re.compile(
    r"doc/source/(?!examples|_ext)([\w/-]+\.(?:rst|png))?"
    r"|pages\.MANUAL(?: / \"([\w/-]+\.rst)\")?"
    r"|import pages\b"
)
# Imports of tests, whatever their form.
IMPORT = re.compile(
    r"^ *(?:(?:from|import) tests\b.*\btest_\w|test_\w+,$)", re.MULTILINE
)
# What operators rely on most, and the test of it in the run of each push.
PROMISES = {
    "a live migration": (
        "nova",
        "tests/functional/nova/operations/test_live_migration.py",
        "test_completed",
    ),
    "the upgrade": (
        "nova",
        "tests/functional/nova/service/test_upgrade.py",
        "test_upgrade_and_downgrade",
    ),
    "a role of Ansible": (
        "functional",
        "tests/functional/contrib/ansible/test_roles.py",
        "test_the_command_installs_and_removes",
    ),
    "the Debian package": (
        "functional",
        "tests/functional/contrib/packages/test_debian.py",
        "test_the_package_works_without_nova",
    ),
    "a fault of a real kernel": (
        "lab",
        "tests/e2e/vm/test_doctor.py",
        "test_a_fault_is_seen_by_its_check",
    ),
    "metering": (
        "metering",
        "tests/functional/contrib/monitoring/metering/test_ceilometer.py",
        "test_",
    ),
    "the oldest Nova": (
        "nova31",
        "tests/functional/nova/spawn/test_server.py",
        "test_boot_and_delete",
    ),
}


def call_runner(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603
        [RUN, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def test_the_runner_has_the_same_steps() -> None:
    listed = [line.split()[0] for line in call_runner("--list").splitlines()]
    assert sorted(listed) == sorted(STEPS)


def test_each_file_is_an_input_of_a_step() -> None:
    recorded = [step for step in STEPS.values() if step.is_recorded]
    for name in NAMES:
        assert any(is_input(name, step) for step in recorded)
    others = [step for step in recorded if not step.checks_tree]
    for name in NAMES:
        if not is_below(name, ("doc", "releasenotes")):
            is_page = name in ("README.rst", "CONTRIBUTING.rst")
            assert is_page or any(is_input(name, step) for step in others)


def test_each_test_is_one_of_a_step() -> None:
    without_step = {
        name
        for name in NAMES
        if re.fullmatch(r"tests/.*/test_[^/]*\.py", name)
        and not list_owners(name)
    }
    assert not without_step


@pytest.mark.parametrize("name", STEPS)
def test_each_place_exists(name: str) -> None:
    for place in (*STEPS[name].tests, *STEPS[name].pages):
        assert (ROOT / place).exists()


@pytest.mark.parametrize("name", STEPS)
def test_the_product_and_the_pins_are_inputs(name: str) -> None:
    for path in (
        *(sources.relative(module) for module in sources.MODULES),
        *("setup.cfg", "tox.ini", "bindep.txt", "tests/constraints.txt"),
        *("tests/run", "tests/lab/lab", "tests/lab/constraints.txt"),
    ):
        assert is_input(path, STEPS[name])


def list_imported_tests(path: Path) -> Iterator[str]:
    """Yield the modules ``test_*.py`` that a file imports."""
    if not IMPORT.search(path.read_text()):
        return
    names = [
        alias.name
        for node in sources.list_nodes(path, ast.Import)
        for alias in node.names
    ]
    for node in sources.list_nodes(path, ast.ImportFrom):
        module = node.module or ""
        names += [module, *(f"{module}.{a.name}" for a in node.names)]
    for name in names:
        imported = name.replace(".", "/") + ".py"
        if "/test_" in imported and (ROOT / imported).is_file():
            yield imported


def list_owners(name: str) -> set[str]:
    """Return the steps of which a file is a test."""
    return {
        key
        for key, step in STEPS.items()
        if key != "types" and is_below(name, step.tests)
    }


def test_tests_that_a_step_imports_are_inputs() -> None:
    """Helpers are inputs of all steps, and so are tests that they import."""
    for path in TESTS:
        name = sources.relative(path)
        is_test = path.name.startswith("test_") and name not in IMPORTED_TESTS
        for imported in list_imported_tests(path):
            assert imported in IMPORTED_TESTS or (
                is_test and list_owners(name) <= list_owners(imported)
            ), (name, imported)


def list_pages(path: Path) -> set[str]:
    """Return pages that a file reads; ``doc`` if it can't be said which."""
    return {
        f"doc/source/{match[1] or match[2]}" if match[1] or match[2] else "doc"
        for match in PAGE.finditer(path.read_text())
        if match[0] != "import pages"
    }


def test_pages_that_tests_read_are_inputs() -> None:
    for path in TESTS:
        name = sources.relative(path)
        is_own = path.parent.name == "steps"
        if is_own or not (read := list_pages(path)):
            continue
        readers = [STEPS[key] for key in list_owners(name)]
        assert readers, name
        # A unit test that reads a page is also one of the step ``house``.
        assert any(
            all(is_input(page, step) for page in read) for step in readers
        ), (name, read)


@pytest.mark.parametrize(
    ("step", "scope", "marks"),
    [
        ("unit", "quick", "-m 'not long and not slow'"),
        ("unit", "short", "-m 'not long'"),
        ("unit", "whole", ""),
        ("nova31", "short", "-m 'oldest'"),
        ("nova31", "whole", "-m 'each_release or oldest'"),
        ("nova32", "whole", "-m 'each_release or oldest or not long'"),
    ],
)
def test_a_scope_has_the_tests_with_its_marks(
    step: str, scope: str, marks: str
) -> None:
    """Slow tests run in each scope but ``quick``."""
    function = re.search(
        r"^select_marked\(\) .*?^}", RUN.read_text(), re.M | re.S
    )
    assert function
    command = f"extra=(); {function[0]}; select_marked {step}"
    done = subprocess.run(  # noqa: S603
        ["/bin/bash", "-c", f'{command}; echo "$PYTEST_ADDOPTS"'],
        env={"scope": scope},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == marks


def test_slow_tests_are_those_of_the_quick_run() -> None:
    names = {
        sources.relative(path)
        for path in TESTS
        if re.search(
            r"^\s*(?:@|pytestmark = )pytest\.mark\.slow",
            path.read_text(),
            re.M,
        )
    }
    assert len(names) > 10
    assert all(list_owners(name) & {"unit", "house"} for name in names)


def has_mark(node: ast.FunctionDef | ast.Module, name: str) -> bool:
    """Return whether a test or a module has a mark of pytest."""
    marks = [
        *(getattr(node, "decorator_list", ())),
        *(
            statement.value
            for statement in node.body
            if isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "pytestmark"
        ),
    ]
    return any(
        f"pytest.mark.{name}" in ast.unparse(mark).replace("marks=", "")
        and "param(" not in ast.unparse(mark)
        for mark in marks
    )


@pytest.mark.parametrize("promise", PROMISES)
def test_what_operators_rely_on_is_in_the_short_run(promise: str) -> None:
    step, name, function = PROMISES[promise]
    assert is_below(name, STEPS[step].tests)
    rows = [line.split() for line in call_runner("--list").splitlines()]
    (run,) = [row[1] for row in rows if row[0] == step]
    assert run in ("quick", "short")
    module = sources.tree(ROOT / name)
    tests = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(function)
        and not has_mark(node, "long")
    ]
    assert tests
    assert not has_mark(module, "long")
    if step == "nova31":
        assert all(has_mark(node, "oldest") for node in tests)
