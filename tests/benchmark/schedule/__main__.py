# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.benchmark.schedule``; see ``costs``."""

import sys

from tests.benchmark.schedule import table

if __name__ == "__main__":
    sys.exit(table.main())
