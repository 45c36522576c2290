# SPDX-License-Identifier: Apache-2.0
"""Status of nova-compute's passes, and its publication."""

import time
from pathlib import Path

import pytest

from placement_sync.daemon import heartbeat
from tests.lab import fakehost
from tests.support.hosts import simulated
from tests.unit.virt_hooks.report import pass_runners
from virt_hooks.report import reporter


class RegisteredReporter(reporter.Reporter):
    """Reporter of a nova-compute that has registered its node."""

    is_registered = True


@pytest.mark.parametrize(
    ("reporter_class", "condition"),
    [
        (reporter.Reporter, "for nova-compute to register its node"),
        (RegisteredReporter, "for nova-compute to read claims and domains"),
    ],
)
def test_a_pass_that_waits_records_its_condition(
    kernel: fakehost.Controller,
    tmp_path: Path,
    state: Path,
    reporter_class: type[reporter.Reporter],
    condition: str,
) -> None:
    life = simulated.started(kernel)
    options = pass_runners.write_options(tmp_path / "nova.conf", state)
    pass_runner = pass_runners.make(options, life, reporter_class)
    assert pass_runner.run() is None
    (status,) = heartbeat.read(str(state))
    assert status.waiting == condition
    assert status.succeeded is None


def test_metrics_are_an_extension_of_the_status(
    kernel: fakehost.Controller, tmp_path: Path, state: Path
) -> None:
    life = simulated.started(kernel)
    file = tmp_path / "accel.prom"
    options = pass_runners.write_options(
        tmp_path / "nova.conf",
        state,
        f"root = {tmp_path}\nsync_interval = 60\nstats_interval = 60\n"
        f"metrics_textfile = {file}\n",
    )
    pass_runner = pass_runners.make(options, life)
    pass_runner.start()
    try:
        end = time.monotonic() + 30
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        pass_runner.stop()
    assert 'writer="nova-compute"' in file.read_text()
    (status,) = heartbeat.read(str(state))
    assert status.sampled is not None
