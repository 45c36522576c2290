# SPDX-License-Identifier: Apache-2.0
"""Number of examples and cases: few on each push, all on request."""

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

# Percent; ``tests/run --whole`` sets 100.
SHARE = int(os.environ.get("NOVA_ACCEL_EXAMPLES", "") or 10)
IS_WHOLE = SHARE >= 100
# Fewer examples find no errors.
LEAST = 5


def examples(count: int) -> int:
    """Return the number of examples of a property in this run."""
    return max(LEAST, count * SHARE // 100)


def share(cases: Sequence[Case], least: int = LEAST) -> Sequence[Case]:
    """Return the cases of this run: first, last, and some between."""
    count = max(1, max(least, len(cases) * SHARE // 100) - 1)
    last = len(cases) - 1
    return [
        cases[n]
        for n in sorted({last * step // count for step in range(count + 1)})
    ]


def part(cases: Sequence[Case], number: int) -> Sequence[Case]:
    """Return every n-th case, so that n consecutive numbers cover all."""
    step = max(1, 100 // SHARE)
    return cases[number % step :: step]
