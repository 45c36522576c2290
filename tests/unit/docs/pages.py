# SPDX-License-Identifier: Apache-2.0
"""Pages of the manual: their text, their commands, and their extension."""

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MANUAL = ROOT / "doc/source"
PAGES = [
    ROOT / "README.rst",
    ROOT / "CONTRIBUTING.rst",
    *sorted(MANUAL.rglob("*.rst")),
]
# A console block with its mark, up to the next line that is not indented
# deeper.
_CONSOLE = re.compile(
    r"^( *)(\.\. illustration(?:: [^\n]*(?:\n\1   .*)*)?\n\n\1)?"
    r"\.\. code-block:: console\n((?:\1 +.*\n|\n)+)",
    re.MULTILINE,
)
# Prompt of a line in a console block: root's, or a user's.
_PROMPT = re.compile(r"^ +[#$] (.*)$")
# A program and at least one argument, in an inline literal; no message.
_INLINE = re.compile(
    r"``((?:nova-accel|placement-sync|tests/run|tests/lab/lab) [^`']+)``"
)


# Extensions import each other by their names.
sys.path.append(str(MANUAL / "_ext"))


def extension(name: str) -> Any:
    """Return a module of ``doc/source/_ext``."""
    return importlib.import_module(name)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def console_lines(text: str) -> Iterator[str]:
    """Yield the commands of console blocks, continuation lines joined."""
    for command, _ in marked_console_lines(text):
        yield command


def marked_console_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the commands of console blocks, and whether a block is marked.

    The comment ``.. illustration`` before a block marks commands that no test
    runs.
    """
    for block in _CONSOLE.finditer(text):
        lines = iter(block[3].splitlines())
        for line in lines:
            if match := _PROMPT.match(line):
                command = match[1]
                while command.endswith("\\"):
                    command = command[:-1] + next(lines).strip()
                yield command, bool(block[2])


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a page, without pipes."""
    for command in (*console_lines(text), *inline_commands(text)):
        if words := split(command):
            yield words


def inline_commands(text: str) -> Iterator[str]:
    """Yield the commands in inline literals."""
    for match in _INLINE.finditer(text):
        yield re.sub(r"\s+", " ", match[1])


def split(command: str) -> list[str]:
    """Return the words of a command, without pipes."""
    words = shlex.split(command, comments=True)
    for stop in ("|", ">", "&&"):
        if stop in words:
            words = words[: words.index(stop)]
    return words
