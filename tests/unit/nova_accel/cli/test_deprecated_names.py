# SPDX-License-Identifier: Apache-2.0
"""A command has one name; names of the release before still work."""

import configparser
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

import pytest

from nova_accel.cli import application, command_manager, commands
from placement_sync.cli import main

ROOT = pathlib.Path(__file__).parents[4]
Output = pytest.CaptureFixture[str]
# A program's main function and its arguments.
Call = tuple[Callable[[Sequence[str]], int], Sequence[str]]
# Nothing answers at the port of the discard service.
_URL = "http://127.0.0.1:9"
_NO_CLOUD = ("--endpoint", _URL, "--compute-endpoint", _URL)
_SIZES = ("--vcpus", "1", "--ram", "1", "--disk", "1")
_DRAIN = ("--drain", "--reason", "r")
# Arguments of each command of the cloud, and one that has other options.
CLOUD: Mapping[str, Sequence[str]] = {
    "allocation list": _NO_CLOUD,
    "capacity show": ("--flavor", "f", *_NO_CLOUD),
    "device heal": ("n/a", *_NO_CLOUD),
    "device list": ("--json", *_NO_CLOUD),
    "device set": ("n/a", *_DRAIN, *_NO_CLOUD),
    "device show": ("n/a", *_NO_CLOUD),
    "explain": ("--flavor", "f", *_NO_CLOUD),
    "flavor create": ("f", *_SIZES, "--profile", "p", *_NO_CLOUD),
    "flavor import": ("/dev/null", *_NO_CLOUD),
    "flavor set": ("f", "--profile", "p", *_NO_CLOUD),
    "flavor show": ("f", *_NO_CLOUD),
    "host list": _NO_CLOUD,
    "profile list": _NO_CLOUD[:2],
    "report": ("--format", "json", *_NO_CLOUD),
    "server attach": ("s", "--profile", "p", *_NO_CLOUD),
    "server detach": ("s", *_NO_CLOUD),
    "server show": ("s", *_NO_CLOUD),
    "usage list": _NO_CLOUD,
}
# Arguments of the verbs that ``placement-sync`` had beside ``run``.
VERBS: Mapping[str, Sequence[str]] = {
    "audit": ("--host", "n", "--endpoint", _URL),
    "drain": (),
    "status": (),
    "undrain": ("3b:00.0",),
}


def read_setup(group: str) -> list[str]:
    """Return the names of the commands in setup.cfg, with spaces."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"][group].strip().splitlines()
    return [line.split()[0].replace("_", " ") for line in lines]


def test_a_command_is_registered_once() -> None:
    names = [
        *read_setup(command_manager.HOST_GROUP),
        *read_setup(command_manager.CLOUD_GROUP),
    ]
    setup = (ROOT / "setup.cfg").read_text()
    classes = re.findall(r"= (\S+commands:[A-Z]\w+)", setup)
    assert len(classes) == len({*classes}) == len(names)


def test_each_name_of_the_release_before_is_known() -> None:
    cloud = read_setup(command_manager.CLOUD_GROUP)
    assert {f"accel {name}" for name in CLOUD} < {*cloud}
    assert {*VERBS} < {*read_setup(command_manager.HOST_GROUP)}


@pytest.mark.parametrize("name", CLOUD)
def test_nova_accel_prints_the_present_name(capsys: Output, name: str) -> None:
    words = [*name.split(), *CLOUD[name]]
    points = command_manager.load_points(command_manager.CLOUD_GROUP)
    program = build("nova-accel", name, points[f"accel {name}"])
    status, out = compare(
        capsys,
        (commands.main, words),
        (program.main, words),
        f"nova-accel: `nova-accel {name}` is deprecated and ends with the next"
        f" release; use `openstack accel {name}`",
    )
    assert status, out


@pytest.mark.parametrize("name", VERBS)
def test_placement_sync_prints_the_present_name(
    capsys: Output, tmp_path: pathlib.Path, name: str
) -> None:
    words = [name, *VERBS[name], "--state-dir", str(tmp_path)]
    points = command_manager.load_points(command_manager.HOST_GROUP)
    program = build("placement-sync", name, points[name])
    status, _ = compare(
        capsys,
        (main.main, words),
        (program.main, words),
        f"placement-sync: `placement-sync {name}` is deprecated and ends with"
        f" the next release; use `nova-accel {name}`",
    )
    assert bool(status) == (name != "drain")


def build(
    program: str, name: str, point: command_manager.CommandPoint
) -> application.Application:
    """Return a program with one command."""
    manager = command_manager.CommandManager({name: point}, dict)
    return application.Application(program, "", manager)


def compare(
    capsys: Output, deprecated: Call, present: Call, expected: str
) -> tuple[int, str]:
    """Return the status and output that a deprecated and a present call have.

    :param expected: the line that the deprecated one prints before.
    """
    run, words = deprecated
    status, out, err = execute(run, capsys, words)
    line, _, rest = err.partition("\n")
    assert line == expected
    run, words = present
    assert execute(run, capsys, words) == (status, out, rest)
    return status, out


def execute(
    run: Callable[[Sequence[str]], int], capsys: Output, words: Sequence[str]
) -> tuple[int, str, str]:
    status = run(words)
    return status, *capsys.readouterr()


def test_the_present_names_print_no_line(
    capsys: Output, tmp_path: pathlib.Path
) -> None:
    status = commands.main(["status", "--state-dir", str(tmp_path)])
    assert status == 1 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words", [["status"], ["drain"], ["audit", "--host", "n"]]
)
def test_json_is_a_format(
    capsys: Output, tmp_path: pathlib.Path, words: list[str]
) -> None:
    words = [*words, "--state-dir", str(tmp_path), *_NO_CLOUD[:2]]
    status, out = compare(
        capsys,
        (commands.main, [*words, "--json"]),
        (commands.main, [*words, "-f", "json"]),
        "nova-accel: `--json` is deprecated and ends with the next release;"
        " use `-f json`",
    )
    assert out.startswith("{") == (status == 0 or words[0] == "status")


def test_each_command_with_json_has_the_format(capsys: Output) -> None:
    for name in (*read_setup(command_manager.HOST_GROUP), *CLOUD):
        commands.main([*name.split(), "--help"])
        text = capsys.readouterr().out
        assert ("--json" not in text) or ("-f " in text), name
