# SPDX-License-Identifier: Apache-2.0
"""Commands of other packages are loaded by entry points."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

from nova_accel.cli import commands
from nova_accel.discovery import plugin

Output = pytest.CaptureFixture[str]
_POINTS = """\
[nova_accel.commands]
broken = no_such_package.commands
fine = brought
odd = json
"""
_BROUGHT = """\
def add(subparsers):
    parser = subparsers.add_parser("fine", help="all of it")
    parser.add_argument("word")

def run(arguments):
    return arguments.word + "!"
"""


@pytest.fixture
def brought(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """Install a package with commands: one that works, and two not."""
    info = tmp_path / "brought-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: brought\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(_POINTS)
    (tmp_path / "brought.py").write_text(_BROUGHT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("brought")
def test_a_command_of_another_package_runs(capsys: Output) -> None:
    assert commands.main(["fine", "word"]) == 0
    assert capsys.readouterr().out == "word!"


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "No module named 'no_such_package'"),
        ("odd", "json is no command"),
    ],
)
def test_one_that_fails_says_why(capsys: Output, name: str, why: str) -> None:
    assert commands.main([name, "word"]) == 2
    words = capsys.readouterr().err
    assert words.startswith(f"nova-accel: command {name}: ")
    assert why in words and words.count("\n") == 1


@pytest.mark.usefixtures("brought")
def test_the_help_names_them_all(capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("inspect", "fine", "all of it", "broken", "flavor"):
        assert word in text


def test_the_help_of_profiles_tells_what_most_leaves_out(
    capsys: Output,
) -> None:
    with pytest.raises(SystemExit):
        commands.main(["profile", "list", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "MOST" in help_text and "max_slots" in help_text


@pytest.mark.usefixtures("brought")
def test_the_others_run_beside_a_broken_one(
    capsys: Output, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "host" / "sys").mkdir(parents=True)
    assert commands.main(["inspect", "--root", str(tmp_path / "host")]) == 0
    assert capsys.readouterr().err == ""


def test_ours_are_installed() -> None:
    entry_points = importlib.metadata.entry_points(group=plugin.COMMANDS_GROUP)
    assert {"flavor", "profile"} <= {point.name for point in entry_points}
    for name in ("flavor", "profile"):
        assert isinstance(plugin.load_command(name), plugin.Command)


def test_inspect_loads_no_client_of_openstack(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "sys").mkdir()
    code = (
        "import sys; from nova_accel.cli import commands;"
        f"commands.main(['inspect', '--root', {str(tmp_path)!r}]);"
        "sys.exit(bool({'openstack', 'placement_sync'} & set(sys.modules)))"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
