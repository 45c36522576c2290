# SPDX-License-Identifier: Apache-2.0
"""Command: run lives until enough faults occurred, and report problems."""

import argparse
import logging
import os
import sys
from pathlib import Path


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="tests/run campaign --", description=__doc__
    )
    parser.add_argument(
        "--faults", type=int, default=1000, help="stop after so many struck"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--life", type=int, help="run this life only, and print what it did"
    )
    parser.add_argument(
        "--schedule", default="", help="run a schedule, as was printed"
    )
    parser.add_argument(
        "--technology", action="append", help="may be repeated; default: all"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--shrink", action="store_true", help="shorten failing schedules"
    )
    parser.add_argument(
        "--log", type=Path, help="write Nova's log of the lives to a file"
    )
    parser.add_argument(
        "--report", type=Path, help="append each failure to a file, as JSON"
    )
    return parser.parse_args()


def main() -> int:
    """Run the campaign; the exit status is 0 if no life failed."""
    options = parse()
    # Of Nova's harness, which takes the campaign for one long test.
    os.environ["OS_TEST_TIMEOUT"] = "0"
    if options.log is None:
        logging.disable(logging.CRITICAL)
    from tests.campaign import campaign

    return campaign.run(options)


if __name__ == "__main__":
    sys.exit(main())
