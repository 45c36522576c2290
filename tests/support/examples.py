# SPDX-License-Identifier: Apache-2.0
"""Number of hypothesis examples: few on each push, all on request."""

import os

# Percent; ``tests/run --whole`` sets 100.
SHARE = int(os.environ.get("NOVA_ACCEL_EXAMPLES", "") or 25)
# Fewer examples find no errors.
LEAST = 5


def examples(count: int) -> int:
    """Return the number of examples of a property in this run."""
    return max(LEAST, count * SHARE // 100)
