# SPDX-License-Identifier: Apache-2.0
"""Loop of passes: interval, jitter, back-off, debounced events.

Uses only ``threading`` and ``time``, so that it works with native and with
green threads.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from nova_accel import errors
from placement_sync.daemon.wake_ups import WakeUps

LOG = logging.getLogger(__name__)

# While passes fail, the wait between them doubles up to so many intervals:
# a Placement that is down is not flooded, and each host notices within
# minutes that it is back.
MAX_BACKOFF = 4
# Wake-ups without a pause (48 VFs appear one by one, a card flaps) delay a
# pass by at most so many debounce times.
MAX_DEBOUNCE = 10
# Seconds between two polls of the watch, and of signals.
POLL_S = 1.0
# More doublings exceed any bound and only make the number longer.
_MAX_DOUBLINGS = 16


def compute_wait_s(interval_s: float, failures: int) -> float:
    """Return the seconds to the next pass after ``failures`` in a row.

    One interval after the first failure, too; see MAX_BACKOFF.
    """
    doubled = 2.0 ** max(0, min(failures, _MAX_DOUBLINGS) - 1)
    return interval_s * min(MAX_BACKOFF, doubled)


def compute_quiet_s(
    interval_s: float, debounce_s: float, failures: int, pass_s: float
) -> float:
    """Return the minimum seconds to the next pass after a wake-up.

    The duration of the last pass, so that passes take at most half of the
    time; at least the debounce time, doubled with each failure in a row;
    at most an interval.
    """
    return min(
        interval_s,
        max(pass_s, debounce_s * 2.0 ** min(failures, _MAX_DOUBLINGS)),
    )


class Schedule:
    """Times of the passes of one host, on any clock.

    ``due`` is the time of the next pass without a wake-up, ``earliest`` that
    of a pass after one. Hosts that started, or recovered, at the same time
    get different phases: their next wait is a random part of the interval.
    Jitter alone would take hours to spread them.
    """

    def __init__(
        self,
        interval_s: float,
        debounce_s: float,
        jitter: float,
        now: float,
    ) -> None:
        """Make the first pass due; the arguments are those of ``Loop``."""
        self._interval_s = interval_s
        self._debounce_s = debounce_s
        self._jitter = jitter
        self._is_in_phase = True
        self.due = self.earliest = now

    def end_pass(self, started: float, ended: float, failures: int) -> None:
        """Compute the times of the next pass.

        :param failures: number of failures in a row, 0 after a success.
        """
        least, most = 1 - self._jitter, 1 + self._jitter
        if self._is_in_phase and not failures:
            least, most = 0.0, 1.0
        self._is_in_phase = bool(failures)
        share = random.uniform(least, most)  # noqa: S311
        self.due = ended + compute_wait_s(self._interval_s, failures) * share
        self.earliest = ended + compute_quiet_s(
            self._interval_s, self._debounce_s, failures, ended - started
        )


class Loop:
    """Thread that runs passes at start, at an interval, and on wake-up.

    Passes never overlap. The loop continues after an exception, and logs
    it unless the last pass raised the same. A stopped loop can't be
    started again.
    """

    def __init__(
        self,
        run: Callable[[], object],
        interval_s: float,
        jitter: float = 0.1,
        name: str = "placement-sync",
        debounce_s: float = 0.5,
        watch: Callable[[], bool] | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        """Run no pass yet.

        :param run: the pass; its return value is ignored.
        :param interval_s: seconds from the end of a pass to the next one.
        :param jitter: fraction by which the interval varies up and down, so
            that hosts started together do not run passes together.
        :param name: name of the thread, and of the pass in the log.
        :param debounce_s: seconds without a further wake-up after which a
            wake-up starts a pass.
        :param watch: polled between passes; True is a wake-up. It must not
            block or raise.
        :param wake_ups: those of threads that do not know the loop.
        """
        self._run = run
        self._interval_s = interval_s
        self._jitter = jitter
        self._debounce_s = debounce_s
        self._name = name
        self._watch = watch
        self._thread: threading.Thread | None = None
        self._wake_ups = wake_ups or WakeUps()
        self._condition = self._wake_ups.condition
        self._is_stopping = False
        self._failures = 0
        self._last_error = ""

    def start(self) -> None:
        """Start the daemon thread, unless it was started already."""
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop, name=self._name, daemon=True
                )
                self._thread.start()

    def wake(self) -> None:
        """Request a pass soon; see ``WakeUps.wake``."""
        self._wake_ups.wake()

    def stop(self, timeout: float = 0.0) -> bool:
        """Stop after a running pass; return whether the thread has ended.

        With a timeout of 0 this may be called from a signal handler.

        :param timeout: seconds to wait for the end of the pass.
        """
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
            thread = self._thread
        if thread is None:
            return True
        if timeout > 0 and thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def run_forever(self) -> None:
        """Block until ``stop()`` is called and the last pass has ended.

        The passes run in the loop's own thread, so that the calling thread
        can run signal handlers. It wakes up for them: a signal that arrives
        just before the thread waits, or in another thread, does not end the
        wait.
        """
        self.start()
        thread = self._thread
        while thread is not None and thread.is_alive():
            thread.join(POLL_S)

    def _loop(self) -> None:
        schedule = Schedule(
            self._interval_s, self._debounce_s, self._jitter, time.monotonic()
        )
        while self._wait_for_pass(schedule.due, schedule.earliest):
            started = time.monotonic()
            self._run_pass()
            schedule.end_pass(started, time.monotonic(), self._failures)

    def _wait_for_pass(self, due: float, earliest: float) -> bool:
        """Wait for the next pass; return False if the loop is stopping.

        :param due: time of the pass without a wake-up.
        :param earliest: earliest time of the pass after a wake-up.
        """
        with self._condition:
            while not self._is_stopping:
                if self._watch is not None and self._watch():
                    self.wake()
                now = time.monotonic()
                then = min(due, max(earliest, self._get_debounced(due)))
                if then <= now:
                    break
                pause = then - now
                self._condition.wait(
                    min(pause, POLL_S) if self._watch else pause
                )
            self._wake_ups.pending = None
            return not self._is_stopping

    def _get_debounced(self, due: float) -> float:
        """Return the time at which pending wake-ups start a pass, or due."""
        if self._wake_ups.pending is None:
            return due
        first, latest = self._wake_ups.pending
        return min(
            latest + self._debounce_s, first + MAX_DEBOUNCE * self._debounce_s
        )

    def _run_pass(self) -> None:
        try:
            self._run()
        except errors.AcceleratorError as error:
            self._log_failure(str(error), None)
        except Exception as error:
            self._log_failure(f"{type(error).__name__}: {error}", error)
        else:
            if self._failures:
                LOG.info(
                    "%s: succeeded again after %d failures",
                    self._name,
                    self._failures,
                )
            self._failures = 0
            self._last_error = ""

    def _log_failure(self, text: str, unexpected: Exception | None) -> None:
        """Log a new failure; an unexpected exception with its traceback."""
        self._failures += 1
        if text == self._last_error:
            return
        self._last_error = text
        if unexpected is None:
            LOG.warning("%s: %s; it will be retried", self._name, text)
        else:
            LOG.error(
                "%s failed and will be retried: %s",
                self._name,
                text,
                exc_info=unexpected,
            )
