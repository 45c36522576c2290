# SPDX-License-Identifier: Apache-2.0
"""No pattern takes quadratic time: texts come from devices and archives.

Each compiled pattern of a module is timed, with the methods that the code
calls, on texts that are built from its own parts: repetitions of each
character and pair that it can match, of the beginnings of a match, and
beginnings with a tail. A linear pattern takes some milliseconds for 60,000
characters, a quadratic one 2 s and more. A text of 4,000 characters is tried
first: a quadratic pattern that exceeds the limit takes at least the 225th part
of it there.
"""

import ast
import dataclasses
import functools
import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from tests.unit.house import sources

LENGTH = 60_000
# CPU seconds of a call, which a signal ends.
LIMIT_S = 0.1
# Length of the text that is tried first, and CPU seconds after which the long
# one is.
SHORT = 4_000
SHORT_LIMIT_S = LIMIT_S * (SHORT / LENGTH) ** 2
METHODS = (
    "search",
    "match",
    "fullmatch",
    "findall",
    "finditer",
    "sub",
    "split",
)
CALL = re.compile(rf"\b(\w+)\.({'|'.join(METHODS)})\b")
# Examples of the classes of characters.
CLASSES = {
    _parser.CATEGORY_DIGIT: "7",
    _parser.CATEGORY_WORD: "w",
    _parser.CATEGORY_SPACE: " ",
    _parser.CATEGORY_NOT_DIGIT: "n",
    _parser.CATEGORY_NOT_WORD: "-",
    _parser.CATEGORY_NOT_SPACE: "n",
}
# Characters of a text at most, and beginnings of a match.
MAX_CHARACTERS, MAX_STARTS = 6, 6
# Runs of a repetition in a match.
MAX_RUNS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsedPattern:
    """A pattern of a module, and the methods that are called on it."""

    name: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


@functools.cache
def read_calls(path: Path) -> list[tuple[str, str]]:
    """Return names and methods in the calls of a module."""
    return CALL.findall(path.read_text())


@functools.cache
def read_all_calls() -> dict[str, set[str]]:
    """Return methods by name in the calls of all modules."""
    methods: dict[str, set[str]] = {}
    for path in sources.MODULES:
        for name, method in read_calls(path):
            methods.setdefault(name, set()).add(method)
    return methods


def list_patterns(path: Path) -> Iterator[UsedPattern]:
    """Yield the patterns that a module has as attributes, or in them."""
    module = importlib.import_module(sources.module_name(path))
    here = read_calls(path)
    everywhere = read_all_calls()
    # A pattern in a table is called by the name of a variable.
    of_tables = {m for n, m in here if not n.isupper()}
    seen: set[int] = set()
    for name, value in vars(module).items():
        methods = {m for n, m in here if n == name}
        if not name.startswith("_"):
            methods = everywhere.get(name, set())
        methods = methods or of_tables
        for number, pattern in enumerate(find_compiled(value)):
            if id(pattern) not in seen:
                seen.add(id(pattern))
                yield UsedPattern(
                    name=f"{name}[{number}]",
                    pattern=pattern,
                    methods=tuple(sorted(methods)) or METHODS,
                )


def find_compiled(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | frozenset | set):
        for item in value:
            yield from find_compiled(item)
    elif isinstance(value, dict):
        yield from find_compiled([*value, *value.values()])


# -- texts -------------------------------------------------------------------


def find_characters(tokens: Any) -> Iterator[str]:
    """Yield an example of each character that a parsed pattern matches."""
    for kind, value in tokens:
        if kind is _parser.LITERAL:
            yield chr(value)
        elif kind is _parser.ANY:
            yield "x"
        elif kind is _parser.NOT_LITERAL:
            yield "x" if value != ord("x") else "y"
        elif kind is _parser.IN:
            yield from list_class(value)
        else:
            for part in list_parts(kind, value):
                yield from find_characters(part)


def list_class(items: Any) -> Iterator[str]:
    if items[0][0] is _parser.NEGATE:
        pattern = re.compile(f"[^{''.join(map(str_of_item, items[1:]))}]")
        yield from [c for c in "xy1-_ \n" if pattern.match(c)][:2]
        return
    for kind, value in items:
        if kind is _parser.LITERAL:
            yield chr(value)
        elif kind is _parser.RANGE:
            yield chr(value[0])
        elif kind is _parser.CATEGORY:
            yield CLASSES[value]


def str_of_item(item: Any) -> str:
    kind, value = item
    if kind is _parser.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return re.escape(chr(value) if kind is _parser.LITERAL else CLASSES[value])


def list_parts(kind: Any, value: Any) -> list[Any]:
    """Return the parsed patterns inside a group, branch or repetition."""
    if kind is _parser.SUBPATTERN:
        return [value[-1]]
    if kind is _parser.BRANCH:
        return list(value[1])
    if kind in (
        _parser.MAX_REPEAT,
        _parser.MIN_REPEAT,
        _parser.POSSESSIVE_REPEAT,
    ):
        return [value[-1]]
    if kind in (_parser.ASSERT, _parser.ASSERT_NOT):
        return [value[1]]
    return [value] if kind is _parser.ATOMIC_GROUP else []


def build_match(tokens: Any) -> str:
    """Return a text that a parsed pattern matches, or nearly so."""
    text = ""
    for kind, value in tokens:
        if kind in (_parser.ASSERT, _parser.ASSERT_NOT):
            continue
        parts = list_parts(kind, value)
        if not parts:
            text += next(find_characters([(kind, value)]), "")
        elif kind in (_parser.SUBPATTERN, _parser.BRANCH):
            text += build_match(parts[0])
        else:
            text += build_match(parts[0]) * max(1, min(value[0], MAX_RUNS))
    return text


def build_texts(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    """Yield texts of a length that a bad pattern needs long for."""
    tokens = _parser.parse(pattern.pattern, pattern.flags)
    characters = [*dict.fromkeys(find_characters(tokens))][:MAX_CHARACTERS]
    match = build_match(tokens)
    step = max(1, len(match) // MAX_STARTS)
    starts = [match[:end] for end in range(1, len(match) + 1, step)]
    units = [
        *characters,
        *map("".join, itertools.permutations(characters[:3], 2)),
        *starts,
        match,
        " ",
    ]
    for unit in filter(None, dict.fromkeys(units)):
        text = (unit * (length // len(unit) + 1))[:length]
        yield text
        yield f"{text[:-1]}\0"
    for start, character in itertools.product(starts, (*characters, " ")):
        yield start + character * (length - len(start) - 1) + "\0"


def call(pattern: re.Pattern[Any], method: str, text: Any) -> None:
    if method == "sub":
        pattern.sub(type(text)(), text)
    elif method == "finditer":
        for _ in pattern.finditer(text):
            pass
    else:
        getattr(pattern, method)(text)


def is_in_time(function: Callable[[], object]) -> bool:
    """Return whether a call ends before the limit."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        function()
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return True


def measure(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def find_slow(used: UsedPattern) -> str:
    """Return the first call that takes long, empty without one."""
    source: re.Pattern[str] = used.pattern
    is_bytes = isinstance(used.pattern.pattern, bytes)
    if is_bytes:
        source = re.compile(used.pattern.pattern.decode("latin-1"))

    def call_on(text: str, method: str) -> Callable[[], None]:
        subject = text.encode("latin-1", "replace") if is_bytes else text
        return functools.partial(call, used.pattern, method, subject)

    for short, long in zip(
        build_texts(source, SHORT), build_texts(source, LENGTH), strict=True
    ):
        for method in used.methods:
            first = call_on(short, method)
            if is_in_time(first) and measure(first) < SHORT_LIMIT_S:
                continue
            run = call_on(long, method)
            if not (is_in_time(run) or is_in_time(run)):
                return f"{method} of {long[:20]!r}… takes over {LIMIT_S} s"
    return ""


# Functions of ``re`` that take a pattern, as ``METHODS`` and two more.
FUNCTIONS = {*METHODS, "subn", "compile"}
IMPORT = re.compile(r"^ *import re$", re.MULTILINE)
# Patterns that a call builds from constants of its own module, of Nova's
# grammar or of an administrator's files: they can't be read from the source.
BUILT = {
    "contrib/ansible/plugins/module_utils/manifest_file.py": 3,
    "nova_accel/catalog/extra_specs.py": 2,
}
CONTRIB = [
    p for p in sources.PYTHON if sources.relative(p).startswith("contrib/")
]


def list_inline(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield method and pattern of each call of ``re``; None if it is built.

    Patterns that are compiled in a package are attributes of its modules.
    """
    if not IMPORT.search(path.read_text()):
        return
    module = sources.tree(path)
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "re"
            and node.func.attr in FUNCTIONS
            and not (node.func.attr == "compile" and path not in CONTRIB)
        ):
            text = node.args[0]
            value = getattr(text, "value", None)
            if isinstance(text, ast.Name):
                value = constants.get(text.id)
            yield node.func.attr, value if isinstance(value, str) else None


@pytest.mark.parametrize(
    "path",
    [path for path in (*sources.MODULES, *CONTRIB) if any(list_inline(path))],
    ids=sources.relative,
)
def test_each_inline_pattern_takes_linear_time(path: Path) -> None:
    calls = list(list_inline(path))
    built = [method for method, text in calls if text is None]
    assert len(built) == BUILT.get(sources.relative(path), 0), built
    slow = [
        f"{text}: {reason}"
        for method, text in calls
        if text is not None
        and (
            reason := find_slow(
                UsedPattern(
                    name="inline",
                    pattern=re.compile(text),
                    methods=METHODS
                    if method == "compile"
                    else (method.replace("subn", "sub"),),
                )
            )
        )
    ]
    assert not slow


MODULES = [p for p in sources.MODULES if "re.compile" in p.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=sources.relative)
def test_each_pattern_takes_linear_time(path: Path) -> None:
    slow = [
        f"{used.name} {used.pattern.pattern}: {reason}"
        for used in list_patterns(path)
        if (reason := find_slow(used))
    ]
    assert not slow


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"(\w+)\s*=\s*([^,\n]+)", "findall"),
        (r"\s+$", "sub"),
        (r"<!--.*?-->", "findall"),
        (r"(a+)+b", "fullmatch"),
        (r"\s*([0-9]+)\s*:\s*(\S.*?)\s*", "fullmatch"),
        (r"x*y", "search"),
    ],
)
def test_a_quadratic_pattern_is_found(text: str, method: str) -> None:
    used = UsedPattern(name="bad", pattern=re.compile(text), methods=(method,))
    assert "takes over" in find_slow(used)
