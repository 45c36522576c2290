# SPDX-License-Identifier: Apache-2.0
"""Console scripts handle interrupts and warnings."""

import configparser
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import pytest

from nova_accel.cli import commands
from tests.hosts import look

ROOT = pathlib.Path(__file__).resolve().parents[4]
NAMES = ("nova-accel", "placement-sync")


def start(
    name: str,
    words: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a console script as its entry point in setup.cfg does."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    scripts = metadata["options.entry_points"]["console_scripts"]
    points = dict(
        line.split(" = ") for line in scripts.splitlines() if " = " in line
    )
    module, _, function = points[name].partition(":")
    # A shell ignores SIGINT for its background jobs, and so do children.
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from {module} import {function}\n"
        f"sys.argv[1:] = {list(words)!r}\nsys.exit({function}())\n"
    )
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    return subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=inherited | dict(environment or {}),
    )


def wait_until_it_sleeps(process: subprocess.Popen[str]) -> None:
    """Wait until a process has made no step of its own for 0.3 s.

    Python prints the exceptions of constructors that a signal interrupts,
    such as that of the file which reads a socket.
    """
    place = pathlib.Path(f"/proc/{process.pid}/stat")
    ticks: list[str] = []
    times = 0
    while times < 3:
        time.sleep(0.1)
        fields = place.read_text().rpartition(") ")[2].split()
        # Fields 14 and 15: clock ticks in user and kernel mode (proc(5)).
        has_slept = fields[0] == "S" and fields[11:13] == ticks
        times = times + 1 if has_slept else 0
        ticks = fields[11:13]


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in words) == (130, False)


def path_with(place: pathlib.Path, name: str, text: str) -> dict[str, str]:
    """Return an environment in which a module comes from a file."""
    (place / f"{name}.py").write_text(text)
    directories = [str(place), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, directories))}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_ends_a_waiting_command(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = str(look.make("nothing", tmp_path))
    commands = {
        "nova-accel": ["sync", "--once", "--host", "node1", "--root", root],
        "placement-sync": ["run", "--once", "--host", "node1", "--root", root],
    }
    with socket.create_server(("127.0.0.1", 0)) as placement:
        placement.settimeout(60)
        url = f"http://127.0.0.1:{placement.getsockname()[1]}"
        with start(name, [*commands[name], "--endpoint", url]) as process:
            with placement.accept()[0] as connection:
                connection.recv(1)
                wait_until_it_sleeps(process)
                interrupt(process)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_ends_a_command_that_still_imports(
    tmp_path: pathlib.Path, name: str
) -> None:
    # A signal just before a system call is noticed after it.
    slow = (
        "import sys, time\nprint('loading', flush=True)\n"
        "for _ in range(600):\n    time.sleep(0.1)\n"
    )
    environment = path_with(tmp_path, "oslo_config", slow)
    verb = "audit" if name == "nova-accel" else "run"
    with start(name, [verb], environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        interrupt(process)


def test_the_deprecation_of_eventlet_is_not_printed(
    tmp_path: pathlib.Path,
) -> None:
    # As eventlet itself and oslo.service warn.
    text = (
        "import warnings\n"
        "class EventletDeprecationWarning(Warning): pass\n"
        "warnings.warn('\\nEventlet is deprecated. It is currently being'\n"
        "    ' maintained', EventletDeprecationWarning, stacklevel=2)\n"
        "warnings.warn('a warning of another kind')\n"
        "raise SystemExit(0)\n"
    )
    environment = path_with(tmp_path, "oslo_config", text)
    with start("nova-accel", ["inspect"], environment) as process:
        _, words = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ventlet" not in words
    assert "a warning of another kind" in words


@pytest.mark.slow
def test_a_silent_service_is_named_until_ctrl_c() -> None:
    with socket.create_server(("127.0.0.1", 0)) as placement:
        url = f"http://127.0.0.1:{placement.getsockname()[1]}"
        words = ["audit", "--host", "node1", "--endpoint", url]
        with start("nova-accel", words) as process:
            assert process.stderr is not None
            line = ""
            while "waiting" not in line:
                line = process.stderr.readline()
                assert line
            assert line.startswith("nova-accel: waiting for Placement: GET /")
            interrupt(process)


def test_a_command_gives_up_after_its_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as placement:
        url = f"http://127.0.0.1:{placement.getsockname()[1]}"
        words = ["audit", "--host", "node1", "--endpoint", url]
        assert commands.main([*words, "--timeout", "0.5"]) == 1
    text = capsys.readouterr().err
    assert "it does not answer" in text or "timed out" in text


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_timeout_is_a_time(
    capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(["audit", "--timeout", seconds])
    assert end.value.code == 2
    assert "--timeout" in capsys.readouterr().err
