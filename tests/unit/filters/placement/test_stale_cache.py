# SPDX-License-Identifier: Apache-2.0
"""The cache has a time to live, bounded waits, and retries of reads."""

import threading
import time
from collections.abc import Callable

import pytest

from filters.placement import stale_cache
from nova_accel import errors

TIMES = stale_cache.CacheTimes(fresh=60.0, retry=10.0, patience=60.0)
IMPATIENT = stale_cache.CacheTimes(fresh=60.0, retry=10.0, patience=0.05)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A source of numbers that can fail or give no answer."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_broken = False
        self.gate = threading.Event()
        self.gate.set()

    def read(self) -> int:
        self.reads += 1
        number = self.reads
        self.gate.wait(10)
        if self.is_broken:
            raise errors.ConfigurationError("test", "broken", "fix it")
        return number


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_stale_value_is_read_again() -> None:
    clock, source = Clock(), Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=clock
    )

    assert [values.get("a", source.read) for _ in range(3)] == [1, 1, 1]
    clock.now += 60
    assert values.get("a", source.read) == 2


def test_a_failed_read_is_logged_and_serves_the_stale_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, source = Clock(), Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=clock
    )
    assert values.get("a", source.read) == 1
    source.is_broken = True
    clock.now += 60

    assert [values.get("a", source.read) for _ in range(3)] == [1, 1, 1]
    assert source.reads == 2
    assert caplog.text.count("Could not read a, next attempt in 10 s") == 1

    source.is_broken = False
    clock.now += 10
    assert values.get("a", source.read) == 3


def test_a_failure_is_cached() -> None:
    clock, source = Clock(), Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=clock
    )
    source.is_broken = True

    assert [values.get("a", source.read) for _ in range(3)] == [None] * 3
    assert source.reads == 1


def test_only_one_wait_for_a_slow_read() -> None:
    clock, source = Clock(), Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=clock
    )
    source.gate.clear()
    first = threading.Thread(target=values.get, args=("a", source.read))
    first.start()
    until(lambda: source.reads == 1)

    clock.now += TIMES.patience + 1  # the deadline is over: no wait
    assert values.get("a", source.read) is None
    assert first.is_alive()  # as its wait began before the deadline
    source.gate.set()
    first.join()

    assert values.get("a", source.read) == 1
    assert source.reads == 1


def test_concurrent_calls_read_once() -> None:
    source = Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(TIMES)
    source.gate.clear()
    values_read: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda: values_read.append(values.get("a", source.read))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    until(lambda: source.reads == 1)
    source.gate.set()
    for thread in threads:
        thread.join(5)

    assert values_read == [1] * 8
    assert source.reads == 1


def test_a_stale_value_serves_during_a_refresh() -> None:
    clock, source = Clock(), Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=clock
    )
    assert values.get("a", source.read) == 1
    clock.now += 60
    source.gate.clear()
    first = threading.Thread(target=values.get, args=("a", source.read))
    first.start()
    until(lambda: source.reads == 2)

    assert values.get("a", source.read) == 1
    assert first.is_alive()
    source.gate.set()
    first.join()
    assert values.get("a", source.read) == 2


def test_the_number_of_pending_reads_is_bounded() -> None:
    source = Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        IMPATIENT, 100
    )
    source.gate.clear()

    assert {values.get(n, source.read) for n in range(20)} == {None}
    assert source.reads == 8
    source.gate.set()
    until(lambda: values.get(0, source.read) is not None)


def test_the_least_recently_used_key_is_evicted() -> None:
    source = Source()
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(TIMES, 2)

    assert [values.get(k, source.read) for k in "abacab"] == [
        1, 2, 1, 3, 1, 4
    ]  # fmt: skip


def test_an_unexpected_error_ends_the_read() -> None:
    values: stale_cache.StaleCache[int] = stale_cache.StaleCache(
        TIMES, clock=Clock()
    )
    exceptions: list[object] = []
    before, threading.excepthook = threading.excepthook, exceptions.append

    def fail() -> int:
        raise RuntimeError("unexpected")

    try:
        assert values.get("a", fail) is None
        assert values.get("a", fail) is None
        until(lambda: len(exceptions) == 1)
    finally:
        threading.excepthook = before
