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
from nova_accel.cli import commands
from nova_accel.model import providers, usage
from placement_sync.cli import common_options, main, sync_command
from placement_sync.client import calls
from placement_sync.daemon import heartbeat, serve
from placement_sync.sync import sync_pass
from tests.hosts import look
from tests.support.hosts import states

ROOT = pathlib.Path(__file__).parents[4]
DOC = ROOT / "doc/source/reference/cli.rst"
UNIT = ROOT / "placement_sync/systemd/placement-sync.service"
Output = pytest.CaptureFixture[str]


def parsed(*words: str) -> argparse.Namespace:
    """Return arguments with the shared options only."""
    parser = argparse.ArgumentParser()
    common_options.add_arguments(parser)
    return parser.parse_args(words, argparse.Namespace(connection=None))


def read_help(capsys: Output, *words: str) -> str:
    assert main.main([*words, "--help"]) == 0
    return capsys.readouterr().out


# -- arguments -------------------------------------------------------------


def test_each_option_is_in_the_help_and_the_help_in_the_manual(
    capsys: Output,
) -> None:
    text, page = read_help(capsys, "run"), DOC.read_text()
    flags = set(re.findall(r"(?<![\w-])--[a-z-]+", text))
    assert {"--once", "--dry-run", "--root", "--endpoint"} <= flags
    assert "\n.. command-help:: placement-sync run\n" in page
    for command in ("drain", "undrain", "status", "audit"):
        assert f"\n.. command-help:: nova-accel {command}\n" in page
        assert commands.main([command, "--help"]) == 0
        assert "--state-dir" in capsys.readouterr().out


def test_an_invalid_argument_ends_with_2(capsys: Output) -> None:
    for words in (["--inter", "3"], ["--interval", "0"]):
        with pytest.raises(SystemExit) as ended:
            main.main(["run", *words])
        assert ended.value.code == 2
        assert "placement-sync run: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["sync", "--interval"], ["audit", "--pause"], ["drain", "--wait"]],
)
def test_invalid_seconds_are_named(capsys: Output, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main([*words, "abc"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{words[-1]}: 'abc' is no number of seconds" in error


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
def test_an_unusable_value_is_refused(words: list[str]) -> None:
    with pytest.raises(errors.AcceleratorError):
        common_options.resolve_options(parsed(*words))


def test_a_uuid_is_normalized() -> None:
    arguments = parsed("--host-uuid", "AAAAAAAA00004000800000000000000A")
    common_options.resolve_options(arguments)
    assert arguments.host_uuid == "aaaaaaaa-0000-4000-8000-00000000000a"


def test_options_of_a_configuration_file(tmp_path: pathlib.Path) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text(
        f"[nova_accel]\nroot = {tmp_path}\nstate_dir = /state\n"
        "sync_interval = 7\n"
    )
    options = common_options.resolve_options(
        parsed("--config-file", str(conf))
    )
    assert options.root == str(tmp_path)
    assert options.state_dir == "/state"
    assert options.settings.sync.interval == 7
    assert not options.is_foreign
    named = common_options.resolve_options(
        parsed("--config-file", str(conf), "--state-dir", str(tmp_path))
    )
    assert named.state_dir == str(tmp_path)


def test_a_captured_host_uses_only_named_paths(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text("[nova_accel]\nstate_dir = /state\n")
    monkeypatch.setattr(
        "nova_accel.discovery.nova_conf.CONFIG_FILES", (str(conf),)
    )
    local = common_options.resolve_options(parsed())
    assert (local.files, local.state_dir) == ((str(conf),), "/state")
    captured = common_options.resolve_options(parsed("--root", str(tmp_path)))
    assert (captured.files, captured.state_dir) == ((), None)
    assert captured.drains_dir == "/var/lib/nova/accel"
    assert captured.is_foreign
    named = common_options.resolve_options(
        parsed("--root", str(tmp_path), "--config-file", str(conf))
    )
    assert (named.state_dir, named.drains_dir) == (None, "/state")
    explicit = common_options.resolve_options(
        parsed("--root", str(tmp_path), "--state-dir", str(tmp_path))
    )
    assert explicit.state_dir == explicit.drains_dir == str(tmp_path)


# -- lock ------------------------------------------------------------------


def options_of(
    place: pathlib.Path, state: pathlib.Path
) -> common_options.CommandOptions:
    """Return the options of a configuration file with a state_dir."""
    conf = place / "compute.conf"
    conf.write_text(f"[nova_accel]\nstate_dir = {state}\n")
    return common_options.resolve_options(parsed("--config-file", str(conf)))


def test_the_lock_is_exclusive_and_released(tmp_path: pathlib.Path) -> None:
    options = options_of(tmp_path, tmp_path / "made" / "on the way")
    with sync_command.hold_lock(options):
        with (
            pytest.raises(errors.BusyError, match="another placement-sync"),
            sync_command.hold_lock(options, timeout_s=0.2),
        ):
            pytest.fail("two at once")
    with sync_command.hold_lock(options, timeout_s=0):
        pass


def test_the_lock_is_waited_for(
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
        with sync_command.hold_lock(options_of(tmp_path, tmp_path)):
            assert len(waited) == 3
    assert capsys.readouterr().err.count("waiting") == 1


def test_an_unusable_state_dir_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    option = f"^{tmp_path}/compute.conf .nova_accel. state_dir = {file}: can't"
    with (
        pytest.raises(errors.ConfigurationError, match=option),
        sync_command.hold_lock(options_of(tmp_path, file)),
    ):
        pytest.fail("there is no such directory")


# -- status ----------------------------------------------------------------


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the clock; return a function that advances it by seconds."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def advance_by(seconds: float) -> None:
        now[0] += seconds

    return advance_by


def record_status(state: pathlib.Path, interval_s: float = 0.0) -> None:
    """Write the status of a pass of nova-compute."""
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
    command = ["status", "--root", "/", "--state-dir", str(state), *words]
    status = commands.main(command)
    return capsys.readouterr().out, status


@pytest.mark.usefixtures("advance")
def test_the_status_lists_each_writer(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    record_status(tmp_path, 60)
    beat = heartbeat.Heartbeat(str(tmp_path), "placement-sync")
    beat.record_failure("Placement is away")
    text, status = run_status(capsys, tmp_path)
    assert status == 1
    assert "nova-compute: fresh\n  compute node  node1 (u)" in text
    assert "ok, 0.0 s, 3 reads, 1 writes, each 60 s" in text
    assert "1 CreateTrait" in text and "2 ok" in text
    assert "placement-sync: STALE\n  last success  never" in text
    assert "error         Placement is away" in text
    plain, status = run_status(capsys, tmp_path, "-f", "json")
    assert status == 1
    writers = {
        writer["writer"]: writer for writer in json.loads(plain)["writers"]
    }
    assert not writers["nova-compute"]["is_stale"]
    assert writers["placement-sync"]["is_stale"]


@pytest.mark.usefixtures("advance")
def test_the_status_prints_the_last_sample(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    beat = heartbeat.Heartbeat(str(tmp_path), "nova-compute", 60)
    sample = usage.UsageSample(
        devices=(
            usage.DeviceUsage(
                address="0000:01:00.0",
                engines=(usage.EngineUsage(engine="compute", ratio=0.8),),
                memory_used=6 << 30,
                memory_total=16 << 30,
                power_watts=70.5,
                temperature_celsius=61,
            ),
        ),
        partitions=(
            usage.PartitionUsage(
                device="0000:01:00.0",
                handle=states.CLAIMS[0].handle,
                memory_used=1 << 20,
            ),
        ),
        problems=(model.Problem(where="usage of GPU 1", reason="lost"),),
    )
    beat.record_sample(sample, states.HOST, states.CLAIMS, {})
    text, _ = run_status(capsys, tmp_path)
    assert (
        "  usage         sampled 0 s ago\n"
        "  0000:01:00.0  compute 80% of the device, 6144/16384 MiB, 70.5 W,"
        " 61 °C\n"
        "  server server  P-2 of 0000:01:00.0: 1/200 MiB\n"
        "  problem       usage of GPU 1: lost\n"
    ) in text


@pytest.mark.usefixtures("advance")
def test_the_status_prints_what_passes_wait_for(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    record_status(tmp_path, 60)
    beat = heartbeat.Heartbeat(str(tmp_path), "nova-compute", 60)
    beat.record_waiting("for nova-compute to register its node")
    text, status = run_status(capsys, tmp_path)
    assert status == 0
    assert "  waiting       for nova-compute to register its node\n" in text


@pytest.mark.parametrize(
    "seconds, age",
    [(100, "100 s"), (600, "10 min"), (7300, "2 h"), (1e6, "12 d")],
)
def test_a_status_grows_stale(
    tmp_path: pathlib.Path,
    capsys: Output,
    advance: Callable[[float], None],
    seconds: float,
    age: str,
) -> None:
    record_status(tmp_path, 20)
    assert run_status(capsys, tmp_path)[1] == 0
    advance(seconds)
    text, status = run_status(capsys, tmp_path)
    assert status == 1
    assert "nova-compute: STALE" in text and f"{age} ago" in text


def test_a_malformed_status_is_stale(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    assert run_status(capsys, tmp_path)[1] == 1
    (tmp_path / "status").mkdir()
    (tmp_path / "status/nova-compute.json").write_text("{")
    text, status = run_status(capsys, tmp_path)
    assert status == 1 and "nova-compute.json" in text


# -- permissions -----------------------------------------------------------


def test_a_user_without_rights_gets_a_hint(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = errors.UnreadableError("/a/vendor", errno.EACCES)
    problems = (
        model.Problem(where="0000:01:00.0", reason="boot display"),
        model.Problem(where="0000:3b:00.0", reason=str(hidden)),
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    sync_command.print_hint(problems)
    hint = capsys.readouterr().err
    assert hint.count("\n") == 1
    assert "0000:3b:00.0" in hint and "run it as root" in hint
    sync_command.print_hint(problems[:1])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    sync_command.print_hint(problems)
    assert capsys.readouterr().err == ""


def test_an_unwritable_state_dir_is_named(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    (tmp_path / "drained").write_text("")
    options = ["--root", str(root), "--state-dir", str(tmp_path)]
    drain = ["drain", "3b:00.0", "--reason", "r"]
    assert commands.main([*drain, *options]) == 2
    error = capsys.readouterr().err
    assert f": command line --state-dir = {tmp_path}: can't be" in error
    conf = tmp_path / "compute.conf"
    conf.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {tmp_path}\n")
    assert commands.main([*drain, "--config-file", str(conf)]) == 2
    error = capsys.readouterr().err
    assert f": {conf} [nova_accel] state_dir = {tmp_path}: can't be" in error


# -- the service -----------------------------------------------------------


@pytest.mark.parametrize("source", ["pass", "host"])
def test_a_new_problem_is_logged_once(
    caplog: pytest.LogCaptureFixture, source: str
) -> None:
    problem = model.Problem(where="0000:3b:00.0", reason="can't be read")
    problems = [(problem,), (problem,), (), (problem,)]
    if source == "pass":
        passes = serve.NotifyingPasses(
            lambda: sync_pass.PassResult(problems=problems.pop(0))
        )
    else:
        passes = serve.NotifyingPasses(
            sync_pass.PassResult, lambda: problems.pop(0)
        )
    for expected in (1, 1, 1, 2):
        passes.run()
        assert len(caplog.records) == expected
    assert "0000:3b:00.0: can't be read" in caplog.text


def test_the_unit_is_printed_with_the_path_of_the_command(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/v/bin/placement-sync"])
    assert main.main(["run", "--print-unit"]) == 0
    text = capsys.readouterr().out
    assert "\nExecStart=/opt/v/bin/placement-sync run $PLACEMENT_S" in text
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
def test_systemd_verifies_the_unit(tmp_path: pathlib.Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text().replace(
            "ExecStart=placement-sync", f"ExecStart={sys.executable}"
        )
    )
    result = subprocess.run(  # noqa: S603
        [shutil.which("systemd-analyze") or "", "verify", str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert UNIT.name not in result.stderr
