# SPDX-License-Identifier: Apache-2.0
"""The host as it was last read, for callers that must not wait."""

import logging
import threading
from collections.abc import Callable

from nova_accel import model

LOG = logging.getLogger(__name__)


class Snapshot:
    """Keeps the last reading of the host.

    Nova asks for the provider tree under the lock of all its claims: what
    it gets comes from here, and no kernel file is read then.
    """

    def __init__(self, read: Callable[[], model.HostState]) -> None:
        """Keep what ``read`` returns; nothing is read yet."""
        self._read = read
        self._reading = threading.Lock()
        self._state = model.HostState()
        self._problems: tuple[model.Problem, ...] = ()

    @property
    def state(self) -> model.HostState:
        """Return the last reading; an empty host before the first."""
        return self._state

    def refresh(self) -> model.HostState:
        """Read the host now and return what was read.

        Problems are logged once, when they appear and when they change.
        """
        with self._reading:
            state = self._read()
            known, self._problems = self._problems, state.problems
            self._state = state
        for problem in state.problems:
            if problem not in known:
                LOG.warning("%s: %s", problem.where, problem.reason)
        return state
