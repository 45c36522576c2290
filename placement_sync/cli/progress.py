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

# A command that ends earlier prints its result only.
DELAY_S = 2.0
# Seconds between two checks of a condition.
_POLL_S = 1.0


class NeverMetError(errors.AcceleratorError):
    """The condition of a wait can't be met any more."""


@contextlib.contextmanager
def waiting_for(subject: str) -> Iterator[None]:
    """Print a line on standard error if the block takes over 2 seconds.

    Nothing is printed unless standard error is a terminal.

    :param subject: noun behind "waiting for".
    """
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(DELAY_S, print_line, (f"waiting for {subject}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    """Print a text on standard error."""
    print(f"nova-accel: {text}", file=sys.stderr, flush=True)
