# SPDX-License-Identifier: Apache-2.0
"""Some lives of the fault campaign, and schedules that failed once.

``tests/run campaign`` runs thousands; see ``tests/campaign``.
"""

import pytest

from tests.functional.nova.support import releases

if not releases.is_on_threads():
    pytest.skip("the campaign has native threads", allow_module_level=True)

from nova_accel import errors
from nova_accel.host.state import claims_file
from tests.campaign import campaign, world
from virt_hooks import nova_driver
from virt_hooks.attach import hot_attach
from virt_hooks.guest import connection
from virt_hooks.operations.fpga import region_programs
from virt_hooks.report import claim_checks
from virt_hooks.spawn import lifecycle

SEED = 14
LIVES = 2
# Nova misses that the first server runs, and deletes its allocation.
_FORGOTTEN = '["boot", "host1", "small", ["save:8:2:after:0"], null]'


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


@pytest.mark.long
@pytest.mark.parametrize("technology", world.TECHNOLOGIES)
def test_lives(technology: str) -> None:
    numbers = tuple(range(LIVES))
    assert [] == _failures(campaign.Chunk(SEED, technology, numbers))


def _replay(*steps: str) -> list[str]:
    schedule = f"[{', '.join(steps)}]"
    return _failures(campaign.Chunk(SEED, "region", (0,), schedule))


@pytest.mark.long
def test_a_device_may_be_allocated_before_it_is_reserved() -> None:
    """Nova loses the request to delete the last server's allocation."""
    second = '["boot", "host1", "small", [], null]'
    last = '["boot", "host1", "small", ["placement:1:1:before:0"], null]'
    assert _replay(_FORGOTTEN, second, last) == []


@pytest.mark.long
def test_a_device_that_is_offered_twice_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        claim_checks.MissingAllocations, "update", lambda _: None
    )
    (finding,) = _replay(_FORGOTTEN)
    assert finding.startswith("region, life 0: oversold: 1 of ")


@pytest.mark.long
@pytest.mark.parametrize("way", ["read", "write"])
def test_a_card_that_hangs_stops_no_pass_and_no_stock_server(way: str) -> None:
    boot = '["boot", "host1", "small", [], null]'
    hang = f'["hang", "host1", "{way}", [], null]'
    schedule = f'[{boot}, {hang}, ["delete", 0, "", [], null]]'
    assert [] == _failures(campaign.Chunk(SEED, "whole", (0,), schedule))


_BOOT = '["boot", "host1", "small", [], null]'


# Nova loses the first server, whose guest goes on.
_LOST = '["boot", "host1", "small", ["libvirt:8:10000:before:2"], null]'
_RESTART = '["restart", "host1", "", [], null]'


@pytest.mark.long
def test_a_guest_without_a_claim_may_keep_its_device() -> None:
    chunk = campaign.Chunk(SEED, "whole", (0,), f"[{_LOST}, {_RESTART}]")
    assert [] == _failures(chunk)


def test_a_device_of_a_guest_that_is_offered_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection.TrackedUse, "functions", frozenset())
    chunk = campaign.Chunk(SEED, "whole", (0,), f"[{_LOST}, {_RESTART}]")
    exposed = [text for text in _failures(chunk) if "exposed: " in text]
    assert any("Nova can assign it" in text for text in exposed)
    assert any("Placement offers it" in text for text in exposed)


@pytest.mark.long
def test_a_resized_server_that_lost_its_claims_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resize = '["resize_there", 0, "other", [], null]'
    chunk = campaign.Chunk(SEED, "whole", (0,), f"[{_BOOT}, {resize}]")
    assert [] == _failures(chunk)
    monkeypatch.setattr(lifecycle.Lifecycle, "claims", lambda _: ())
    lost = [text for text in _failures(chunk) if "lost: " in text]
    assert any("lost: resized server" in text for text in lost)


@pytest.mark.long
def test_a_function_of_a_card_that_is_set_aside_is_not_offered() -> None:
    """The second function of the card is not reset, either."""
    delete = '["delete", 0, "", ["write:0:1:before:0"], null]'
    chunk = campaign.Chunk(SEED, "pairs", (0,), f"[{_BOOT}, {delete}]")
    assert [] == _failures(chunk)


@pytest.mark.long
def test_mig_mode_changes_under_guests() -> None:
    """With a guest on the card, only its free GPU instances go."""
    change = '["set_mig", "host1", "", [], null]'
    restore = '["restore", "host1", "", [], null]'
    passes = '["passes", "host1", "", [], null]'
    delete = '["delete", 0, "", [], null]'
    steps = (change, passes, restore, _BOOT, change, passes, delete, change)
    chunk = campaign.Chunk(SEED, "mig", (0,), f"[{', '.join(steps)}]")
    (report,) = _live(chunk)
    assert report.findings == []
    assert report.log.count("set_mig host1 ") == 3


@pytest.mark.long
def test_a_server_that_can_not_be_used_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resume(*_: object, **__: object) -> None:
        raise RuntimeError("the guest stays as it is")

    monkeypatch.setattr(nova_driver.AccelLibvirtDriver, "resume", resume)
    findings = _failures(campaign.Chunk(SEED, "whole", (0,), f"[{_BOOT}]"))
    assert any(": resume: " in finding for finding in findings)


@pytest.mark.long
@pytest.mark.parametrize("point", [40, 5])
def test_a_killed_service_has_no_further_effect(point: int) -> None:
    boot = f'["boot", "host1", "small", ["kill:{point}:1:before:0"], null]'
    (report,) = _live(campaign.Chunk(SEED, "whole", (0,), f"[{boot}]"))
    assert [line.partition(":")[0] for line in report.struck] == ["kill"]
    assert report.findings == []


@pytest.mark.long
def test_a_device_that_can_not_be_attached_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attach(*_: object, **__: object) -> None:
        raise errors.ClaimError("a server", "nothing can be attached")

    monkeypatch.setattr(hot_attach.HotAttach, "attach", attach)
    findings = _failures(campaign.Chunk(SEED, "whole", (0,), f"[{_BOOT}]"))
    assert any("unusable: active server" in finding for finding in findings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        (
            (region_programs.RegionPrograms, "plan_blanking", {}),
            "unscrubbed: ",
        ),
        ((claims_file.ClaimsFile, "write", None), "the claims file"),
    ],
)
def test_what_the_judge_reads_outside_nova_is_found(
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[type, str, object],
    finding: str,
) -> None:
    owner, name, result = broken
    monkeypatch.setattr(owner, name, lambda *_, **__: result)
    steps = f'[{_BOOT}, ["delete", 0, "", [], null], {_BOOT}]'
    chunk = campaign.Chunk(SEED, "blanked_region", (0,), steps)
    assert any(finding in text for text in _failures(chunk))
