# SPDX-License-Identifier: Apache-2.0
"""Processes that outlive us: started, recorded, found again, ended."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process named beyond doubt: its id and the time it started.

    ``started`` is field 22 of /proc/PID/stat, clock ticks since boot.
    """

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Return whether this very process still runs."""
        return _started(self.pid) == self.started

    def terminate(self, grace_s: float) -> None:
        """End the process: SIGTERM, after ``grace_s`` SIGKILL; wait."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5)):
            if not self.is_alive():
                return
            os.kill(self.pid, number)
            self.wait(wait_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came in time."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            _reap(self.pid)
            time.sleep(0.02)
        return True


def _started(pid: int) -> int | None:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command, field 2, is in parentheses and may hold spaces
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def spawn(
    argv: Sequence[str],
    *,
    cwd: pathlib.Path,
    log: pathlib.Path,
) -> ProcessRecord:
    """Start a background process in a session of its own.

    Its output goes to ``log``. Returns its record.
    """
    with log.open("ab") as out:
        child = subprocess.Popen(  # noqa: S603 - no input of users
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    # the record, not this object, is what ends the process
    child.returncode = 0
    return record_of(child.pid)


def record_of(pid: int) -> ProcessRecord:
    """Return the record of a process that we have just started."""
    return ProcessRecord(pid=pid, started=_started(pid) or 0)


def save(path: pathlib.Path, records: Mapping[str, ProcessRecord]) -> None:
    """Write records to a file."""
    data = {name: dataclasses.asdict(rec) for name, rec in records.items()}
    path.write_text(json.dumps(data, indent=1) + "\n")


def load(path: pathlib.Path) -> dict[str, ProcessRecord]:
    """Return the records of a file; none when there is no file."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {name: ProcessRecord(**rec) for name, rec in data.items()}
