# SPDX-License-Identifier: Apache-2.0
"""Messages to a user at a terminal while a command waits."""

import contextlib
import sys
import threading
from collections.abc import Iterator

# Commands that are done by then print their result only.
DELAY_S = 2.0


@contextlib.contextmanager
def waiting_for(command: str, what: str) -> Iterator[None]:
    """Print on standard error what is waited for, once, if it takes long.

    Nothing is printed where standard error is no terminal.

    :param command: name of the program, in front of the line.
    """
    if not sys.stderr.isatty():
        yield
        return
    line = f"{command}: waiting for {what}"
    timer = threading.Timer(DELAY_S, _print, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
