# SPDX-License-Identifier: Apache-2.0
"""Operations on kernel files: pass, uevent, spawn, one card, whole host.

    python -m tests.benchmark.host_reads [--vfs 64 --cards 64]

The host is a simulated kernel of L40S; the first card has all of the VFs, the
others have one each. "Unchanged" is a pass that finds no change. "Uevent" is
the reading after a uevent, when another program has made a partition on one
VF; "spawn" makes the partition of one server, including what the executor
reads back. Each readlink, open, listdir, scandir and stat of a file below the
root is one operation; writes are not counted.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

from nova_accel.host.execute import privileged
from tests.lab import fakehost
from tests.support.hosts import measured

CASES: dict[
    str, Callable[[measured.MeasuredHost], measured.FileOperations]
] = {
    "unchanged": measured.MeasuredHost.pass_unchanged,
    "uevent of one VF": measured.MeasuredHost.handle_uevent,
    "spawn of one vGPU": measured.MeasuredHost.spawn,
    "one card": measured.MeasuredHost.read_card,
    "whole host": measured.MeasuredHost.read_host,
}


def measure(technology: str, cards: int, vfs: int) -> list[tuple[int, float]]:
    """Return the operations and seconds of each case on a new host."""
    results = []
    spec = measured.describe(technology, cards, vfs)
    with (
        tempfile.TemporaryDirectory() as root,
        fakehost.simulated_sysfs(spec, pathlib.Path(root)) as kernel,
    ):
        host = measured.MeasuredHost(kernel)
        for run in CASES.values():
            began = time.perf_counter()
            operations = run(host)
            seconds = time.perf_counter() - began
            results.append((operations.reads, seconds))
    return results


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vfs", type=int, default=64)
    parser.add_argument("--cards", type=int, default=64)
    arguments = parser.parse_args()
    if reason := fakehost.missing():
        parser.error(reason)
    privileged.run_here()
    among = f"1 of {arguments.cards} cards"
    print(f"{arguments.vfs} VFs{'':26}{'1 card':>16}{among:>22}")
    for technology in measured.TECHNOLOGIES:
        alone = measure(technology, 1, arguments.vfs)
        crowded = measure(technology, arguments.cards, arguments.vfs)
        for case, lone, among_many in zip(CASES, alone, crowded, strict=True):
            print(
                f"{technology + ', ' + case:32}"
                f"{lone[0]:8} {lone[1]:8.3f} s"
                f"{among_many[0]:12} {among_many[1]:8.3f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
