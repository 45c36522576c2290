# SPDX-License-Identifier: Apache-2.0
"""Each message of the commands is printed by a test, in a golden file.

Texts of the packages below are found in their code. One that no golden file
and no man page has is an exception with its reason, or a test is missing.
messages.txt has the errors and notes of all commands, to be read through.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.support import golden
from tests.unit.house import message_exceptions, sources

DIRECTORIES = (
    "nova_accel/cli/",
    "nova_accel/doctor/",
    "placement_sync/cli/",
    "placement_sync/fleet/",
)
_HOLE = "\0"
# Arguments and functions whose texts are those of --help.
_HELP = frozenset({"help", "metavar", "description", "epilog", "usage"})
# Functions whose texts are patterns.
_PATTERNS = frozenset({"compile", "filterwarnings", "Formatter"})
_WORDS = re.compile(r"[A-Za-z]{2,}")


class Texts(ast.NodeVisitor):
    """Collects the texts of two or more words, without docstrings and help."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.startswith(("add_", "_add_")):
            self._visit_body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_body(node)

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_body(node)

    def _visit_body(
        self, node: ast.FunctionDef | ast.ClassDef | ast.Module
    ) -> None:
        for each in node.body[ast.get_docstring(node) is not None :]:
            self.visit(each)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _HELP:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if getattr(node.func, "attr", "") not in _PATTERNS:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add(
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else _HOLE
                for part in node.values
            )
        )
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _add(self, text: str) -> None:
        if " " in text.strip() and len(_WORDS.findall(text)) > 1:
            self.texts.append(" ".join(text.split()))


def list_texts(path: pathlib.Path) -> Iterator[str]:
    visitor = Texts()
    visitor.visit(ast.parse(path.read_text()))
    yield from dict.fromkeys(visitor.texts)


@functools.cache
def read_transcript() -> str:
    pages = (sources.ROOT / "contrib/man").iterdir()
    texts = [path.read_text().replace("\\-", "-") for path in pages]
    texts += [path.read_text() for path in golden.PLACE.rglob("*.txt")]
    return " ".join(" ".join(texts).replace("\n! ", " ").split())


def is_printed(text: str) -> bool:
    """Return whether the transcript has a text, with anything in its holes."""
    # Braces that str.format prints are twice in its text.
    plain = text.replace("{{", "{").replace("}}", "}")
    parts = re.split(r"\0|\{\w*\}|%s", plain)
    pattern = ".{0,400}?".join(map(re.escape, filter(None, parts)))
    return bool(re.search(pattern, read_transcript()))


def find_missing(path: pathlib.Path) -> list[str]:
    return [
        text.replace(_HOLE, "{}")
        for text in list_texts(path)
        if not is_printed(text)
    ]


PATHS = [
    path
    for path in sources.FILES
    if path.suffix == ".py" and sources.relative(path).startswith(DIRECTORIES)
]


def test_a_test_prints_each_message() -> None:
    missing = [
        f"{name}: {text}"
        for path in PATHS
        for name in [sources.relative(path)]
        for text in find_missing(path)
        if not text.startswith(tuple(message_exceptions.TEXTS.get(name, {})))
    ]
    assert not missing, (
        "print them in tests/functional/sync/messages, or add them to"
        " message_exceptions.py: " + "\n".join(missing)
    )


def test_each_exception_is_needed() -> None:
    for name, exceptions in message_exceptions.TEXTS.items():
        missing = find_missing(sources.ROOT / name)
        for begin in exceptions:
            assert any(t.startswith(begin) for t in missing), (name, begin)


def test_each_reason_is_a_sentence_or_a_test() -> None:
    for exceptions in message_exceptions.TEXTS.values():
        for reason in exceptions.values():
            assert " " in reason or (sources.ROOT / reason).is_file(), reason


@pytest.mark.parametrize(
    ("text", "is_there"),
    [("No host offers any accelerator.", True), ("No such words", False)],
)
def test_a_text_is_found(text: str, is_there: bool) -> None:
    assert is_printed(text) == is_there
