# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.benchmark.density``; see ``cards``."""

from tests.benchmark.density import cards

if __name__ == "__main__":
    cards.main()
