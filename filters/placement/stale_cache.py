# SPDX-License-Identifier: Apache-2.0
"""TTL cache with a bounded wait; serves stale values while refreshing.

For nova-scheduler, which must schedule a server even if Placement or Glance
is slow or down.
"""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from nova_accel import errors
from nova_accel.config import logs

LOG = logging.getLogger(__name__)
# Concurrent reads. A read without a response ends when its client times
# out, which may take minutes; no further reads start meanwhile.
_MAX_READS = 8

V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheTimes:
    """Times of a cache, in seconds.

    ``fresh`` is the time to live of a value, ``retry`` the delay before the
    next read after a failed one, ``patience`` the longest wait of a caller
    for a read.
    """

    fresh: float
    retry: float
    patience: float


@dataclasses.dataclass(slots=True)
class _Entry(Generic[V]):
    """The value of a key.

    ``until`` is the time of the next read. ``done`` is set when the read in
    progress ends, None while there is none; ``deadline`` is until when
    callers wait for it.
    """

    value: V | None = None
    until: float = float("-inf")
    deadline: float = 0.0
    done: threading.Event | None = None


class StaleCache(Generic[V]):
    """Values by key; thread-safe.

    Each key is read by one thread at a time. If the read fails or takes too
    long, callers get the old value, however old.

    :param times: time to live, retry delay and longest wait.
    :param size: number of cached keys; the least recently used one is
        evicted first.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        times: CacheTimes,
        size: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._times = times
        self._size = size
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[Hashable, _Entry[V]] = (
            collections.OrderedDict()
        )
        self._reads = 0

    def get(self, key: Hashable, read: Callable[[], V]) -> V | None:
        """Return a key's value, None if it was not read in time.

        :param read: returns the value; raises AcceleratorError. It runs
            in its own thread.
        """
        with self._lock:
            entry = self._entry(key)
            now = self._clock()
            if now < entry.until:
                return entry.value
            is_first = entry.done is None
            if is_first and not self._start_read(key, entry, read):
                return entry.value
            done, seconds = entry.done, entry.deadline - now
        # With an old value only the first of several callers waits.
        if done is not None and (is_first or entry.value is None):
            done.wait(max(0.0, seconds))
        return entry.value

    def _entry(self, key: Hashable) -> _Entry[V]:
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return entry

    def _start_read(
        self, key: Hashable, entry: _Entry[V], read: Callable[[], V]
    ) -> bool:
        """Start a thread; return False if too many are running."""
        if self._reads >= _MAX_READS:
            return False
        self._reads += 1
        entry.deadline = self._clock() + self._times.patience
        entry.done = threading.Event()
        threading.Thread(
            target=self._read,
            args=(key, entry, entry.done, read),
            name="nova-accel-read",
            daemon=True,
        ).start()
        return True

    def _read(
        self,
        key: Hashable,
        entry: _Entry[V],
        done: threading.Event,
        read: Callable[[], V],
    ) -> None:
        value, seconds = entry.value, self._times.retry
        try:
            value = read()
            seconds = self._times.fresh
        except errors.AcceleratorError as error:
            logs.warning(
                LOG,
                "Could not read %s, next attempt in %d s: %s",
                key,
                seconds,
                error,
            )
        finally:
            with self._lock:
                entry.value = value
                entry.until = self._clock() + seconds
                entry.done = None
                self._reads -= 1
            done.set()
