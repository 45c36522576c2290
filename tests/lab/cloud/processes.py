# SPDX-License-Identifier: Apache-2.0
"""Start, watch and end the lab's processes; the lab's only door to them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tests.lab.cloud.layout import MARK_VARIABLE, Layout

_BEGAN = time.monotonic()
_PRINTING = threading.Lock()
_TAIL_LINES = 25
#: nova's services linger on SIGTERM; nothing of the lab is worth the wait.
_TERM_SECONDS = 4.0
_KILL_SECONDS = 5.0


class LabError(Exception):
    """A step of the lab failed; the text names the log to read."""


def say(text: str) -> None:
    """Print one line of progress with the seconds since the start."""
    with _PRINTING:
        sys.stdout.write(f"[{time.monotonic() - _BEGAN:6.1f}] {text}\n")
        sys.stdout.flush()


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, or a note that there is none."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return f"(no {path})"
    last_lines = "\n".join(text.splitlines()[-lines:])
    return f"--- {path}\n{last_lines}"


def start_time(pid: int) -> str | None:
    """Return when a process began, in clock ticks; None when it is gone.

    Field 22 of ``/proc/PID/stat`` (proc(5)); with the pid it names a process
    for good, where a pid alone may have been given to another one since.
    """
    fields = _read_stat(pid)
    return None if fields[0] in ("", "Z") else fields[19]


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by SIGSTOP."""
    return _read_stat(pid)[0] == "T"


def _read_stat(pid: int) -> list[str]:
    """Return the fields from the state on, [""] when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [""]
    return text.rpartition(")")[2].split()


class Processes:
    """The processes of one lab, recorded in its run directory."""

    def __init__(self, layout: Layout) -> None:
        """Take the layout; nothing is started."""
        self._layout = layout
        self._env = layout.service_environment()

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self._layout.log / f"{name}.log"

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own session and record it."""
        with self.log(name).open("ab") as out:
            process = subprocess.Popen(  # noqa: S603 - argv of the lab
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**self._env, **(env or {})},
                cwd=self._layout.state,
                start_new_session=True,
            )
        self._record(name).write_text(
            f"{process.pid} {start_time(process.pid)}"
        )
        return process

    def call(self, name: str, argv: Sequence[str]) -> None:
        """Run a step to its end; LabError with its log when it fails."""
        began = time.monotonic()
        with self.log(name).open("ab") as out:
            done = subprocess.run(  # noqa: S603 - argv of the lab
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                cwd=self._layout.state,
                check=False,
            )
        if done.returncode:
            raise LabError(
                f"{name} failed with {done.returncode}\n{tail(self.log(name))}"
            )
        say(f"{name}: done in {time.monotonic() - began:.1f} s")

    def wait(
        self,
        name: str,
        probe: Callable[[], bool],
        process: subprocess.Popen[bytes],
        seconds: float = 300,
    ) -> None:
        """Return when the probe is true; LabError at its end or in time."""
        began = time.monotonic()
        while not _answers(probe):
            if process.poll() is not None:
                raise LabError(
                    f"{name} ended with {process.returncode} while starting"
                    f"\n{tail(self.log(name))}"
                )
            if time.monotonic() - began > seconds:
                raise LabError(
                    f"{name} did not come up in {seconds:.0f} s"
                    f"\n{tail(self.log(name))}"
                )
            time.sleep(0.1)
        say(f"{name}: up after {time.monotonic() - began:.1f} s")

    def says(self, name: str, text: str, offset: int) -> Callable[[], bool]:
        """Return a probe: does the log have the text after the offset?"""

        def probe() -> bool:
            with self.log(name).open("rb") as log:
                log.seek(offset)
                return text.encode() in log.read()

        return probe

    def names(self) -> list[str]:
        """Return the names of the recorded processes."""
        return sorted(p.stem for p in self._layout.run.glob("*.pid"))

    def pid(self, name: str) -> int | None:
        """Return the pid of a recorded process if it still runs."""
        try:
            pid, began = self._record(name).read_text().split()
        except FileNotFoundError:
            return None
        return int(pid) if start_time(int(pid)) == began else None

    def stop(self, *names: str) -> None:
        """End recorded processes with their process groups."""
        groups = {p for p in map(self.pid, names) if p is not None}
        _end(groups, os.killpg)
        for name in names:
            self._record(name).unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End everything that carries this lab's mark."""
        self.stop(*self.names())
        _end(self.marked(), os.kill)
        if survivors := self.marked():
            raise LabError(f"processes {sorted(survivors)} could not be ended")

    def marked(self) -> set[int]:
        """Return the pids of all processes that were started by this lab."""
        mark = f"{MARK_VARIABLE}={self._layout.state}".encode()
        pids = set()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    pids.add(int(path.name))
        return {p for p in pids if start_time(p) is not None}

    def _record(self, name: str) -> Path:
        return self._layout.run / f"{name}.pid"


def run(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a client program and return its output, whatever its status."""
    return subprocess.run(  # noqa: S603 - argv of the lab
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def http_answers(url: str) -> Callable[[], bool]:
    """Return a probe: does the URL answer, with whatever below 500?"""

    def probe() -> bool:
        try:
            # Always a loopback URL of the layout.
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            return error.code < 500

    return probe


def tcp_answers(port: int, address: str = "127.0.0.1") -> Callable[[], bool]:
    """Return a probe: does a port on the loopback accept connections?"""

    def probe() -> bool:
        socket.create_connection((address, port), 1).close()
        return True

    return probe


def _answers(probe: Callable[[], bool]) -> bool:
    """Return the probe's answer; no for an error of the connection."""
    try:
        return probe()
    except OSError:
        return False


def _end(
    pids: Iterable[int], kill: Callable[[int, signal.Signals], None]
) -> None:
    """Ask the processes to end, then make them."""
    alive = {pid: start_time(pid) for pid in pids}
    for sign, seconds in (
        (signal.SIGTERM, _TERM_SECONDS),
        (signal.SIGKILL, _KILL_SECONDS),
    ):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                kill(pid, sign)
        deadline = time.monotonic() + seconds
        while alive and time.monotonic() < deadline:
            alive = {
                pid: began
                for pid, began in alive.items()
                if began is not None and start_time(pid) == began
            }
            time.sleep(0.05)
