# SPDX-License-Identifier: Apache-2.0
"""All texts have the present names of commands and options.

A command about a host is one of ``nova-accel``, one about the cloud one of
``openstack accel``; ``placement-sync`` has ``run`` alone.
"""

import configparser
import re

import pytest

from tests.unit.house import sources

_SETUP = configparser.ConfigParser()
_SETUP.read(sources.ROOT / "setup.cfg")
_POINTS = _SETUP["options.entry_points"]


def read_words(group: str, prefix: str = "") -> set[str]:
    """Return the first word of each command of a group."""
    names = [line.split()[0] for line in _POINTS[group].strip().splitlines()]
    return {name.removeprefix(prefix).partition("_")[0] for name in names}


# The program that texts name for each command, by its first word.
PROGRAMS = {
    **dict.fromkeys(read_words("nova_accel.commands"), "nova-accel"),
    **dict.fromkeys(
        read_words("openstack.accel.v1", "accel_"), "openstack accel"
    ),
    "run": "placement-sync",
    "sync": "no program: write placement-sync run,",
}
_WORDS = "|".join(PROGRAMS)
COMMAND = re.compile(
    rf"\b(placement-sync|openstack accel|nova-accel)\s+({_WORDS})\b(?!-)"
)
# Sentences that say which names are equal.
SENTENCES = re.compile(r"``nova-accel\s+sync``")
# Two literals of a text that is wrapped.
WRAPPED = re.compile(r'"\s*\n\s*f?"')
DIRECTORIES = (*sources.PACKAGES, "contrib", "doc", "README.rst")
SUFFIXES = {".py", ".rst", ".md", ".j2", ".yaml", ".yml", ".service"}

# The option that -f json replaced.
JSON = re.compile(r"--json\b")


def find_old_names(text: str) -> list[str]:
    text = SENTENCES.sub("", WRAPPED.sub("", text))
    hits = ["--json is now -f json"] * bool(JSON.search(text))
    return hits + [
        f"{match[0]!r} is a command of {PROGRAMS[match[2]]}"
        for match in COMMAND.finditer(text)
        if match[1] != PROGRAMS[match[2]]
    ]


def test_no_text_has_an_old_name() -> None:
    hits = [
        f"{name}: {hit}"
        for path in sources.FILES
        if (name := sources.relative(path)).startswith(DIRECTORIES)
        and path.suffix in SUFFIXES
        and (text := path.read_text())
        for hit in find_old_names(text)
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    "text",
    [
        "run placement-sync undrain 0000:41:00.0",
        "see ``nova-accel\nprofile list``",
        '" see `nova-accel"\n    f" flavor set`"',
        "openstack accel audit",
        "nova-accel sync",
        "run ``nova-accel audit --json``",
    ],
)
def test_an_old_name_is_found(text: str) -> None:
    assert len(find_old_names(text)) == 1
