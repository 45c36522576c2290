# SPDX-License-Identifier: Apache-2.0
"""Transcript of commands with all that they print, in one golden file.

Each test has a section of the file, and writes that section only. What
changes from run to run is replaced: directories, ports, uuids and times.
"""

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import requests

from nova_accel.cli import command_manager
from tests.functional.sync.commands import programs
from tests.support import golden

PATH = golden.PLACE / "commands" / "messages.txt"
_HEAD = "==== "
_FIRST = """\
Commands with what they print, as tests in tests/functional/sync/messages and
test_leaving_messages.py record it. Lines of standard error begin with "! ",
and a status other than 0 is behind the command. Requests of services are
there with the texts of refusals.

"""
_CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "N s"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r" by (?!hand:)\w+: "), " by USER: "),
    (re.compile(r"\(\w+\) \(since"), "(USER) (since"),
    (re.compile(r"0x[0-9a-f]{8,}"), "0xADDRESS"),
    (re.compile(r"\breq-UUID\b"), "REQUEST"),
    (re.compile(r"nova-accel \d+\.\d+\.\S+"), "nova-accel VERSION"),
    (re.compile(r"sampled \S+ \w+ ago"), "sampled N s ago"),
    # A service that has just started may not have reported yet.
    (
        re.compile(r"(?<=[( ])(no report ever|last report \dm ago)(?=\))"),
        "REPORT",
    ),
    (re.compile(r" +\n"), "\n"),
)
_WAIT = re.compile(r"\S+: waiting for ")
_OWN = frozenset(command_manager.load_points(command_manager.HOST_GROUP))


class Transcript:
    """Runs commands in this process, and collects what they print.

    :param names: texts by the directory or address that they replace.
    :param main: runs a command, and returns its exit status.
    :param program: its name, by default that of the command.
    """

    def __init__(
        self,
        capsys: pytest.CaptureFixture[str],
        names: dict[str, str],
        main: Callable[[list[str]], int] = programs.main,
        program: str = "",
    ) -> None:
        self._capsys = capsys
        self._program = program
        self._names = names
        self._main = main
        self._texts: list[str] = []
        #: Text of the lines about waits that are recorded.
        self.wait = ""

    def run(self, command: str, *hidden: str) -> str:
        """Run a command line, and hidden options; return what it printed.

        :raises AssertionError: it printed a traceback.
        """
        words = shlex.split(command)
        self._capsys.readouterr()
        try:
            status = self._main([*words, *hidden])
        except SystemExit as end:
            status = int(str(end.code))
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err, err
        errors = "".join(f"! {line}\n" for line in _drop_usage(err, self.wait))
        ending = f"  [{status}]" if status else ""
        program = self._program or _find_program(words)
        text = f"$ {program} {command}{ending}\n{out}{errors}"
        self._texts.append(self._replace(text))
        return out + err

    def add(self, text: str) -> None:
        """Record the text of a file that a command wrote."""
        self._texts.append(self._replace(text))

    def request(
        self,
        method: str,
        url: str,
        path: str,
        token: str = "",
        body: Any = None,
    ) -> None:
        """Send a request to a service, and record the text of its refusal."""
        headers = {"X-Auth-Token": token} if token else {}
        answer = requests.request(
            method, url + path, json=body, headers=headers, timeout=30
        )
        (error,) = answer.json()["errors"]
        sent = " without a token" * (not token)
        sent += f" {json.dumps(body)}" * (body is not None)
        text = f"{method} {path}{sent}  [{answer.status_code}]"
        self._texts.append(self._replace(f"{text}\n{error['detail']}\n"))

    def check(self, title: str) -> None:
        """Compare the transcript with its section of the file."""
        text = "\n".join(self._texts)
        golden.check(PATH, _join({**read_sections(), title: text}))

    def _replace(self, text: str) -> str:
        for value, name in sorted(self._names.items(), key=_by_length):
            text = text.replace(value, name)
        for pattern, replacement in _CHANGING:
            text = pattern.sub(replacement, text)
        return text


def read_sections() -> dict[str, str]:
    """Return the sections of the file, by their titles."""
    content = PATH.read_text() if PATH.exists() else ""
    parts = content.split(f"\n{_HEAD}")[1:]
    return {
        title: body.strip("\n") + "\n"
        for title, _, body in (part.partition("\n") for part in parts)
    }


def _join(sections: dict[str, str]) -> str:
    return _FIRST + "".join(
        f"\n{_HEAD}{title}\n\n{sections[title]}" for title in sorted(sections)
    )


def _by_length(item: tuple[str, str]) -> int:
    return -len(item[0])


def _drop_usage(text: str, wait: str) -> list[str]:
    """Return the lines of an error output without argparse's usage."""
    # A busy machine waits where another one does not.
    lines = [
        line
        for line in text.splitlines()
        if not _WAIT.match(line) or (wait and wait in line)
    ]
    if lines and lines[0].startswith("usage: "):
        return lines[-1:]
    return lines


def _find_program(words: list[str]) -> str:
    if words[:1] == ["run"]:
        return "placement-sync"
    is_own = any(" ".join(words[:n]) in _OWN for n in (1, 2))
    return "nova-accel" if is_own else "openstack accel"
