# SPDX-License-Identifier: Apache-2.0
"""Calls at the same time, on threads that no exit waits for."""

import subprocess
import sys
import threading
import time

import pytest

from placement_sync import parallel


def test_results_have_the_order_of_their_keys() -> None:
    def run(key: int) -> int:
        time.sleep(0.01 * (5 - key))
        return key * key

    assert parallel.run(run, range(5), 3) == [0, 1, 4, 9, 16]
    assert parallel.run(run, (), 3) == []


def test_no_more_calls_run_than_there_are_threads() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def run(_: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1

    parallel.run(run, range(20), 4)
    assert most[0] == 4


def test_an_exception_is_raised_and_begins_no_further_call() -> None:
    begun = []

    def fail(key: int) -> None:
        begun.append(key)
        if key:
            time.sleep(0.001)
        raise LookupError(key)

    with pytest.raises(LookupError):
        parallel.run(fail, range(1000), 1)
    time.sleep(0.05)
    assert len(begun) < 1000


def test_a_begun_call_returns_its_result_or_raises_its_exception() -> None:
    assert parallel.start(lambda: 3)() == 3
    with pytest.raises(ZeroDivisionError):
        parallel.start(lambda: 1 // 0)()


def test_an_exit_does_not_wait_for_a_call() -> None:
    script = """if True:
        import time
        from placement_sync import parallel
        parallel.start(lambda: time.sleep(60))
        def run(key):
            if key:
                raise KeyboardInterrupt
            time.sleep(60)
        parallel.run(run, (0, 1), 2)
    """
    done = subprocess.run(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", script],
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert b"KeyboardInterrupt" in done.stderr
