# SPDX-License-Identifier: Apache-2.0
"""Some lives of the fault campaign, and schedules that failed once.

``tests/run campaign`` runs thousands; see ``tests/campaign``.
"""

import pytest

from tests.functional.nova.support import releases

if not releases.is_on_threads():
    pytest.skip("the campaign has native threads", allow_module_level=True)

from tests.campaign import campaign, world
from virt_hooks.report import claim_checks

SEED = 14
LIVES = 3
# Nova misses that the first server runs, and deletes its allocation.
_FORGOTTEN = '["boot", "host1", "small", ["save:8:2:after:0"], null]'
#: Technologies that run each time; the others are marked "long".
_USUAL = ("whole",)


def _failures(chunk: campaign.Chunk) -> list[str]:
    reports: list[campaign.Report] = []
    campaign.live_all(chunk, reports.append)
    return [
        f"{report.technology}, life {report.life}: {finding}"
        for report in reports
        for finding in report.findings
    ]


@pytest.mark.parametrize(
    "technology",
    [
        pytest.param(name, marks=[] if name in _USUAL else [pytest.mark.long])
        for name in world.TECHNOLOGIES
    ],
)
def test_lives(technology: str) -> None:
    numbers = tuple(range(LIVES))
    assert [] == _failures(campaign.Chunk(SEED, technology, numbers))


def _replay(*steps: str) -> list[str]:
    schedule = f"[{', '.join(steps)}]"
    return _failures(campaign.Chunk(SEED, "region", (0,), schedule))


def test_a_device_may_be_allocated_before_it_is_reserved() -> None:
    """Nova loses the request to delete the last server's allocation."""
    second = '["boot", "host1", "small", [], null]'
    last = '["boot", "host1", "small", ["placement:1:1:before:0"], null]'
    assert _replay(_FORGOTTEN, second, last) == []


def test_a_device_that_is_offered_twice_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        claim_checks.MissingAllocations, "update", lambda _: None
    )
    (finding,) = _replay(_FORGOTTEN)
    assert finding.startswith("region, life 0: oversold: 1 of ")


@pytest.mark.parametrize(
    "way", ["read", pytest.param("write", marks=pytest.mark.long)]
)
def test_a_card_that_hangs_stops_no_pass_and_no_stock_server(way: str) -> None:
    boot = '["boot", "host1", "small", [], null]'
    hang = f'["hang", "host1", "{way}", [], null]'
    schedule = f'[{boot}, {hang}, ["delete", 0, "", [], null]]'
    assert [] == _failures(campaign.Chunk(SEED, "whole", (0,), schedule))
