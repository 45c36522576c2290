# SPDX-License-Identifier: Apache-2.0
"""Requests for a pass soon."""

import threading
import time


class WakeUps:
    """Requests for a pass soon, made by any thread; they wait for a loop."""

    def __init__(self) -> None:
        """Request nothing yet."""
        self.condition = threading.Condition()
        #: Times of the first and the latest pending request.
        self.pending: tuple[float, float] | None = None

    def wake(self) -> None:
        """Request a pass soon; calls in quick succession give one pass.

        A call during a pass requests one more after it.
        """
        with self.condition:
            now = time.monotonic()
            self.pending = (self.pending[0] if self.pending else now, now)
            self.condition.notify_all()
