# SPDX-License-Identifier: Apache-2.0
"""Evidence that nova-compute runs without this library."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel.host.state import ended_service
from placement_sync.client import nova_api, stock_compute
from tests.support import examples


class Host:
    """A host with a nova-compute that starts, reports and ends.

    The lock is that of a process: it ends with its file descriptor.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.reports = 0
        self.starts = 0
        self._descriptor: int | None = None
        self.is_up = True
        self.start()
        self.end()

    def start(self) -> None:
        self.end()
        path = self.state / "nova-compute.lock"
        flags = os.O_RDWR | os.O_CREAT
        self._descriptor = os.open(path, flags, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self.starts += 1
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{self.starts} token".encode(), 0)

    def end(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    @property
    def is_own(self) -> bool:
        """Whether the nova-compute has this library."""
        return self._descriptor is not None

    def report(self) -> None:
        self.reports += 1

    def read(self) -> str:
        return f"at {self.reports}" if self.is_up and self.reports else ""

    def watch(self) -> stock_compute.StockComputeWatch:
        return stock_compute.StockComputeWatch(str(self.state), self.read)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.end()


def test_new_reports_without_a_holder_of_the_lock(host: Host) -> None:
    watch = host.watch()
    for _ in range(3):
        assert not watch.is_proved()
        host.report()
    assert watch.is_proved()
    # It holds while the service is down, and for other processes.
    host.is_up = False
    assert watch.is_proved()
    assert host.watch().is_proved()
    host.start()
    assert not watch.is_proved()
    host.end()
    assert not watch.is_proved()


def test_one_report_proves_nothing(host: Host) -> None:
    """A process that has ended may have sent it."""
    host.report()
    watch = host.watch()
    for _ in range(5):
        assert not watch.is_proved()
    host.report()
    for _ in range(5):
        assert not watch.is_proved()


def test_a_start_between_two_reports_begins_again(host: Host) -> None:
    watch = host.watch()
    for _ in range(10):
        host.start()
        host.report()
        host.end()
        assert not watch.is_proved()


def test_a_wait_ends_with_the_proof(host: Host) -> None:
    host.report()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        host.report()

    assert host.watch().prove(sleep=sleep)
    assert len(waits) == 2


def test_nothing_is_waited_for_without_a_suspicion(host: Host) -> None:
    def fail(_: float) -> None:
        raise AssertionError("it waits")

    host.is_up = False
    assert not host.watch().prove(sleep=fail)
    host.is_up = True
    host.start()
    host.report()
    assert not host.watch().prove(sleep=fail)


def test_a_nova_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    host = Host(tmp_path)

    def read() -> str:
        raise nova_api.NoAnswerError("no route to host")

    watch = stock_compute.StockComputeWatch(str(tmp_path), read)
    with pytest.raises(nova_api.NoAnswerError):
        watch.is_proved()
    host.start()
    assert not watch.is_proved()
    host.end()


@given(st.lists(st.sampled_from(("start", "end", "report", "check"))))
@settings(
    max_examples=examples.examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_own_nova_compute_is_ever_taken_for_a_stock_one(
    tmp_path: Path, steps: list[str]
) -> None:
    """Reports of own ones, also the last one that arrives late."""
    for path in tmp_path.iterdir():
        path.unlink()
    host = Host(tmp_path)
    watch, late = host.watch(), 0
    for step in steps:
        if step == "start":
            host.start()
        elif step == "end":
            late = 1 if host.is_own else late
            host.end()
        elif step == "report" and (host.is_own or late):
            late = late if host.is_own else 0
            host.report()
        else:
            assert not watch.is_proved()
    host.end()
    assert ended_service.identify(str(tmp_path))
