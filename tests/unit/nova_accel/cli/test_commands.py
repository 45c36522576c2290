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
fine = sample
odd = json
"""
_COMMAND = """\
def add(subparsers):
    parser = subparsers.add_parser("fine", help="all of it")
    parser.add_argument("word")

def run(arguments):
    return arguments.word + "!"
"""


@pytest.fixture
def sample(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """Install a package with three commands; only one of them works."""
    info = tmp_path / "sample-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sample\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(_POINTS)
    (tmp_path / "sample.py").write_text(_COMMAND)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("sample")
def test_a_command_of_another_package_runs(capsys: Output) -> None:
    assert commands.main(["fine", "word"]) == 0
    assert capsys.readouterr().out == "word!"


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "No module named 'no_such_package'"),
        ("odd", "json is no command"),
    ],
)
def test_a_command_that_cant_be_loaded_has_a_reason(
    capsys: Output, name: str, why: str
) -> None:
    assert commands.main([name, "word"]) == 2
    words = capsys.readouterr().err
    assert words.startswith(f"nova-accel: command {name}: ")
    assert why in words and words.count("\n") == 1


@pytest.mark.usefixtures("sample")
def test_help_lists_the_commands_of_all_packages(capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("inspect", "fine", "all of it", "broken", "flavor"):
        assert word in text


def test_help_of_profile_list_explains_most(
    capsys: Output,
) -> None:
    with pytest.raises(SystemExit):
        commands.main(["profile", "list", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "MOST" in help_text and "max_slots" in help_text


@pytest.mark.usefixtures("sample")
def test_other_commands_run_beside_a_broken_one(
    capsys: Output, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "host" / "sys").mkdir(parents=True)
    assert commands.main(["inspect", "--root", str(tmp_path / "host")]) == 0
    assert capsys.readouterr().err == ""


def test_flavor_and_profile_are_installed() -> None:
    entry_points = importlib.metadata.entry_points(group=plugin.COMMANDS_GROUP)
    assert {"flavor", "profile"} <= {point.name for point in entry_points}
    for name in ("flavor", "profile"):
        assert isinstance(plugin.load_command(name), plugin.Command)


def test_inspect_imports_no_openstack_client(
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
