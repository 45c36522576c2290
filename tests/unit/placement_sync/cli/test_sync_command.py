# SPDX-License-Identifier: Apache-2.0
"""``placement-sync`` without Placement: arguments, settings, lock, unit."""

import argparse
import configparser
import errno
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from nova_accel import errors, model
from nova_accel.model import providers
from placement_sync.cli import common_options, locked_pass, main, sync_command
from placement_sync.client import calls
from placement_sync.daemon import heartbeat, serve
from placement_sync.sync import sync_pass
from tests.hosts import look

ROOT = pathlib.Path(__file__).parents[4]
DOC = ROOT / "doc/source/admin/placement-sync.rst"
UNIT = ROOT / "placement_sync/systemd/placement-sync.service"
Output = pytest.CaptureFixture[str]


def parsed(*words: str) -> argparse.Namespace:
    """Return arguments with the shared options only."""
    parser = argparse.ArgumentParser()
    common_options.add_arguments(parser)
    return parser.parse_args(words)


def helped(capsys: Output, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main.main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


# -- words -----------------------------------------------------------------


def test_each_option_is_in_the_help_and_in_the_documentation(
    capsys: Output,
) -> None:
    text, told = helped(capsys), DOC.read_text()
    flags = set(re.findall(r"(?<![\w-])--[a-z-]+", text))
    assert {"--once", "--dry-run", "--root", "--endpoint"} <= flags
    for flag in flags - {"--help", "--version"}:
        assert flag in told, flag
    for command in ("drain", "undrain", "status", "audit"):
        assert f"placement-sync {command}" in told
        assert "--state-dir" in helped(capsys, command)


def test_a_word_that_is_none_ends_with_2(capsys: Output) -> None:
    for words in (["nothing"], ["--inter", "3"], ["--interval", "0"]):
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        assert ended.value.code == 2
        assert "placement-sync: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--interval"], ["audit", "--pause"], ["drain", "--wait"]],
)
def test_what_is_no_number_of_seconds_is_named(
    capsys: Output, words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*words, "abc"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{words[-1]}: 'abc' is no number of seconds" in said


def test_json_is_for_what_ends(capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--json"])
    assert ended.value.code == 2
    assert "--json requires" in capsys.readouterr().err


# -- settings --------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--root", ""],
        ["--host", ""],
        ["--host", "a\nb"],
        ["--host-uuid", "node1"],
        ["--os-cloud", "one", "--endpoint", "http://[::1]/"],
        ["--state-dir", "relative"],
        ["--state-dir", "/proc/missing"],
    ],
)
def test_an_argument_that_says_nothing_is_refused(words: list[str]) -> None:
    with pytest.raises(errors.MalformedError):
        common_options.resolve_options(parsed(*words))


def test_a_uuid_is_taken_in_any_spelling() -> None:
    given = parsed("--host-uuid", "AAAAAAAA00004000800000000000000A")
    common_options.resolve_options(given)
    assert given.host_uuid == "aaaaaaaa-0000-4000-8000-00000000000a"


def test_a_file_is_followed(tmp_path: pathlib.Path) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text(
        f"[nova_accel]\nroot = {tmp_path}\nstate_dir = /kept\n"
        "sync_interval = 7\n"
    )
    found = common_options.resolve_options(parsed("--config-file", str(conf)))
    assert found.root == str(tmp_path)
    assert found.state_dir == "/kept"
    assert found.settings.sync.interval == 7
    assert not found.is_foreign
    named = common_options.resolve_options(
        parsed("--config-file", str(conf), "--state-dir", str(tmp_path))
    )
    assert named.state_dir == str(tmp_path)


def test_of_this_machine_only_what_is_named_is_used_for_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text("[nova_accel]\nstate_dir = /kept\n")
    monkeypatch.setattr("nova_accel.config.conf.CONFIG_FILES", (str(conf),))
    here = common_options.resolve_options(parsed())
    assert (here.files, here.state_dir) == ((str(conf),), "/kept")
    there = common_options.resolve_options(parsed("--root", str(tmp_path)))
    assert (there.files, there.state_dir) == ((), None)
    assert there.drains_dir == "/var/lib/nova/accel"
    assert there.is_foreign
    named = common_options.resolve_options(
        parsed("--root", str(tmp_path), "--config-file", str(conf))
    )
    assert (named.state_dir, named.drains_dir) == (None, "/kept")
    given = common_options.resolve_options(
        parsed("--root", str(tmp_path), "--state-dir", str(tmp_path))
    )
    assert given.state_dir == given.drains_dir == str(tmp_path)


def test_there_are_no_credentials_without_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nova_accel.config.conf.CONFIG_FILES", ())
    monkeypatch.delenv("OS_CLOUD", raising=False)
    given = parsed()
    with pytest.raises(errors.ConfigurationError, match="--os-cloud"):
        common_options.open_placement(
            given, common_options.resolve_options(given)
        )


# -- never two at once -----------------------------------------------------


def choose(
    place: pathlib.Path, state: pathlib.Path
) -> common_options.CommandOptions:
    """Return the options with a configuration file that has a state_dir."""
    conf = place / "compute.conf"
    conf.write_text(f"[nova_accel]\nstate_dir = {state}\n")
    return common_options.resolve_options(parsed("--config-file", str(conf)))


def test_the_lock_is_held_and_given_back(tmp_path: pathlib.Path) -> None:
    chosen = choose(tmp_path, tmp_path / "made" / "on the way")
    with locked_pass.hold_lock(chosen):
        with (
            pytest.raises(errors.BusyError, match="another placement-sync"),
            locked_pass.hold_lock(chosen, timeout_s=0.2),
        ):
            pytest.fail("two at once")
    with locked_pass.hold_lock(chosen, timeout_s=0):
        pass


def test_a_lock_that_comes_free_is_taken(
    tmp_path: pathlib.Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "sync.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", sleep)
        with locked_pass.hold_lock(choose(tmp_path, tmp_path)):
            assert len(waited) == 3
    assert capsys.readouterr().err.count("waiting") == 1


def test_a_place_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    option = f"^{tmp_path}/compute.conf .nova_accel. state_dir = {file}: can't"
    with (
        pytest.raises(errors.ConfigurationError, match=option),
        locked_pass.hold_lock(choose(tmp_path, file)),
    ):
        pytest.fail("there is no such directory")


# -- status ----------------------------------------------------------------


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the clock, and return what moves it on by seconds."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def advance_by(seconds: float) -> None:
        now[0] += seconds

    return advance_by


def beaten(state: pathlib.Path, interval_s: float = 0.0) -> None:
    """Leave the status of a pass of nova-compute."""
    host = look.read(look.make("t4-mdev", state / "host"))
    tree = providers.ProviderTree(
        root=providers.ProviderRoot(name="node1", uuid="u")
    )
    heartbeat.Heartbeat(str(state), "nova-compute", interval_s).record_pass(
        sync_pass.PassResult(
            calls=(calls.CreateTrait(name="CUSTOM_A"),), reads=3, writes=1
        ),
        host,
        tree,
    )


def run_status(
    capsys: Output, state: pathlib.Path, *words: str
) -> tuple[str, int]:
    asked = ["status", "--root", "/", "--state-dir", str(state), *words]
    status = main.main(asked)
    return capsys.readouterr().out, status


@pytest.mark.usefixtures("advance")
def test_the_status_of_each_writer_is_told(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    beaten(tmp_path, 60)
    beat = heartbeat.Heartbeat(str(tmp_path), "placement-sync")
    beat.record_failure("Placement is away")
    text, status = run_status(capsys, tmp_path)
    assert status == 1
    assert "nova-compute: fresh\n  compute node  node1 (u)" in text
    assert "ok, 0.0 s, 3 reads, 1 writes, each 60 s" in text
    assert "1 CreateTrait" in text and "2 ok" in text
    assert "placement-sync: STALE\n  last success  never" in text
    assert "error         Placement is away" in text
    plain, status = run_status(capsys, tmp_path, "--json")
    assert status == 1
    found = {one["writer"]: one for one in json.loads(plain)["writers"]}
    assert not found["nova-compute"]["is_stale"]
    assert found["placement-sync"]["is_stale"]


@pytest.mark.parametrize(
    "seconds, told",
    [(100, "100 s"), (600, "10 min"), (7300, "2 h"), (1e6, "12 d")],
)
def test_a_status_grows_stale(
    tmp_path: pathlib.Path,
    capsys: Output,
    advance: Callable[[float], None],
    seconds: float,
    told: str,
) -> None:
    beaten(tmp_path, 20)
    assert run_status(capsys, tmp_path)[1] == 0
    advance(seconds)
    text, status = run_status(capsys, tmp_path)
    assert status == 1
    assert "nova-compute: STALE" in text and f"{told} ago" in text


def test_a_status_that_says_nothing_is_stale(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    assert run_status(capsys, tmp_path)[1] == 1
    (tmp_path / "status").mkdir()
    (tmp_path / "status/nova-compute.json").write_text("{")
    text, status = run_status(capsys, tmp_path)
    assert status == 1 and "nova-compute.json" in text


# -- who may not read ------------------------------------------------------


def test_a_user_from_whom_the_kernel_hides_something_is_told(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = errors.UnreadableError("/a/vendor", errno.EACCES)
    problems = (
        model.Problem(where="0000:01:00.0", reason="boot display"),
        model.Problem(where="0000:3b:00.0", reason=str(hidden)),
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    sync_command.print_hint(problems)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "0000:3b:00.0" in said and "run it as root" in said
    sync_command.print_hint(problems[:1])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    sync_command.print_hint(problems)
    assert capsys.readouterr().err == ""


def test_notes_that_cant_be_written_are_told(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    (tmp_path / "drained").write_text("")
    asked = ["--root", str(root), "--state-dir", str(tmp_path)]
    drain = ["drain", "3b:00.0", "--reason", "r"]
    assert main.main([*drain, *asked]) == 2
    said = capsys.readouterr().err
    assert f": command line --state-dir = {tmp_path}: can't be" in said
    conf = tmp_path / "compute.conf"
    conf.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {tmp_path}\n")
    assert main.main([*drain, "--config-file", str(conf)]) == 2
    said = capsys.readouterr().err
    assert f": {conf} [nova_accel] state_dir = {tmp_path}: can't be" in said


def test_a_relative_state_dir_is_refused_and_not_created(
    tmp_path: pathlib.Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = look.make("t4-mdev", tmp_path / "host")
    asked = ["--root", str(root), "--state-dir", "accel"]
    assert main.main(["drain", "3b:00.0", "--reason", "r", *asked]) == 2
    assert "expected an absolute path" in capsys.readouterr().err
    assert not (tmp_path / "accel").exists()


# -- the service -----------------------------------------------------------


def test_a_problem_is_told_when_it_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = model.Problem(where="VGPU", reason="is in use")
    results = [(one,), (one,), (), (one,)]
    told = serve.NotifyingPasses(
        lambda: sync_pass.PassResult(problems=results.pop(0))
    )
    for expected in (1, 1, 1, 2):
        told.run()
        assert len(caplog.records) == expected


def test_a_problem_of_the_host_is_logged_when_it_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = model.Problem(where="0000:3b:00.0", reason="can't be read")
    readings = [(one,), (one,), (), (one,)]
    told = serve.NotifyingPasses(sync_pass.PassResult, lambda: readings.pop(0))
    for expected in (1, 1, 1, 2):
        told.run()
        assert len(caplog.records) == expected
    assert "0000:3b:00.0: can't be read" in caplog.text


def test_the_unit_is_printed_with_the_path_of_the_command(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/v/bin/placement-sync"])
    assert main.main(["--print-unit"]) == 0
    text = capsys.readouterr().out
    assert "\nExecStart=/opt/v/bin/placement-sync $PLACEMENT_S" in text
    packaged = UNIT.read_text()
    assert text.replace("/opt/v/bin/", "") == packaged
    assert packaged.startswith("# SPDX-License-Identifier: Apache-2.0\n")


def test_the_unit_is_in_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    data = setup["options.package_data"]["placement_sync"]
    assert "systemd/*.service" in data


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd is not installed"
)
def test_systemd_finds_no_fault_in_the_unit(tmp_path: pathlib.Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text().replace(
            "ExecStart=placement-sync", f"ExecStart={sys.executable}"
        )
    )
    found = subprocess.run(  # noqa: S603
        [shutil.which("systemd-analyze") or "", "verify", str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert UNIT.name not in found.stderr
