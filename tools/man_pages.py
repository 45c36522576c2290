# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions of the commands, from their parsers.

The packages install the files below contrib/man and contrib/bash-completion,
since a build has none of the libraries that the commands need. A test
compares them; write them with ``NOVA_ACCEL_UPDATE_GOLDEN=1``.
"""

import argparse
import contextlib
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping

from nova_accel.cli import command_manager, commands
from placement_sync.cli import main

_CONTRIB = pathlib.Path(__file__).parents[1] / "contrib"
_VERSION = re.compile(r'^NUMBER = "(.+)"$', re.MULTILINE)
_TEXT = "accelerators of OpenStack"
_FILES = """\
.SH FILES
.TP
.I /etc/nova/nova.conf
The options [nova_accel], and the credentials [placement] and [nova].
.TP
.I /var/lib/nova/accel
Drained and faulted devices, claims of servers, and the status of passes.
.SH EXIT STATUS
0 if all is done; 1 if something was left undone or refused, or a service could
not be reached; 2 for input that can't be used, with one line on standard error
that says what to correct; 130 for Ctrl\\-C. The status of
.B nova\\-accel doctor
is that of its worst result.
"""


def render_all() -> Mapping[pathlib.Path, str]:
    """Return the content of each file, by its path."""
    sync = {"run": _load(command_manager.HOST_GROUP)["sync"]}
    return {
        _CONTRIB / "man/nova-accel.1": _render_page(
            "nova-accel", _load(command_manager.HOST_GROUP)
        ),
        _CONTRIB / "man/openstack-accel.1": _render_page(
            "openstack", _load(command_manager.CLOUD_GROUP), "openstack-accel"
        ),
        _CONTRIB / "man/placement-sync.1": _render_page(
            "placement-sync", sync
        ),
        _CONTRIB / "bash-completion/nova-accel": _complete(commands.main),
        _CONTRIB / "bash-completion/placement-sync": _complete(main.main),
    }


def read_number() -> str:
    """Return the number of the release, of setup.py."""
    (number,) = _VERSION.findall((_CONTRIB.parent / "setup.py").read_text())
    return str(number)


def _load(group: str) -> command_manager.Points:
    return command_manager.load_points(group)


def _complete(run: Callable[[list[str]], int]) -> str:
    """Return the script that the command ``complete`` prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        run(["complete"])
    return output.getvalue()


def _render_page(
    program: str, points: command_manager.Points, title: str = ""
) -> str:
    title = title or program
    lines = [
        f'.TH {title.upper()} 1 "" "nova-accel {read_number()}"'
        ' "User Commands"',
        ".SH NAME",
        f"{_escape(title)} \\- {_TEXT}",
        ".SH SYNOPSIS",
        f".B {_escape(program)}",
        "COMMAND [options]",
        ".SH COMMANDS",
    ]
    for name in sorted(points):
        factory = points[name].load()
        parser = factory(None, None).get_parser(f"{program} {name}")
        lines += _render_command(parser)
    return "\n".join(lines) + "\n" + _FILES


def _render_command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f'.SS "{_escape(parser.prog)}"'
    yield _escape(parser.description or "")
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or "--help" in (
            action.option_strings
        ):
            continue
        yield ".TP"
        yield f".B {_escape(_format_names(action))}"
        yield _escape(" ".join(formatter._expand_help(action).split()))


def _format_names(action: argparse.Action) -> str:
    value = action.metavar or "|".join(map(str, action.choices or ()))
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return value or action.dest
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = value or action.dest.upper()
    return f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"


def _escape(text: str) -> str:
    """Return a text for roff; a line must not begin with a control."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
