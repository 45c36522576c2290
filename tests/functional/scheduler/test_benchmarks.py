# SPDX-License-Identifier: Apache-2.0
"""The scheduler's benchmarks run on a minimal cloud."""

import json
import re

import pytest
from nova.scheduler import request_filter

from tests.benchmark import (
    candidates,
    device_list,
    filter_cost,
)
from tests.benchmark.schedule import costs, goals, table

# A flavor with a card, and cards whose allocations the filter has to read.
_CASES_ON_PUSH = ("single", "doubtful cards")


def test_candidates_benchmark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    size = "--hosts 3 --cards 2 --vfs 3 --pairs 1 --runs 1"

    assert candidates.main(size.split()) == 0

    lines = capsys.readouterr().out.splitlines()
    numbers = [
        [int(n) for n in line.split()[1:3]]
        for line in lines
        if line.startswith(("providers", "  candidates"))
    ]
    # Nova's and nova-accel's: all providers; one vGPU on three hosts, with a
    # limit and without; two on one host, where two vGPUs may share a card.
    assert numbers == [[21, 9], [18, 6], [18, 6], [30, 4], [30, 4]]
    assert len(re.findall(r"^  (?:seconds|bytes) ", "\n".join(lines), re.M))


def test_filter_cost_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])

    assert filter_cost.main("--hosts 3 --cards 2 --runs 1".split()) == 0

    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == (
        "3 hosts, 3 of their cards in use; 6 candidates on 3 hosts"
    )
    # All facts are those of Nova's own answer.
    assert {row[:34].strip(): int(row[52:59]) for row in rows} == {
        "NUMATopologyFilter": 0,
        "request filter alone": 0,
        "captured candidates": 0,
        "flavor without accelerators": 0,
    }


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            name, marks=[pytest.mark.long] * (name not in _CASES_ON_PUSH)
        )
        for name in costs.CASES
    ],
)
def test_scheduling_adds_no_more_requests_than_its_goals(
    capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """Counts do not depend on the number of hosts; ratios are not checked."""
    size = "--hosts 12 --cards 2 --runs 1 --json --cases"

    assert table.main([*size.split(), case]) == 0

    ((sides,),) = (
        by_case.values()
        for by_case in json.loads(capsys.readouterr().out).values()
    )
    added = sides["accel"]["requests"] - sides["alone"]["requests"]
    assert added <= goals.REQUESTS[case][-1].limit
    assert case != "doubtful cards" or added > 0


@pytest.mark.long
def test_device_list_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    size = "--hosts 3 --cards 2 --runs 1"

    assert device_list.main(size.split()) == 0

    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "3 hosts, 6 cards, 3 of them in use"
    # Services, traits, providers and amounts; the holders of three cards.
    assert {row[:28].strip(): row.split()[-2:] for row in rows} == {
        "client alone": ["0", "0"],
        "resource provider list": ["2", "9"],
        "accel device list": ["7", "6"],
        "accel device list --long": ["7", "6"],
        "accel host list": ["7", "3"],
    }
