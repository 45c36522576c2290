# SPDX-License-Identifier: Apache-2.0
"""Worker process with one cloud and its random requests.

Run it by hand to make a run again::

    python -m tests.functional.agreement.worker SEED REQUESTS
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from nova_accel.host.execute import privileged
from nova_accel.model import providers
from tests.functional.agreement import cards, node, run, service
from tests.lab import fakehost
from tests.lab.fakehost import nvml

#: Requests between two lines of progress, and two full comparisons.
EVERY = 500
#: Disagreements that are printed in full; all are counted.
SHOWN = 40


@contextlib.contextmanager
def cloud(seed: int) -> Iterator[run.Run]:
    """Yield the hosts of cards.HOSTS in a cloud of their own."""
    privileged.run_here()
    chance = random.Random(seed)  # noqa: S311 - no secret
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        placement = service.Service(stack)
        hosts = {}
        for spec in cards.HOSTS:
            kernel = stack.enter_context(
                fakehost.simulated_sysfs(spec.spec, directory / spec.name)
            )
            nvml.load(kernel)
            root = providers.ProviderRoot(
                name=spec.name,
                uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, spec.name)),
            )
            host = node.Node(kernel, spec.rules, root, chance)
            stack.callback(host.close)
            hosts[host] = spec.dynamic
        yield run.Run(placement, hosts, chance)


def main(seed: int, requests: int) -> int:
    """Make the requests, print progress; return the number of errors."""
    start = time.monotonic()
    print(f"seed {seed}: {requests} requests", flush=True)
    with cloud(seed) as cloud_:
        for number in range(1, requests + 1):
            cloud_.run_step()
            if number % EVERY == 0 or number == requests:
                cloud_.compare_all()
                print(
                    f"seed {seed}: {number} requests,"
                    f" {time.monotonic() - start:.0f} s: {cloud_.summary()}",
                    flush=True,
                )
        cloud_.delete_all()
        for disagreement in cloud_.disagreements[:SHOWN]:
            print(f"seed {seed}: {disagreement}", flush=True)
        print(f"seed {seed}: all deleted: {cloud_.summary()}", flush=True)
        return len(cloud_.disagreements)


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
