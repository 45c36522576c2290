# SPDX-License-Identifier: Apache-2.0
"""Corrections of a host that are printed in a text, as values.

Commands read the phrases of ``nova_accel.config.remedy`` in what a vendor
driver reports.
"""

import json
import re
from collections.abc import Callable, Iterator

from nova_accel.config import remedy

_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
# A value in a line of device_spec: a text, a number, an array of texts, or an
# object of numbers.
_TEXT = r'"(?:[^"\\\n]|\\[^\n]){0,1100}"'
_VALUE = (
    rf"(?:{_TEXT}|\d{{1,5}}|\[(?:{_TEXT},? ?){{0,100}}\]"
    rf"|\{{(?:{_TEXT}: \d{{1,5}},? ?){{0,100}}\}})"
)
_LINE = re.compile(
    rf'device_spec = (\{{"address": "{_ADDRESS}"'
    rf'(?:, "\w{{1,20}}": {_VALUE}){{0,20}}\}})'
)
_BIND = re.compile(rf"bind ({_ADDRESS}) to ([\w-]{{1,40}})")
_BIND_VFS = re.compile(
    rf"bind the virtual functions of ({_ADDRESS})"
    r" (?:on ([\w-]{1,40})|without a driver) to ([\w-]{1,40})"
)
_WRITE = re.compile(rf"write (\w{{1,20}}) to ([\w/]{{1,60}}) of ({_ADDRESS})")
_MOVE = re.compile(rf"put the card of ({_ADDRESS}) in a slot of its own")
_ISOLATE = re.compile(
    rf"switch on ACS and ARI in the firmware for ({_ADDRESS})"
)
_SRIOV = re.compile(rf"switch on SR-IOV in the firmware for ({_ADDRESS})")
_LOAD = re.compile(r"load the module (\w{1,40})")
_INSTALL = re.compile(r"install ([^;\n]{1,160}) \(module (\w{1,40})\)")

_PATTERNS: tuple[
    tuple[re.Pattern[str], Callable[[re.Match[str]], remedy.Remedy]], ...
] = (
    (_LINE, lambda match: remedy.SpecLine.build(json.loads(match[1]))),
    (
        _BIND,
        lambda match: remedy.BindFunction(function=match[1], driver=match[2]),
    ),
    (
        _BIND_VFS,
        lambda match: remedy.BindVfs(
            function=match[1], before=match[2] or "", driver=match[3]
        ),
    ),
    (
        _WRITE,
        lambda match: remedy.WriteAttribute(
            function=match[3], name=match[2], value=match[1]
        ),
    ),
    (_MOVE, lambda match: remedy.MoveCard(function=match[1])),
    (_ISOLATE, lambda match: remedy.IsolateFunctions(function=match[1])),
    (_SRIOV, lambda match: remedy.EnableSriov(function=match[1])),
    (_LOAD, lambda match: remedy.LoadModule(module=match[1])),
    (
        _INSTALL,
        lambda match: remedy.InstallModule(package=match[1], module=match[2]),
    ),
)

# Between two corrections of which the second one follows the first.
_THEN = ", then "


def find(text: str) -> Iterator[remedy.Remedy]:
    """Yield the corrections whose phrases are in a text."""
    for steps in find_alternatives(text):
        yield from steps


def find_alternatives(text: str) -> Iterator[tuple[remedy.Remedy, ...]]:
    """Yield the ways to correct a host that are in a text.

    Each way is one correction, or several that follow one another.
    """
    matches = sorted(
        (
            (match, build(match))
            for pattern, build in _PATTERNS
            for match in pattern.finditer(text)
        ),
        key=lambda item: item[0].start(),
    )
    steps: list[remedy.Remedy] = []
    end = 0
    for match, step in matches:
        if steps and _THEN not in text[end : match.start()]:
            yield tuple(steps)
            steps = []
        steps.append(step)
        end = match.end()
    if steps:
        yield tuple(steps)
