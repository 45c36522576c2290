# SPDX-License-Identifier: Apache-2.0
"""Number of examples of hypothesis: few on each push, many when asked."""

import os

# Percent; ``tests/run --whole`` sets 100.
SHARE = int(os.environ.get("NOVA_ACCEL_EXAMPLES", "") or 25)
# Fewer find nothing.
LEAST = 5


def examples(count: int) -> int:
    """Return how many of a law's examples are tried in this run."""
    return max(LEAST, count * SHARE // 100)
