# SPDX-License-Identifier: Apache-2.0
"""Number of processes of the tests in Nova's harness."""

import os
from pathlib import Path

import pytest

try:
    from nova import thread_pool_factory
except ImportError:  # before Nova 34
    pass
else:
    # A service that ends after its test would end the threads of all later
    # tests of the process: Nova's own fixture prevents it only until then.
    thread_pool_factory.shutdown_all_executors = lambda: None

# A process has Nova's services and the servers of its simulated hosts: 450
# MiB at most. It waits for them a third of its time.
_MEMORY_KIB = 768 * 1024
_FOR_EACH_CPU = 1.5


# There is no such hook without pytest-xdist.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``-n auto`` means for these tests."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text().splitlines()
    )
    available = int(fields["MemAvailable"].split()[0])
    cpus = len(os.sched_getaffinity(0))
    return max(1, min(int(cpus * _FOR_EACH_CPU), available // _MEMORY_KIB))
