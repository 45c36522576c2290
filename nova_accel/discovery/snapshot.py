# SPDX-License-Identifier: Apache-2.0
"""Last reading of the host, for callers that must not wait.

Readings are numbered in the order in which they begin. A device keeps the
state of the highest-numbered reading, whichever ends last.
"""

import logging
import threading
from collections.abc import Iterable

from nova_accel import model
from nova_accel.discovery import change_detection

LOG = logging.getLogger(__name__)


class Snapshot:
    """Last reading of the host. Thread-safe.

    Nova calls ``update_provider_tree`` under the lock of all its claims;
    the snapshot serves it without reading kernel files. Cards are read
    concurrently; a full reading does not overwrite the state of a card
    that was read after it began.
    """

    def __init__(self, detector: change_detection.ChangeDetector) -> None:
        """Store the readings of a detector; nothing is read yet."""
        self._detector = detector
        self._full_read_lock = threading.Lock()
        self._state_lock = threading.Lock()
        # Incomplete: no device may be taken for absent before the first
        # reading.
        self._state = model.HostState(complete=False)
        self._last_number = 0
        self._full_number = 0
        self._card_numbers: dict[str, int] = {}

    @property
    def state(self) -> model.HostState:
        """Return the last reading; without devices before the first."""
        return self._state

    def refresh(self) -> model.HostState:
        """Read the whole host now and return it.

        Problems are logged once, when they appear and when they change.
        """
        with self._full_read_lock:
            number = self._next_number()
            return self._replace(self._detector.read(), number)

    def refresh_changed(self) -> model.HostState:
        """Return the host, read again if it may have changed.

        An incomplete reading, or one with unknown devices, is repeated.
        """
        if self._state.unknown or not self._state.complete:
            return self.refresh()
        with self._full_read_lock:
            number = self._next_number()
            host = self._detector.read_changed()
            return self.state if host is None else self._replace(host, number)

    def refresh_cards(self, addresses: Iterable[str]) -> model.HostState:
        """Read some cards now and return the host.

        The whole host is read if a card is not in the last reading.
        """
        cards = frozenset(addresses)
        devices = [d for d in self._state.devices if d.address in cards]
        if len(devices) < len(cards):
            return self.refresh()
        number = self._next_number()
        host = self._detector.read_devices(devices)
        with self._state_lock:
            before = self._state
            updated = {
                card
                for card in cards
                if number
                > max(self._full_number, self._card_numbers.get(card, 0))
            }
            self._state = change_detection.merge(before, host, updated)
            self._card_numbers |= dict.fromkeys(updated, number)
            after = self._state
        _log_new_problems(after, before)
        return after

    def _next_number(self) -> int:
        with self._state_lock:
            self._last_number += 1
            return self._last_number

    def _replace(self, host: model.HostState, number: int) -> model.HostState:
        """Store a full reading, but not over cards that were read later."""
        with self._state_lock:
            before = self._state
            newer = {
                card
                for card, card_number in self._card_numbers.items()
                if card_number > number
            }
            self._state = change_detection.merge(host, before, newer)
            self._full_number = number
            after = self._state
        _log_new_problems(after, before)
        return after


def _log_new_problems(after: model.HostState, before: model.HostState) -> None:
    for problem in after.problems:
        if problem not in before.problems:
            LOG.warning("%s: %s", problem.where, problem.reason)
