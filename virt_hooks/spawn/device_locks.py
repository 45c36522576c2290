# SPDX-License-Identifier: Apache-2.0
"""Device locks: one change at a time per card."""

import contextlib
import threading
from collections.abc import Iterable, Iterator


class DeviceLocks:
    """A lock for each card, by the uuid of its provider.

    A card needs no description: slots name its provider before the host
    has been read.
    """

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, providers: Iterable[str]) -> Iterator[None]:
        """Hold the locks of some cards, acquired in sorted order."""
        with contextlib.ExitStack() as stack:
            for provider in sorted(set(providers)):
                stack.enter_context(self._lock(provider))
            yield

    @contextlib.contextmanager
    def try_hold(self, *providers: str) -> Iterator[bool]:
        """Hold the locks of a card if all are free; yield whether they are.

        For periodic passes: they must not wait for a card whose kernel
        driver does not answer.

        :param providers: of the card, and of the part of it to change.
        """
        with contextlib.ExitStack() as stack:
            for provider in sorted(set(providers)):
                lock = self._lock(provider)
                if not lock.acquire(blocking=False):
                    stack.close()
                    yield False
                    return
                stack.callback(lock.release)
            yield True

    def is_any_held(self, providers: Iterable[str]) -> bool:
        """Return whether the lock of any of some cards is held now."""
        return any(self._lock(provider).locked() for provider in providers)

    def _lock(self, provider: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(provider, threading.Lock())
