# SPDX-License-Identifier: Apache-2.0
"""Loop of passes: interval, jitter, back-off, debounced events.

Plain threading and time only, so that it is native threads' as well as
green ones', whichever the service has chosen.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from nova_accel import errors

LOG = logging.getLogger(__name__)

# While passes fail, the wait between them doubles up to so many
# intervals: a Placement that is down for an hour is not asked by each
# host each minute, and it is back for all within some minutes.
MAX_BACKOFF = 4
# Wake-ups that never pause (48 VFs come one by one, a card that flaps)
# put a pass off by so many settling times at the most.
MAX_SETTLING = 10
# How often the loop looks whether a watch asks for a pass, in seconds.
POLL_S = 1.0
# So many doublings are above any bound; more only make the number long.
_ENOUGH = 16


def wait_s(interval_s: float, failures: int) -> float:
    """Return the seconds to the next pass after so many failures in a row.

    The first failure is tried again after one interval, as if nothing
    had been; see MAX_BACKOFF.
    """
    doubled = 2.0 ** max(0, min(failures, _ENOUGH) - 1)
    return interval_s * min(MAX_BACKOFF, doubled)


def calm_s(
    interval_s: float, settle_s: float, failures: int, took_s: float
) -> float:
    """Return the seconds for which even wake-ups bring no next pass.

    As long as the pass took, so that a host that never rests is read half
    of the time at the most, and doubled with each failure in a row; never
    more than an interval.
    """
    return min(
        interval_s, max(took_s, settle_s * 2.0 ** min(failures, _ENOUGH))
    )


class Loop:
    """One thread that runs a pass at once, by the clock, and when woken.

    The pass never runs twice at once. What it raises is logged, when it
    is not what it raised the last time, and the loop goes on. A loop that
    was stopped stays stopped.
    """

    def __init__(
        self,
        run: Callable[[], object],
        interval_s: float,
        jitter: float = 0.1,
        name: str = "placement-sync",
        settle_s: float = 0.5,
        watch: Callable[[], bool] | None = None,
    ) -> None:
        """Run nothing yet.

        :param run: the pass; what it returns is not looked at.
        :param interval_s: seconds from the end of a pass to the next one.
        :param jitter: the share by which that varies up and down, so that
            hosts that were started together do not stay together.
        :param name: the thread's, and how the log calls the pass.
        :param settle_s: seconds without a further wake-up after which a
            wake-up is obeyed.
        :param watch: polled between passes; True is a wake-up. It must
            return at once, and never raise.
        """
        self._run = run
        self._interval_s = interval_s
        self._jitter = jitter
        self._settle_s = settle_s
        self._name = name
        self._watch = watch
        self._thread: threading.Thread | None = None
        self._bell = threading.Condition()
        self._is_stopping = False
        # When the first and the latest unheard wake-up came.
        self._woken: tuple[float, float] | None = None
        self._failures = 0
        self._said = ""

    def start(self) -> None:
        """Start the thread, a daemon; one that was started is left alone."""
        with self._bell:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop, name=self._name, daemon=True
                )
                self._thread.start()

    def wake(self) -> None:
        """Ask for a pass soon; many calls in a row are one pass.

        A call while a pass runs asks for one more after it.
        """
        with self._bell:
            self._note_wake_up()
            self._bell.notify_all()

    def _note_wake_up(self) -> None:
        now = time.monotonic()
        first = self._woken[0] if self._woken else now
        self._woken = (first, now)

    def stop(self, timeout: float = 0.0) -> bool:
        """Let a pass that runs be the last one; return whether it ended.

        With a timeout of 0 this may be called from a signal's handler.

        :param timeout: seconds to wait for the end of that pass.
        """
        with self._bell:
            self._is_stopping = True
            self._bell.notify_all()
            thread = self._thread
        if thread is None:
            return True
        if timeout > 0 and thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def run_forever(self) -> None:
        """Run until ``stop()`` was called and the last pass has ended.

        The passes run in the loop's own thread here, too: this one only
        waits, and is free to run the handlers of signals.
        """
        self.start()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _loop(self) -> None:
        due = calm = time.monotonic()
        while self._rest(due, calm):
            began = time.monotonic()
            self._pass()
            ended = time.monotonic()
            due = ended + self._wait_s()
            calm = ended + calm_s(
                self._interval_s,
                self._settle_s,
                self._failures,
                ended - began,
            )

    def _wait_s(self) -> float:
        least, most = 1 - self._jitter, 1 + self._jitter
        share = random.uniform(least, most)  # noqa: S311
        return wait_s(self._interval_s, self._failures) * share

    def _rest(self, due: float, calm: float) -> bool:
        """Wait for the next pass; return whether there shall be one.

        :param due: when it comes although nobody asks for it.
        :param calm: when it comes at the earliest if somebody does.
        """
        with self._bell:
            while not self._is_stopping:
                if self._watch is not None and self._watch():
                    self._note_wake_up()
                now = time.monotonic()
                then = min(due, max(calm, self._settled(due)))
                if then <= now:
                    break
                pause = then - now
                self._bell.wait(min(pause, POLL_S) if self._watch else pause)
            self._woken = None
            return not self._is_stopping

    def _settled(self, due: float) -> float:
        """Return when the wake-ups so far may be obeyed, or ``due``."""
        if self._woken is None:
            return due
        first, latest = self._woken
        return min(
            latest + self._settle_s, first + MAX_SETTLING * self._settle_s
        )

    def _pass(self) -> None:
        try:
            self._run()
        except errors.AcceleratorError as error:
            self._failed(str(error), None)
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}", error)
        else:
            if self._failures:
                LOG.info(
                    "%s: it works again after %d failures",
                    self._name,
                    self._failures,
                )
            self._failures = 0
            self._said = ""

    def _failed(self, text: str, surprise: Exception | None) -> None:
        """Log a failure once; only what nobody expected has a traceback."""
        self._failures += 1
        if text == self._said:
            return
        self._said = text
        if surprise is None:
            LOG.warning("%s: %s; it is tried again", self._name, text)
        else:
            LOG.error(
                "%s failed, and is tried again: %s",
                self._name,
                text,
                exc_info=surprise,
            )
