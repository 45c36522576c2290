# SPDX-License-Identifier: Apache-2.0
"""A command has one name in all texts, though several programs have it."""

import re

from tests.unit.house import sources

# The program that texts name for each command, or its first word.
PROGRAMS = {
    **dict.fromkeys(
        ("run", "drain", "undrain", "status", "audit"), "placement-sync"
    ),
    **dict.fromkeys(
        ("device", "host", "allocation", "usage", "report"), "openstack accel"
    ),
    **dict.fromkeys(
        ("inspect", "doctor", "capture", "heal", "driver", "explain"),
        "nova-accel",
    ),
    **dict.fromkeys(
        ("flavor", "profile", "server", "license", "capacity"), "nova-accel"
    ),
    "sync": "no program: write placement-sync run,",
}
_WORDS = "|".join(PROGRAMS)
COMMAND = re.compile(
    rf"\b(placement-sync|openstack accel|nova-accel)\s+({_WORDS})\b"
)
# Examples that each program prints with its own name, the generated page of
# all commands, and the sentence that says so.
SEVERAL = {
    "placement_sync/cli/commands.py",
    "placement_sync/fleet/cli/commands.py",
    "doc/source/reference/cli.rst",
}
SENTENCE = "``nova-accel sync``"
DIRECTORIES = (*sources.PACKAGES, "contrib", "doc", "README.rst")
SUFFIXES = {".py", ".rst", ".md", ".j2", ".yaml", ".yml", ".service"}


def test_each_command_has_one_name() -> None:
    hits = []
    for path in sources.FILES:
        name = sources.relative(path)
        if (
            name.startswith(DIRECTORIES)
            and path.suffix in SUFFIXES
            and name not in SEVERAL
        ):
            text = path.read_text().replace(SENTENCE, "")
            hits += [
                f"{name}: {match[0]!r} is a command of {PROGRAMS[match[2]]}"
                for match in COMMAND.finditer(text)
                if match[1] != PROGRAMS[match[2]]
            ]
    assert not hits, "\n".join(hits)


def test_a_second_name_is_found() -> None:
    (match,) = COMMAND.finditer("run nova-accel undrain 0000:41:00.0")
    assert PROGRAMS[match[2]] == "placement-sync"
