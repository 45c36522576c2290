# SPDX-License-Identifier: Apache-2.0
"""Each promise and each trust boundary of the manual has tests."""

import ast
import dataclasses
import re
from collections.abc import Iterator

import pytest

from tests.unit.docs import pages

_PAGES = ("project/promises.rst", "project/trust.rst")
#: Sections that may not have a statement without a test.
_OF_TENANTS = {
    "Servers and the data of their owners",
    "Servers without accelerators",
    "Guests and owners of servers",
}
_SECTION = re.compile(r"^(.+)\n=+\n", re.MULTILINE)
_STATEMENT = re.compile(r"^(\d+)\. ((?:.+\n)+)\n((?: +\S.*\n)+)", re.MULTILINE)
_TEST = re.compile(r"^ +\* ``([^`]+)``$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Statement:
    """A numbered sentence of a page, with the ids of its tests."""

    page: str
    section: str
    number: int
    text: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page} {self.number}"


def read_statements(name: str) -> Iterator[Statement]:
    _, *parts = _SECTION.split((pages.MANUAL / name).read_text() + "\n")
    for section, body in zip(parts[::2], parts[1::2], strict=True):
        for number, text, tests in _STATEMENT.findall(body):
            yield Statement(
                *(name, section, int(number), " ".join(text.split())),
                tuple(_TEST.findall(tests)),
            )


STATEMENTS = [each for name in _PAGES for each in read_statements(name)]
TESTS = sorted({test for each in STATEMENTS for test in each.tests})


def find_obstacle(test: str) -> str:
    """Return why pytest does not run a test by its id, or ""."""
    file, *names = test.split("::")
    path = pages.ROOT / file
    if not path.is_file() or not path.name.startswith("test_"):
        return f"{file} is no file of tests"
    scope: ast.Module | ast.ClassDef | ast.FunctionDef
    scope = ast.parse(path.read_text())
    for name in names:
        definitions = {
            node.name: node
            for node in scope.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        if name not in definitions:
            return f"{file} has no {name}"
        scope = definitions[name]
        marks = " ".join(map(ast.unparse, scope.decorator_list))
        if re.search(r"mark\.(skip\b|xfail)|unittest\.skip\b", marks):
            return f"{name} is skipped or expected to fail"
    if isinstance(scope, ast.FunctionDef) and scope.name.startswith("test_"):
        return ""
    return f"{test} is no test"


@pytest.mark.parametrize("name", _PAGES)
def test_statements_are_numbered(name: str) -> None:
    numbers = [each.number for each in STATEMENTS if each.page == name]
    lines = re.findall(r"(?m)^\d+\. ", (pages.MANUAL / name).read_text())
    assert numbers == [*range(1, len(lines) + 1)] != []


@pytest.mark.parametrize("test", TESTS)
def test_a_named_test_exists(test: str) -> None:
    assert find_obstacle(test) == ""


@pytest.mark.parametrize("statement", STATEMENTS, ids=str)
def test_a_statement_has_tests(statement: Statement) -> None:
    if not statement.tests and statement.section not in _OF_TENANTS:
        pytest.skip(f"unproven: {statement.number}. {statement.text}")
    assert statement.tests, f"unproven: {statement.text}"


@pytest.mark.parametrize(
    ("test", "obstacle"),
    [
        ("tests/unit/docs/nothing.py::test_a", "is no file of tests"),
        ("tests/unit/docs/test_promises.py::test_nothing", "has no test_noth"),
        ("tests/unit/docs/test_promises.py::find_obstacle", "is no test"),
        ("tests/unit/docs/test_promises.py", "is no test"),
    ],
)
def test_an_obstacle_is_found(test: str, obstacle: str) -> None:
    assert obstacle in find_obstacle(test)
