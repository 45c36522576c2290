# SPDX-License-Identifier: Apache-2.0
"""The loop debounces, backs off and stops passes as documented."""

import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.state import device_notes, notes
from placement_sync.daemon import loop

DEBOUNCE_S = 0.05
HOUR_S = 3600.0
# Tolerance for a slow machine; no test waits for so long.
PATIENCE_S = 10.0

seconds = st.floats(0.001, 1e6)
failures = st.integers(0, 10**6)


class Pass:
    """A pass that records its starts and raises the given errors."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.began: list[float] = []
        self.most = 0
        self.takes_s = 0.0
        self._outcomes = list(outcomes)
        self._inside = 0

    def __call__(self) -> None:
        self.began.append(time.monotonic())
        self._inside += 1
        self.most = max(self.most, self._inside)
        try:
            time.sleep(self.takes_s)
            outcome = self._outcomes.pop(0) if self._outcomes else None
            if outcome is not None:
                raise outcome
        finally:
            self._inside -= 1

    @property
    def count(self) -> int:
        return len(self.began)


Starting = Callable[..., loop.Loop]


@pytest.fixture
def started() -> Iterator[Starting]:
    loops = []

    def start(run: Pass, interval_s: float = HOUR_S) -> loop.Loop:
        started_loop = loop.Loop(run, interval_s, debounce_s=DEBOUNCE_S)
        loops.append(started_loop)
        started_loop.start()
        return started_loop

    yield start
    for started_loop in loops:
        assert started_loop.stop(PATIENCE_S)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def wake_after(started_loop: loop.Loop, run: Pass, count: int) -> None:
    """Wake the loop once this number of passes has begun."""
    until(lambda: run.count == count)
    started_loop.wake()


def test_the_first_pass_runs_at_once(
    started: Starting,
) -> None:
    run = Pass()
    started(run)
    until(lambda: run.count == 1)
    time.sleep(5 * DEBOUNCE_S)
    assert run.count == 1


def test_a_drain_wakes_the_loop(tmp_path: pathlib.Path) -> None:
    drained = device_notes.DrainNotes(str(tmp_path))
    watch = notes.NoteWatch(drained.path)
    run = Pass()
    started_loop = loop.Loop(
        run, HOUR_S, debounce_s=DEBOUNCE_S, watch=watch.has_changed
    )
    started_loop.start()
    until(lambda: run.count == 1)
    drained.put("0000:3b:00.0", "a loud fan")
    until(lambda: run.count >= 2)
    count = run.count
    drained.remove(["0000:3b:00.0"])
    until(lambda: run.count > count)
    assert started_loop.stop(PATIENCE_S)


def test_passes_run_at_the_interval(started: Starting) -> None:
    run = Pass()
    started(run, 0.05)
    until(lambda: run.count >= 6)
    # The first wait is a random part of the interval.
    for earlier, later in zip(run.began[1:], run.began[2:], strict=False):
        assert later - earlier >= 0.05 * 0.9


def test_the_interval_has_jitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []

    def draw(least: float, most: float) -> float:
        drawn.append((least, most))
        return least

    monkeypatch.setattr(random, "uniform", draw)
    run, jitter = Pass(), 0.99999
    started_loop = loop.Loop(run, HOUR_S, jitter=jitter)
    started_loop.start()
    until(lambda: run.count >= 3)  # Hours earlier than without jitter.
    assert started_loop.stop(PATIENCE_S)
    assert drawn[0] == (0.0, 1.0)
    assert set(drawn[1:]) == {(1 - jitter, 1 + jitter)}


def test_many_wake_ups_are_one_pass(started: Starting) -> None:
    run = Pass()
    started_loop = started(run)
    until(lambda: run.count == 1)
    for _ in range(1000):
        started_loop.wake()
    until(lambda: run.count == 2)
    time.sleep(5 * DEBOUNCE_S)
    assert run.count == 2
    assert run.began[1] - run.began[0] >= DEBOUNCE_S


def test_endless_wake_ups_do_not_prevent_passes(started: Starting) -> None:
    run = Pass()
    started_loop = started(run)
    begin = woken = time.monotonic()
    calm = 0.0
    while run.count < 3:
        started_loop.wake()
        time.sleep(DEBOUNCE_S / 10)
        calm, woken = max(calm, time.monotonic() - woken), time.monotonic()
        assert woken < begin + PATIENCE_S
    least = (loop.MAX_DEBOUNCE - 1) * DEBOUNCE_S
    # On a slow machine the wake-ups themselves may have paused for so long.
    assert run.began[2] - run.began[1] >= least or calm >= DEBOUNCE_S


def test_a_wake_up_during_a_pass_is_one_more_pass(
    started: Starting,
) -> None:
    run = Pass()
    run.takes_s = 0.2
    started_loop = started(run)
    until(lambda: run.count == 1)
    for _ in range(10):
        started_loop.wake()
    until(lambda: run.count == 2)
    time.sleep(run.takes_s + 5 * DEBOUNCE_S)
    assert (run.count, run.most) == (2, 1)


def test_passes_take_at_most_half_of_the_time(
    started: Starting,
) -> None:
    run = Pass()
    run.takes_s = 4 * DEBOUNCE_S
    started_loop = started(run)
    for count in (1, 2, 3):
        wake_after(started_loop, run, count)
    until(lambda: run.count == 4)
    for earlier, later in zip(run.began, run.began[1:], strict=False):
        assert later - earlier >= 2 * run.takes_s


def test_a_failure_is_logged_when_it_changes(
    started: Starting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "placement_sync")
    first = errors.UnreadableError("/sys/first", 5)
    other = errors.UnreadableError("/sys/other", 5)
    run = Pass(first, first, first, other, other, ValueError("odd"), None)
    started(run, 0.01)
    until(lambda: run.count >= 8)
    assert [
        (record.levelname, record.exc_info is not None)
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ] == [("WARNING", False), ("WARNING", False), ("ERROR", True)]
    assert "/sys/first" in caplog.messages[0]
    assert "/sys/other" in caplog.messages[1]
    assert "ValueError: odd" in caplog.messages[2]


def test_recovery_is_logged_once(
    started: Starting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "placement_sync")
    refused = errors.UnreadableError("/sys/first", 5)
    run = Pass(refused, refused, None, None)
    started(run, 0.02)
    until(lambda: run.count >= 5)
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert "after 2 failures" in caplog.messages[1]


def test_failures_back_off_although_woken(
    started: Starting,
) -> None:
    run = Pass(*[errors.UnreadableError("/sys/first", 5)] * 4)
    started_loop = started(run)
    for count in (1, 2, 3, 4):
        wake_after(started_loop, run, count)
    until(lambda: run.count >= 5)
    gaps = [b - a for a, b in zip(run.began, run.began[1:], strict=False)]
    for number, gap in enumerate(gaps, 1):
        assert gap >= DEBOUNCE_S * 2**number


def test_stop_waits_for_the_pass_and_is_final(started: Starting) -> None:
    run = Pass()
    run.takes_s = 0.2
    started_loop = started(run)
    until(lambda: run.count == 1)
    assert not started_loop.stop()
    assert started_loop.stop(PATIENCE_S)
    started_loop.start()
    started_loop.wake()
    time.sleep(3 * DEBOUNCE_S)
    assert run.count == 1


def test_a_loop_stopped_before_its_start_runs_nothing() -> None:
    run = Pass()
    started_loop = loop.Loop(run, HOUR_S)
    assert started_loop.stop()
    started_loop.run_forever()
    assert run.count == 0


def test_a_pass_may_stop_its_own_loop() -> None:
    started_loop = loop.Loop(lambda: started_loop.stop(PATIENCE_S), HOUR_S)
    started_loop.run_forever()
    assert started_loop.stop()


def test_repeated_starts_run_one_thread(started: Starting) -> None:
    run = Pass()
    started_loop = started(run)
    for _ in range(5):
        started_loop.start()
    until(lambda: run.count == 1)
    time.sleep(3 * DEBOUNCE_S)
    assert run.count == 1


def test_many_threads_may_wake_the_loop(started: Starting) -> None:
    run = Pass()
    started_loop = started(run)

    def storm() -> None:
        for _ in range(300):
            started_loop.wake()

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = run.count
    until(lambda: run.count > count or count > 1)
    assert run.most == 1


@given(seconds, failures)
def test_the_wait_grows_and_is_bounded(interval: float, count: int) -> None:
    waits = [loop.compute_wait_s(interval, n) for n in (count, count + 1)]
    assert interval <= waits[0] <= waits[1]
    assert waits[1] <= loop.MAX_BACKOFF * interval
    assert (
        loop.compute_wait_s(interval, 0)
        == loop.compute_wait_s(interval, 1)
        == interval
    )


@given(seconds, seconds, failures, seconds)
def test_the_debounce_grows_and_is_bounded(
    interval: float, debounce: float, count: int, took: float
) -> None:
    quiet = loop.compute_quiet_s(interval, debounce, count, took)
    assert (
        quiet
        <= loop.compute_quiet_s(interval, debounce, count + 1, took)
        <= interval
    )
    assert quiet >= min(interval, debounce, took)


CHILD = """
import logging, os, signal, sys, threading, time
if sys.argv[1] == "green":
    import eventlet
    eventlet.monkey_patch()
from nova_accel import errors
from placement_sync.daemon import loop

logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
passes = []

def run():
    passes.append(time.monotonic())
    print("pass", flush=True)
    time.sleep(0.05)
    if len(passes) == 1:
        raise errors.MalformedError("word", "x", "y")

made = loop.Loop(run, 3600.0, debounce_s=0.02)
"""
IN_THREAD = """
made.start()
for expected in (1, 2, 3):
    while len(passes) < expected:
        time.sleep(0.01)
    for _ in range(100):
        made.wake()
time.sleep(0.02)
print("stopped", made.stop(5.0), len(passes) in (3, 4))
"""
FOREGROUND = """
signal.signal(signal.SIGTERM, lambda *_: made.stop())
made.run_forever()
print("stopped", len(passes))
"""
IN_OTHER_THREAD = """
def send_signal():
    time.sleep(0.2)  # the main thread waits meanwhile
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

made = loop.Loop(send_signal, 3600.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", ["native", "green"])
def test_the_loop_runs_on_native_and_green_threads(world: str) -> None:
    if world == "green":
        pytest.importorskip("eventlet")
    out = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", CHILD + IN_THREAD, world],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert out.stdout.splitlines()[-1] == "stopped True True", out
    assert out.stdout.count("WARNING") == 1


@pytest.mark.parametrize("repeat", range(3))
def test_sigterm_ends_the_loop(repeat: int) -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", CHILD + FOREGROUND, "native"],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "pass\n"
        time.sleep(repeat * 0.05)  # In the pass, and after it.
        os.kill(child.pid, signal.SIGTERM)
        rest, _ = child.communicate(timeout=60)
    assert rest.splitlines()[-1] == "stopped 1", rest
    assert child.returncode == 0


def test_a_signal_that_another_thread_gets_ends_the_loop() -> None:
    """It does not interrupt the wait of the main thread."""
    child = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHILD + IN_OTHER_THREAD + FOREGROUND, "native"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert child.stdout.splitlines()[-1] == "stopped 0"
