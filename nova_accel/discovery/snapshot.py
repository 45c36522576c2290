# SPDX-License-Identifier: Apache-2.0
"""Last reading of the host, for callers that must not wait."""

import logging
import threading
from collections.abc import Iterable

from nova_accel import model
from nova_accel.discovery import change_detection

LOG = logging.getLogger(__name__)


class Snapshot:
    """Keeps the last reading of the host. Thread-safe.

    Nova asks for the provider tree under the lock of all its claims: what
    it gets comes from here, and no kernel file is read then. Cards are
    read side by side; a whole reading that began before a card was read
    does not take back what that showed.
    """

    def __init__(self, source: change_detection.ChangeDetector) -> None:
        """Keep what ``source`` reads; nothing is read yet."""
        self._survey = source
        self._whole = threading.Lock()
        self._guard = threading.Lock()
        # Before the first reading nothing may be taken for absent.
        self._state = model.HostState(complete=False)
        self._begun = 0
        self._whole_at = 0
        self._read_at: dict[str, int] = {}

    @property
    def state(self) -> model.HostState:
        """Return the last reading; of nothing, before the first."""
        return self._state

    def refresh(self) -> model.HostState:
        """Read the whole host now and return it.

        Problems are logged once, when they appear and when they change.
        """
        with self._whole:
            began = self._begin()
            return self._replace(self._survey.read(), began)

    def refresh_changed(self) -> model.HostState:
        """Return the host, read anew if anything can have changed.

        What could not be read is tried again each time.
        """
        if self._state.unknown or not self._state.complete:
            return self.refresh()
        with self._whole:
            began = self._begin()
            found = self._survey.read_changed()
            return self.state if found is None else self._replace(found, began)

    def refresh_cards(self, addresses: Iterable[str]) -> model.HostState:
        """Read some cards now and return the host.

        The whole host is read if one of them is not known.
        """
        wanted = frozenset(addresses)
        devices = [d for d in self._state.devices if d.address in wanted]
        if len(devices) < len(wanted):
            return self.refresh()
        began = self._begin()
        found = self._survey.read_devices(devices)
        with self._guard:
            before = self._state
            newest = {
                address
                for address in wanted
                if began > max(self._whole_at, self._read_at.get(address, 0))
            }
            self._state = change_detection.merge(before, found, newest)
            self._read_at |= dict.fromkeys(newest, began)
            after = self._state
        _tell(after, before)
        return after

    def _begin(self) -> int:
        """Return the number of a reading that begins now."""
        with self._guard:
            self._begun += 1
            return self._begun

    def _replace(self, found: model.HostState, began: int) -> model.HostState:
        with self._guard:
            before = self._state
            newer = {a for a, when in self._read_at.items() if when > began}
            self._state = change_detection.merge(found, before, newer)
            self._whole_at = began
            after = self._state
        _tell(after, before)
        return after


def _tell(after: model.HostState, before: model.HostState) -> None:
    for problem in after.problems:
        if problem not in before.problems:
            LOG.warning("%s: %s", problem.where, problem.reason)
