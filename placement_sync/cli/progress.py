# SPDX-License-Identifier: Apache-2.0
"""Messages to a user at a terminal while a command waits."""

import contextlib
import sys
import threading
from collections.abc import Iterator

# A command that ends earlier prints its result only.
DELAY_S = 2.0


@contextlib.contextmanager
def waiting_for(command: str, subject: str) -> Iterator[None]:
    """Print a line on standard error if the block takes over 2 seconds.

    Nothing is printed unless standard error is a terminal.

    :param command: name of the program, printed first.
    :param subject: noun behind "waiting for".
    """
    if not sys.stderr.isatty():
        yield
        return
    line = f"{command}: waiting for {subject}"
    timer = threading.Timer(DELAY_S, _print, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
