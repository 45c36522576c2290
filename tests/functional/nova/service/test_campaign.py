# SPDX-License-Identifier: Apache-2.0
"""Some lives of the fault campaign, and schedules that failed once.

``tests/run campaign`` runs thousands; see ``tests/campaign``.
"""

import pytest

from tests.functional.nova.support import releases

if not releases.is_on_threads():
    pytest.skip("the campaign has native threads", allow_module_level=True)

from tests.campaign import campaign, world

SEED = 14
LIVES = 3
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
