# SPDX-License-Identifier: Apache-2.0
"""Commands of this project on pages, and the tests that run them.

A command in a console block, or with arguments in a sentence, is run by
``test_commands_run``, by a test of ``ELSEWHERE``, or in the lab; else its
block has the mark ``.. illustration``. A command without arguments in a
sentence is a name.
"""

import dataclasses
import functools
import re
import shlex

from tests.unit.docs import pages

Words = tuple[str, ...]

PROGRAMS = (
    *("nova-accel", "openstack accel", "placement-sync"),
    "python -m nova_accel.conformance",
)
#: Tests that run commands which ``test_commands_run`` can't: Nova, a message
#: bus or an installed driver is needed. Each has the words, which begin the
#: command or are options of it.
ELSEWHERE: dict[Words, str] = {
    **dict.fromkeys(
        (("nova-accel", "adopt"), ("nova-accel", "adopt", "--from")),
        "tests/functional/nova/adoption/adopting.py",
    ),
    **dict.fromkeys(
        (
            ("nova-accel", "remove"),
            ("nova-accel", "remove", "--move"),
            ("nova-accel", "remove", "--extra-specs"),
            ("nova-accel", "remove", "--cleaned"),
        ),
        "tests/functional/nova/switch/test_leaving.py",
    ),
    (
        *("openstack", "accel", "device", "set"),
        *("--drain", "--reason", "--migrate"),
    ): "tests/functional/nova/attach/test_device_command.py",
    (
        *("openstack", "accel", "server", "detach"),
    ): "tests/functional/nova/attach/test_command.py",
    (
        *("openstack", "accel", "server", "attach"),
        *("--profile", "--bitstream"),
    ): "tests/functional/nova/attach/test_command.py",
    **dict.fromkeys(
        (
            ("openstack", "accel", "stock", "list"),
            ("openstack", "accel", "stock", "list", "--flavor", "--wait"),
        ),
        "tests/functional/sync/fleet/test_stock.py",
    ),
    (
        *("openstack", "accel", "plan", "defragment"),
        *("--profile", "--output"),
    ): "tests/functional/sync/fleet/test_defragmentation.py",
    (
        *("openstack", "accel", "plan", "apply"),
    ): "tests/functional/sync/fleet/test_defragmentation.py",
    (
        *("python", "-m"),
        "--root",
    ): "tests/unit/nova_accel/conformance/test_command.py",
    (
        *("python", "-m"),
        *("--root", "--root"),
    ): "tests/unit/nova_accel/conformance/test_command.py",
    ("placement-sync", "run"): "tests/functional/sync/commands/test_daemon.py",
}
# A line of a transcript in the lab: user, machine and command.
_TRANSCRIPT = re.compile(r"^\w+@\w+\$ (openstack accel .*)$", re.MULTILINE)
_NAME = re.compile(
    r"(nova-accel|placement-sync|openstack accel)( [a-z]+){1,2}"
)


@dataclasses.dataclass(frozen=True, slots=True)
class OwnCommands:
    """Commands by the place of their run; no command is in two of them."""

    here: frozenset[Words]
    lab: frozenset[Words]
    elsewhere: frozenset[Words]
    illustrations: frozenset[Words]


@functools.cache
def classify() -> OwnCommands:
    """Return all commands of the pages by the place of their run."""
    marked: set[Words] = set()
    plain: set[Words] = set()
    for page in pages.PAGES:
        text = page.read_text()
        for command, is_marked in pages.marked_console_lines(text):
            (marked if is_marked else plain).add(tuple(pages.split(command)))
        plain.update(
            tuple(pages.split(command))
            for command in pages.inline_commands(text)
            if not _NAME.fullmatch(command)
        )
    marked, plain = set(filter(_is_own, marked)), set(filter(_is_own, plain))
    shapes = {_shape(words) for words in _read_transcripts()}
    elsewhere = {words for words in plain if _shape(words) in ELSEWHERE}
    lab = {words for words in plain - elsewhere if _shape(words) in shapes}
    return OwnCommands(
        frozenset(plain - elsewhere - lab),
        frozenset(lab),
        frozenset(elsewhere),
        frozenset(marked - plain),
    )


def _is_own(words: Words) -> bool:
    return f"{' '.join(words)} ".startswith(tuple(f"{p} " for p in PROGRAMS))


def _shape(words: Words) -> Words:
    """Return the words that name the command, and the options' names."""
    count = 4 if words[:2] == ("openstack", "accel") else 2
    verbs = [word for word in words[:count] if re.fullmatch("[a-z-]+", word)]
    return (*verbs, *(w for w in words[len(verbs) :] if w.startswith("--")))


def _read_transcripts() -> set[Words]:
    """Return the commands that the lab's tests of the message bus have run."""
    return {
        tuple(shlex.split(line))
        for name in ("attach", "drain")
        for line in _TRANSCRIPT.findall(
            (pages.ROOT / f"tests/golden/fleet/lab-{name}.txt").read_text()
        )
        if " server " in line or " device set " in line or " heal " in line
    }
