# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel server`` without a reachable message bus."""

import os
import pathlib
import pty
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

SERVER = str(uuid.UUID(int=7))
SECRET = "s3cret-of-the-bus"  # noqa: S105
# The command's wait for the bus and Python's start, with room for a busy
# machine.
SECONDS = 60.0


@pytest.fixture
def silent() -> Iterator[int]:
    """Return a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """Return a port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def command(conf: pathlib.Path) -> list[str]:
    return [
        *(
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.functional.sync.commands.programs",
        ),
        *("server", "show", SERVER, "--host", "host1"),
        *("--config-file", str(conf)),
    ]


def run(
    conf: pathlib.Path, content: str, interpreter: list[str] | None = None
) -> tuple[int, str]:
    """Return exit status and standard error of ``server show``.

    :param interpreter: a Python command that gets the words of the command.
    """
    conf.write_text(content)
    words = command(conf)
    ended = subprocess.run(  # noqa: S603
        interpreter + words[5:] if interpreter else words,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.stdout == "" and "Traceback" not in ended.stderr
    assert SECRET not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.mark.long
def test_each_command_of_a_shell_reads_its_own_conf(
    tmp_path: pathlib.Path,
) -> None:
    twice = (
        "import sys; from tests.functional.sync.commands import programs;"
        " statuses = [programs.main(sys.argv[1:]) for _ in range(2)];"
        " sys.exit(statuses != [2, 2])"
    )
    status, words = run(
        tmp_path / "nova.conf",
        "[DEFAULT]\nhost = host1\n",
        [sys.executable, "-W", "ignore", "-c", twice],
    )
    first, second = words.splitlines()
    assert status == 0 and first == second and "transport_url" in first


def test_an_unreachable_bus_is_named_in_time(
    tmp_path: pathlib.Path, closed: int, silent: int
) -> None:
    """Each host of a cluster is tried, for 10 seconds in total."""
    ports = closed, silent, silent, silent
    hosts = ",".join(f"nova:{SECRET}@127.0.0.1:{port}" for port in ports)
    status, words = run(
        tmp_path / "nova.conf", f"[DEFAULT]\ntransport_url = rabbit://{hosts}/"
    )
    wait, *reason = words.splitlines()
    assert wait == "nova-accel: waiting for Nova's message bus"
    assert status == 1 and len(reason) == 1
    assert f"127.0.0.1:{closed}, 127.0.0.1:{silent}" in words
    assert "(no answer in 10 s)" in words


@pytest.mark.long
def test_a_user_at_a_terminal_sees_that_the_bus_is_slow(
    tmp_path: pathlib.Path, silent: int
) -> None:
    conf = tmp_path / "nova.conf"
    url = f"rabbit://nova:{SECRET}@127.0.0.1:{silent}/"
    conf.write_text(f"[DEFAULT]\ntransport_url = {url}\n")
    terminal, stderr = pty.openpty()
    try:
        ended = subprocess.run(  # noqa: S603
            command(conf), stderr=stderr, timeout=SECONDS, check=False
        )
        words = os.read(terminal, 4096).decode()
    finally:
        os.close(stderr)
        os.close(terminal)
    assert ended.returncode == 1
    assert words.startswith("nova-accel: waiting for Nova's message bus\r\n")
