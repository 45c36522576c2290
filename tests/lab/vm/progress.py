# SPDX-License-Identifier: Apache-2.0
"""Progress lines: seconds since the start, and what was done."""

import sys
import time


class Progress:
    """Prints ``[ 12.3 s] text`` lines to standard error."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print one line, at once."""
        line = f"[{self.elapsed_s:5.1f} s] {text}"
        print(line, file=sys.stderr, flush=True)
