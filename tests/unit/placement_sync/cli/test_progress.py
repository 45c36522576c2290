# SPDX-License-Identifier: Apache-2.0
"""Messages on standard error while a command waits."""

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
        (io.StringIO(), 0.0, LINE),
        (Terminal(), 60.0, ""),
    ],
)
def test_a_long_wait_is_shown(
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


def test_slow_answers_of_a_service_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    answers, printed = progress.SlowAnswers(), ""
    until = time.monotonic() + 30
    for request in ("Placement: GET /a", "Placement: GET /b", "Nova: GET /c"):
        with answers.waiting_for(request):
            service = request.partition(":")[0]
            while service not in printed and time.monotonic() < until:
                time.sleep(0.01)
                printed += capsys.readouterr().err
    assert printed.splitlines() == [
        "nova-accel: waiting for Placement: GET /a",
        "nova-accel: waiting for Nova: GET /c",
    ]


def test_a_name_changes_nothing_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Users choose the names of servers, which operators read."""
    progress.print_line("live vm\x1b]0;title\x07\x9b2J")
    assert capsys.readouterr().err == "nova-accel: live vm?]0;title??2J\n"
