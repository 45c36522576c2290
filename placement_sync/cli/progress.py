# SPDX-License-Identifier: Apache-2.0
"""Waits of commands, and messages to their user beside the output.

The messages begin with ``nova-accel``, also those of ``openstack accel``.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from nova_accel import errors
from nova_accel.cli import application

# A command that ends earlier prints its result only; after 3 s there is a
# line.
DELAY_S = 2.5
# Seconds between two checks of a condition.
_POLL_S = 1.0


class NeverMetError(errors.AcceleratorError):
    """The condition of a wait can't be met any more."""


@contextlib.contextmanager
def waiting_for(subject: str) -> Iterator[None]:
    """Print a line on standard error if the block takes over 2.5 seconds.

    :param subject: noun behind "waiting for".
    """
    timer = threading.Timer(DELAY_S, print_line, (f"waiting for {subject}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SlowAnswers:
    """Lines about answers that take long, one for each service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._printed: set[str] = set()

    @contextlib.contextmanager
    def waiting_for(self, request: str) -> Iterator[None]:
        """Print a line if the block takes over 2.5 seconds.

        :param request: ``Placement: GET /traits``.
        """
        timer = threading.Timer(DELAY_S, self._print, (request,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _print(self, request: str) -> None:
        service = request.partition(":")[0]
        with self._lock:
            is_new = service not in self._printed
            self._printed.add(service)
        if is_new:
            print_line(f"waiting for {request}")


def wait_until(
    condition: str, find: Callable[[], str], seconds: float
) -> bool:
    """Wait for a condition; print the reason and return False without it.

    :param condition: noun behind "waiting for".
    :param find: returns the present reason to wait, or "". It is called
        again after a ServiceError, and not after a NeverMetError.
    :param seconds: timeout.
    """
    with waiting_for(condition):
        try:
            reason = _poll(find, seconds)
        except NeverMetError as error:
            reason = str(error)
    if reason:
        print_line(f"gave up waiting for {condition}: {reason}")
    return not reason


def _poll(find: Callable[[], str], seconds: float) -> str:
    """Return the last reason to wait, empty if there is none any more."""
    until = time.monotonic() + seconds
    while True:
        try:
            reason = find()
        except errors.ServiceError as error:
            reason = str(error)
        if not reason:
            return ""
        if time.monotonic() >= until:
            return f"{reason}, after {seconds:g} s"
        time.sleep(min(_POLL_S, max(0.0, until - time.monotonic())))


def warn(*texts: str) -> None:
    """Print warnings on standard error."""
    for text in texts:
        print_line(f"warning: {text}")


def print_line(text: str) -> None:
    """Print a text on standard error, without control characters."""
    line = application.replace_controls(f"nova-accel: {text}")
    print(line, file=sys.stderr, flush=True)
