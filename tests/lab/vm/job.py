# SPDX-License-Identifier: Apache-2.0
"""Runs one script inside a machine booted for it."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import TypedDict, Unpack

from tests.lab.vm import errors, layout, machine, topology

#: timeout(1): "If ... sent the KILL signal, exit with 128+9"
_TIMEOUT_KILLED = 128 + signal.SIGKILL


class Hardware(TypedDict, total=False):
    """Fields of ``machine.Machine`` that a job can set."""

    devices: topology.Topology
    words: tuple[str, ...]
    blacklist: str
    root: pathlib.Path
    files: tuple[pathlib.Path, ...]


def run_job(
    lab: pathlib.Path,
    job: pathlib.Path,
    *,
    timeout_s: float = 300,
    share: pathlib.Path | None = None,
    **hardware: Unpack[Hardware],
) -> int:
    """Boot, run the shell script ``job`` inside as root, power off.

    The job sees the host's files (writes vanish, but for /run/lab, the
    job's own directory), ``$LAB_GUEST/lib.sh`` and $LAB_ROOT. Its output is
    copied to standard output while it runs. Returns its exit status.
    Raises BootError when the machine dies before the job ends, and
    JobTimeoutError after ``timeout_s`` seconds.

    :param share: a directory that is read-write inside at the same path.
    """
    place = layout.layout_of(lab)
    place.jobs.mkdir(parents=True, exist_ok=True)
    run_dir = pathlib.Path(
        tempfile.mkdtemp(prefix=f"{job.stem}-", dir=place.jobs)
    )
    shutil.copy(job, run_dir / "job")
    boot = machine.Machine(
        place=place,
        run_dir=run_dir,
        share=share,
        console="stdio,signal=off",
        **hardware,
    )
    status = _run(boot, timeout_s)
    shutil.rmtree(run_dir)
    return status


def _run(boot: machine.Machine, timeout_s: float) -> int:
    # timeout ends the machine even when we are killed ourselves;
    # --foreground leaves it in our process group, for Ctrl-C
    argv = ["timeout", "--foreground", "--signal=KILL", f"{timeout_s:g}"]
    servers = machine.start_file_servers(boot)
    try:
        with (boot.run_dir / "qemu.log").open("wb") as log:
            ended = subprocess.run(  # noqa: S603 - no input of users
                [*argv, *boot.arguments()],
                cwd=boot.run_dir,
                stdin=subprocess.DEVNULL,
                stdout=_output(),
                stderr=log,
                check=False,
            )
    finally:
        for record in servers.values():
            record.terminate(grace_s=2)
    if ended.returncode in (_TIMEOUT_KILLED, -signal.SIGKILL):
        msg = (
            f"the job did not end in {timeout_s:.0f} s; its files are in "
            f"{boot.run_dir}"
        )
        raise errors.JobTimeoutError(msg)
    return _status(boot.run_dir)


def _output() -> int | None:
    """Return where the job's output goes: our own standard output."""
    sys.stdout.flush()
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None


def _status(run_dir: pathlib.Path) -> int:
    try:
        return int((run_dir / "rc").read_text())
    except (FileNotFoundError, ValueError):
        msg = (
            "the machine ended without an exit status of the job; see "
            f"kernel.log and qemu.log in {run_dir}"
        )
        raise errors.BootError(msg) from None
