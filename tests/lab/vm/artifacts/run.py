# SPDX-License-Identifier: Apache-2.0
"""Commands of the preparation: run, check, report."""

import pathlib
import subprocess
from collections.abc import Sequence

from tests.lab.vm import errors


def run_command(
    argv: Sequence[str], *, cwd: pathlib.Path | None = None
) -> str:
    """Run a command to its end and return its standard output.

    Raises PrepareError, with the end of the command's output, when it
    can't be started or fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 - no input of users
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as exc:
        msg = f"{argv[0]} is not installed: install the packages of bindep.txt"
        raise errors.PrepareError(msg) from exc
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2000:]
        msg = f"{' '.join(argv)[:300]}: exit {done.returncode}\n{tail}"
        raise errors.PrepareError(msg)
    return done.stdout
