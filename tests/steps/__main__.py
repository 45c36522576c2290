# SPDX-License-Identifier: Apache-2.0
"""``python3 -m tests.steps VERB STEP``: records of passed steps for tests/run.

``digest`` prints the digest of a step's inputs. ``find`` prints when the step
passed with these inputs, and exits with 1 if it did not. ``add`` records that
it passed. ``tests`` prints the folders and files of its own tests.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.steps import records
from tests.steps.step_list import STEPS

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run one verb; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.steps")
    parser.add_argument("verb", choices=("digest", "find", "add", "tests"))
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--scope", choices=records.SCOPES, default="whole")
    parser.add_argument("--digest", default="")
    args = parser.parse_args(arguments)
    lab = Path(os.environ.get("NOVA_ACCEL_LAB", ROOT / ".lab"))
    store = records.Records(lab / "passed", ROOT)
    step = STEPS[args.step]
    if args.verb == "tests":
        print(*step.tests, sep="\n")
        return 0
    if args.verb == "digest":
        print(store.compute(step))
        return 0
    if args.verb == "add":
        now = datetime.datetime.now().astimezone()
        date = now.strftime("%Y-%m-%d %H:%M")
        return not store.add(args.step, step, args.scope, args.digest, date)
    record = store.find(args.step, step, args.scope)
    if record is None:
        return 1
    print(record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
