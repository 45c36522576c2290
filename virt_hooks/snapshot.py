# SPDX-License-Identifier: Apache-2.0
"""The host as it was last read, for callers that must not wait."""

import logging
import threading
from collections.abc import Iterable

from nova_accel import model, survey

LOG = logging.getLogger(__name__)


class Snapshot:
    """Keeps the last reading of the host. Thread-safe.

    Nova asks for the provider tree under the lock of all its claims: what
    it gets comes from here, and no kernel file is read then. Cards are
    read side by side; a whole reading that began before a card was read
    does not take back what that showed.
    """

    def __init__(self, source: survey.Survey) -> None:
        """Keep what ``source`` reads; nothing is read yet."""
        self._survey = source
        self._whole = threading.Lock()
        self._guard = threading.Lock()
        self._state = model.HostState()
        self._clock = 0
        self._read_at: dict[str, int] = {}

    @property
    def state(self) -> model.HostState:
        """Return the last reading; an empty host before the first."""
        return self._state

    def refresh(self) -> model.HostState:
        """Read the whole host now and return it.

        Problems are logged once, when they appear and when they change.
        """
        with self._whole:
            began = self._clock
            return self._replace(self._survey.read(), began)

    def refresh_changed(self) -> model.HostState:
        """Return the host, read anew if anything can have changed."""
        with self._whole:
            began = self._clock
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
        found = self._survey.read_devices(devices)
        with self._guard:
            before = self._state
            self._state = survey.merge(before, found, wanted)
            self._clock += 1
            self._read_at |= dict.fromkeys(wanted, self._clock)
            after = self._state
        _tell(after, before)
        return after

    def _replace(
        self, found: model.HostState, began: int
    ) -> model.HostState:
        with self._guard:
            before = self._state
            newer = {a for a, when in self._read_at.items() if when > began}
            self._state = survey.merge(found, before, newer)
            after = self._state
        _tell(after, before)
        return after


def _tell(after: model.HostState, before: model.HostState) -> None:
    for problem in after.problems:
        if problem not in before.problems:
            LOG.warning("%s: %s", problem.where, problem.reason)
