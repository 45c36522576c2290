# SPDX-License-Identifier: Apache-2.0
"""Random tests that are shared among processes, each with its own seed."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Lines of a failed process that are shown.
SHOWN = 40


def run(
    module: str,
    seeds: range,
    share: int,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[list[str]]:
    """Yield the output of ``python -m module SEED SHARE`` for each seed.

    The output is also printed while the processes run.
    """
    outputs: dict[int, list[str]] = {seed: [] for seed in seeds}

    def follow(seed: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            outputs[seed].append(line)
            with capsys.disabled():
                print(line, end="", flush=True)

    processes = {seed: _start(module, seed, share) for seed in seeds}
    threads = [
        threading.Thread(target=follow, args=pair)
        for pair in processes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, process in processes.items():
        assert process.wait() == 0, "".join(outputs[seed][-SHOWN:])
        yield outputs[seed]


def _start(module: str, seed: int, share: int) -> subprocess.Popen[str]:
    arguments = ("-W", "ignore", "-m", module, str(seed), str(share))
    return subprocess.Popen(  # noqa: S603 - fixed arguments
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        # The order of sets of strings is the same in each run.
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
