# SPDX-License-Identifier: Apache-2.0
"""Messages on a terminal while a command waits."""

import io
import sys
import time

import pytest

from placement_sync.cli import progress

LINE = "nova-accel: waiting for a guest\n"


class Terminal(io.StringIO):
    """Standard error of a user at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "delay_s", "printed"),
    [
        (Terminal(), 0.0, LINE),
        (Terminal(), 60.0, ""),
        (io.StringIO(), 0.0, ""),
    ],
)
def test_only_a_terminal_shows_the_wait(
    monkeypatch: pytest.MonkeyPatch,
    stderr: io.StringIO,
    delay_s: float,
    printed: str,
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "DELAY_S", delay_s)
    with progress.waiting_for("a guest"):
        until = time.monotonic() + 30
        while stderr.getvalue() != printed and time.monotonic() < until:
            time.sleep(0.01)
    assert stderr.getvalue() == printed
