# SPDX-License-Identifier: Apache-2.0
"""Commands of other packages are loaded by entry points."""

import argparse
import pathlib
import re
import subprocess
import sys

import pytest

from nova_accel.cli import command_manager, commands
from placement_sync.cli import common_options

Output = pytest.CaptureFixture[str]
_POINTS = """\
[nova_accel.commands]
broken = no_such_package.commands:Broken
fine_list = sample:FineList
fine_word = sample:Fine
odd = json:dumps
"""
_COMMAND = """\
from cliff import command

from nova_accel.cli import application

class Fine(command.Command):
    "All of it."

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument("word")
        return parser

    def take_action(self, arguments):
        self.app.stdout.write(arguments.word + "!")


class FineList(application.ListCommand):
    "Rows of it."

    action = "sample:ACTION"


def run(arguments):
    name = "\\x1b[2J\\u202evm"
    return application.Table(
        ("Name", "Text"), [(name, application.Cell(1, name))], name, name
    )


ACTION = application.Action(lambda parser: None, run)
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
    assert commands.main(["fine", "word", "word"]) == 0
    assert capsys.readouterr().out == "word!"


@pytest.mark.usefixtures("sample")
def test_a_table_has_no_control_characters(capsys: Output) -> None:
    assert commands.main(["fine", "list"]) == 0
    text = capsys.readouterr().out
    assert text.count("?[2J?vm") == 4
    assert text.replace("\n", "").isprintable()


@pytest.mark.usefixtures("sample")
def test_the_formats_for_programs_have_the_characters(capsys: Output) -> None:
    assert commands.main(["fine", "list", "-f", "value", "-c", "Name"]) == 0
    assert capsys.readouterr().out == "\x1b[2J\u202evm\n"


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    "words", [["--config-file", "fine"], ["--root=fine", "--host", "x"]]
)
def test_options_may_precede_the_command(
    capsys: Output, words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        commands.main([*words, "fine", "word", "word"])
    error = capsys.readouterr().err
    assert f"unrecognized arguments: {words[0]}" in error


def test_options_that_may_precede_are_those_of_commands() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    common_options.add_arguments(parser)
    common_options.add_compute_endpoint(parser)
    assert {*command_manager.GLOBAL_OPTIONS} == {
        *parser._option_string_actions
    }


@pytest.mark.usefixtures("sample")
def test_help_lists_the_commands_of_all_packages(capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("inspect", "fine word", "All of it", "broken", "drain"):
        assert word in text
    assert "flavor set" not in text


@pytest.mark.usefixtures("sample")
def test_other_commands_run_beside_a_broken_one(
    capsys: Output, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "host" / "sys").mkdir(parents=True)
    assert commands.main(["inspect", "--root", str(tmp_path / "host")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([], "no command"),
        (["nothing"], "unknown command: nothing"),
        (["drian"], "unknown command: drian (nearest: drain)"),
        (["driver"], "unknown command: driver"),
        (["flavor"], "unknown command: flavor"),
        (["nothing", "--help"], "unknown command: nothing"),
    ],
)
def test_a_line_without_a_command_is_refused(
    capsys: Output, words: list[str], cause: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    choice = "use one of: adopt apply, adopt plan, "
    assert f"nova-accel: error: {cause}; {choice}" in error
    assert "driver remove, driver status" in error
    assert "flavor set" not in error


def test_help_lists_the_commands_of_a_prefix(capsys: Output) -> None:
    assert commands.main(["driver", "--help"]) == 0
    assert capsys.readouterr().out.split()[-4:] == [
        *("driver", "remove", "driver", "status")
    ]


def test_the_completion_knows_commands_and_options(capsys: Output) -> None:
    assert commands.main(["complete"]) == 0
    script = capsys.readouterr().out
    assert "cmds_driver='install plan remove status'" in script
    assert re.search("cmds_driver_plan='.*--sort-column", script)
    assert "flavor" not in script


def test_the_option_debug_prints_the_traceback(
    capsys: Output, tmp_path: pathlib.Path
) -> None:
    words = ["inspect", "--root", str(tmp_path)]
    assert commands.main(["--debug", *words]) == commands.main(words) == 2
    first, _, second = capsys.readouterr().err.rpartition("\nnova-accel: ")
    assert first.startswith("Traceback") and "sys/ directory" in second


def list_modules(code: str) -> frozenset[str]:
    """Return the modules that a new interpreter has after some code."""
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-W", "ignore", "-c"),
            f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return frozenset(done.stderr.split())


def test_help_imports_little_more_than_cliff() -> None:
    added = list_modules(
        "sys.argv[1:] = ['--help']\n"
        "from nova_accel.cli import console\n"
        "try: console.nova_accel()\n"
        "except SystemExit as end: assert not end.code\n"
    ) - list_modules("import cliff.app, cliff.commandmanager")
    assert not added & {"openstack", "oslo_config", "nova", "lxml", "yaml"}
    # Modules of cliff, and some of each package that registers commands.
    assert len(added) <= 60, sorted(added)


@pytest.mark.slow
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
