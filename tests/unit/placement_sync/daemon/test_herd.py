# SPDX-License-Identifier: Apache-2.0
"""Passes of many hosts that start or fail together do not stay in step."""

import random

import pytest

from placement_sync.daemon import loop
from tests.benchmark import passes

HOSTS, WORKERS, MINUTE = 2000, 16, 60.0
COST = passes.Cost(first=17, changed=26, later=1, seconds=0.005)
# Requests per second of passes whose phases are uniform, and the largest
# number that chance makes of it in some minutes.
MEAN = HOSTS / loop.compute_wait_s(passes.INTERVAL_S, 0)
PEAK = 2.0 * MEAN


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(41)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_restart_of_all_hosts_leaves_no_peaks(is_changed: bool) -> None:
    simulation = passes.Simulation([0.0] * HOSTS, COST, WORKERS, is_changed)
    traffic = simulation.run(15 * MINUTE)
    assert traffic.failed == 0
    assert traffic.recovered <= MINUTE + 1.0
    begin = traffic.recovered + MINUTE
    assert traffic.peak(begin, begin + 10 * MINUTE) < PEAK
    assert traffic.mean(begin, begin + 10 * MINUTE) == pytest.approx(
        MEAN, rel=0.1
    )


def test_unchanged_hosts_share_the_first_minute_of_a_restart() -> None:
    traffic = passes.Simulation([0.0] * HOSTS, COST, WORKERS).run(MINUTE)
    assert traffic.peak(0, MINUTE) < PEAK * COST.first


def test_placement_is_asked_less_while_it_is_down_and_finds_no_herd() -> None:
    down = (5 * MINUTE, 15 * MINUTE)
    simulation = passes.Simulation([0.0] * HOSTS, COST, WORKERS, down=down)
    traffic = simulation.run(30 * MINUTE)
    # One pass and then one, two and four intervals.
    assert traffic.failed <= 5 * HOSTS
    assert traffic.peak(down[1], down[1] + 10 * MINUTE) < PEAK


@pytest.mark.slow
def test_an_overloaded_placement_recovers() -> None:
    """Each host keeps what it has read when a pass fails."""
    slow = passes.Cost(first=17, changed=26, later=1, seconds=0.2)
    simulation = passes.Simulation([0.0] * HOSTS, slow, WORKERS, True)
    traffic = simulation.run(60 * MINUTE)
    assert 0 < traffic.recovered < 30 * MINUTE
