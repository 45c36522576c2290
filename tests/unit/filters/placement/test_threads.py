# SPDX-License-Identifier: Apache-2.0
"""Threads share bulk reads and the cache without blocking each other."""

import threading
from concurrent import futures
from typing import Any

import pytest

from filters.fit import fact_reader
from filters.placement import provider_reader
from nova_accel import errors
from placement_sync.client import provider_cache
from tests.support.placement import answers


class WatchedLock:
    """Lock of bulk reads that counts the waiting threads."""

    def __init__(self, reader: fact_reader.FactReader) -> None:
        """Replace a reader's lock."""
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(0)
        reader._providers._bulk_lock = self  # type: ignore[assignment]
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._waiting.release()
        return self._lock.acquire(blocking, timeout)

    def await_waiting(self, count: int) -> None:
        """Wait until ``count`` threads wait for the lock."""
        for _ in range(count):
            assert self._waiting.acquire(timeout=20)


def test_concurrent_requests_share_a_bulk_read() -> None:
    placement = answers.Placement(40)
    have_listed = threading.Barrier(2, timeout=20)

    def get(path: str) -> Any:
        if path.startswith(answers.BULK):
            lock.await_waiting(1)
        body = placement.get(path)
        if path.startswith(f"{answers.LISTING}?"):
            have_listed.wait()
        return body

    reader = fact_reader.FactReader(get)
    lock = WatchedLock(reader)
    with futures.ThreadPoolExecutor(2) as threads:
        results = threads.map(
            lambda _: answers.read(reader, placement.providers).facts,
            range(2),
        )
        first, second = results

    assert first == second
    assert placement.calls() == [
        answers.LISTING,
        answers.LISTING,
        answers.BULK,
    ]


def test_a_hanging_bulk_read_delays_others_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_reader, "_PATIENCE_SECONDS", 0.01)
    placement = answers.Placement(40)
    hangs, goes_on = threading.Event(), threading.Event()

    def get(path: str) -> Any:
        if path.startswith(answers.BULK) and not hangs.is_set():
            hangs.set()
            goes_on.wait(10)
        return placement.get(path)

    reader = fact_reader.FactReader(get)
    with futures.ThreadPoolExecutor(1) as threads:
        slow = threads.submit(answers.read, reader, placement.providers)
        assert hangs.wait(10)
        facts = answers.read(reader, placement.providers).facts
        assert facts.keys() == placement.providers.keys()
        assert not slow.done()
        goes_on.set()
        assert slow.result(10).facts == facts


def test_after_a_failed_bulk_read_the_others_read_in_parallel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_reader, "_PATIENCE_SECONDS", 60)
    placement = answers.Placement(40)
    others = threading.Barrier(2, timeout=10)
    first, has_begun = threading.Lock(), threading.Event()

    def get(path: str) -> Any:
        if path.startswith(answers.BULK):
            if first.acquire(blocking=False):
                has_begun.set()
                lock.await_waiting(2)
                raise errors.ServiceError("GET", path, 503, "busy")
            others.wait()  # Only parallel reads pass the barrier.
        return placement.get(path)

    reader = fact_reader.FactReader(get)
    lock = WatchedLock(reader)
    with futures.ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(answers.read, reader, placement.providers)]
        assert has_begun.wait(10)
        reads += [
            threads.submit(answers.read, reader, placement.providers)
            for _ in range(2)
        ]
        snapshots = [future.result(20) for future in reads]

    assert [bool(snapshot.problems) for snapshot in snapshots] == [
        True,
        False,
        False,
    ]
    for snapshot in snapshots[1:]:
        assert snapshot.facts.keys() == placement.providers.keys()


def test_threads_share_the_cache() -> None:
    placement = answers.Placement(12, answers.MIXED)
    cache = provider_cache.ProviderCache(7)
    reader = fact_reader.FactReader(placement.get, cache)

    def schedule(number: int) -> set[str]:
        named = list(placement.providers)[number % 6 :][:6]
        for _ in range(20):
            placement.change(named[0], "CUSTOM_RACK_7")
            facts = answers.read(reader, named, answers.VGPU).facts
            assert facts.keys() == set(named)
        return set(named)

    with futures.ThreadPoolExecutor(6) as threads:
        named = set().union(*threads.map(schedule, range(6)))

    assert named <= placement.providers.keys()
    assert len(cache) == 7
    placement.calls()
    facts = answers.read(reader, placement.providers, answers.VGPU).facts
    assert facts.keys() == placement.providers.keys()
    for uuid, provider in facts.items():
        assert provider.traits == placement.providers[uuid]["traits"]
