# SPDX-License-Identifier: Apache-2.0
"""Some lives of the fault campaign, and schedules that failed once.

``tests/run campaign`` runs thousands; see ``tests/campaign``.
"""

import pytest

from tests.functional.nova.support import releases

if not releases.is_on_threads():
    pytest.skip("the campaign has native threads", allow_module_level=True)

from tests.campaign import campaign, world
from virt_hooks import nova_driver
from virt_hooks.report import claim_checks
from virt_hooks.spawn import lifecycle

SEED = 14
LIVES = 2
# Nova misses that the first server runs, and deletes its allocation.
_FORGOTTEN = '["boot", "host1", "small", ["save:8:2:after:0"], null]'
#: Technologies that run each time; the others are marked "long".
_USUAL = ("whole",)


def _live(chunk: campaign.Chunk) -> list[campaign.Report]:
    reports: list[campaign.Report] = []
    campaign.live_all(chunk, reports.append)
    return reports


def _failures(chunk: campaign.Chunk) -> list[str]:
    return [
        f"{report.technology}, life {report.life}: {finding}"
        for report in _live(chunk)
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


_BOOT = '["boot", "host1", "small", [], null]'


@pytest.mark.long
def test_a_guest_without_a_claim_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle.Lifecycle, "claims", lambda _: ())
    findings = _failures(campaign.Chunk(SEED, "whole", (0,), f"[{_BOOT}]"))
    assert any("exposed: " in finding for finding in findings)


def test_a_server_that_can_not_be_used_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resume(*_: object, **__: object) -> None:
        raise RuntimeError("the guest stays as it is")

    monkeypatch.setattr(nova_driver.AccelLibvirtDriver, "resume", resume)
    findings = _failures(campaign.Chunk(SEED, "whole", (0,), f"[{_BOOT}]"))
    assert any("unusable: resume" in finding for finding in findings)


@pytest.mark.parametrize(
    "point", [40, pytest.param(5, marks=pytest.mark.long)]
)
def test_a_killed_service_has_no_further_effect(point: int) -> None:
    boot = f'["boot", "host1", "small", ["kill:{point}:1:before:0"], null]'
    (report,) = _live(campaign.Chunk(SEED, "whole", (0,), f"[{boot}]"))
    assert [line.partition(":")[0] for line in report.struck] == ["kill"]
    assert report.findings == []
