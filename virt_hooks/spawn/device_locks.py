# SPDX-License-Identifier: Apache-2.0
"""Device locks: one change at a time per card."""

import contextlib
import threading
from collections.abc import Iterable, Iterator


class DeviceLocks:
    """A lock for each card, by the uuid of its provider.

    A card need not be known for it: slots name it before the host has
    been read.
    """

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, providers: Iterable[str]) -> Iterator[None]:
        """Hold some cards, always taken in the same order."""
        with contextlib.ExitStack() as stack:
            for provider in sorted(set(providers)):
                stack.enter_context(self._lock(provider))
            yield

    @contextlib.contextmanager
    def try_hold(self, provider: str) -> Iterator[bool]:
        """Hold a card unless somebody does; tell whether it is held.

        For passes that come again: they must not wait for a card whose
        kernel driver does not answer.
        """
        lock = self._lock(provider)
        got = lock.acquire(blocking=False)
        try:
            yield got
        finally:
            if got:
                lock.release()

    def is_any_held(self, providers: Iterable[str]) -> bool:
        """Return whether any of some cards is held at this moment."""
        return any(self._lock(provider).locked() for provider in providers)

    def _lock(self, provider: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(provider, threading.Lock())
