# SPDX-License-Identifier: Apache-2.0
"""TTL cache with a bounded wait; serves stale values while refreshing.

For nova-scheduler, where what is asked (Placement, Glance) may be slow or
gone, and a server must be placed all the same.
"""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from nova_accel import errors

LOG = logging.getLogger(__name__)
# Reads under way at once. One that got no answer ends when its client
# gives up, which may take minutes; no more are begun meanwhile.
_MAX_FLIGHTS = 8

V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheTimes:
    """For how long what, in seconds.

    A value is ``fresh`` after it was read; after a read that failed the
    next one is begun once ``retry`` is over. ``patience`` is how long
    whoever asks waits for a read.
    """

    fresh: float
    retry: float
    patience: float


@dataclasses.dataclass(slots=True)
class _Entry(Generic[V]):
    """What is known of a key.

    ``until`` is when it is read again, ``deadline`` till when somebody
    waits for the read under way; ``done`` is None while there is none.
    """

    value: V | None = None
    until: float = float("-inf")
    deadline: float = 0.0
    done: threading.Event | None = None


class StaleCache(Generic[V]):
    """Values by key; threads may share it.

    Each key is read by one thread at a time, whoever asks. Where the read
    fails or takes too long, the old value serves, however old.

    :param times: for how long values are kept.
    :param size: how many keys are kept; the ones asked for longest ago go
        first.
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
        self._flights = 0

    def get(self, key: Hashable, read: Callable[[], V]) -> V | None:
        """Return a key's value, None if it is not known in time.

        :param read: returns the value; raises AcceleratorError. It runs
            in a thread of its own.
        """
        with self._lock:
            entry = self._entry(key)
            now = self._clock()
            if now < entry.until:
                return entry.value
            is_first = entry.done is None
            if is_first and not self._begin(key, entry, read):
                return entry.value
            done, left = entry.done, entry.deadline - now
        # Only one of several who ask waits where an old value serves.
        if done is not None and (is_first or entry.value is None):
            done.wait(max(0.0, left))
        return entry.value

    def _entry(self, key: Hashable) -> _Entry[V]:
        found = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return found

    def _begin(
        self, key: Hashable, entry: _Entry[V], read: Callable[[], V]
    ) -> bool:
        """Begin to read; return whether that could be."""
        if self._flights >= _MAX_FLIGHTS:
            return False
        self._flights += 1
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
            LOG.warning(
                "%s is not read anew, for %d s: %s", key, seconds, error
            )
        finally:
            with self._lock:
                entry.value = value
                entry.until = self._clock() + seconds
                entry.done = None
                self._flights -= 1
            done.set()
