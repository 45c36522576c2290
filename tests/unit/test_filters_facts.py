# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from filters import facts, request

(GROUP,) = request.parse_request({"resources:VGPU": "1"}).groups


def test_before_the_first_host_reports_nothing_of_ours_is_offered() -> None:
    """Placement refuses a trait that nobody ever reported."""

    def get(path: str) -> Any:
        raise facts.FactsError(
            path,
            'HTTP 400: {"errors": [{"detail": "No such trait(s):'
            ' CUSTOM_OWNER_NOVA_ACCEL."}]}',
        )

    assert facts.fetch_offers(get, GROUP) == {}


@pytest.mark.parametrize(
    "reason", ["HTTP 400: malformed", "HTTP 503: busy", "ConnectFailure()"]
)
def test_another_failure_stays_unknown(reason: str) -> None:
    def get(path: str) -> Any:
        raise facts.FactsError(path, reason)

    with pytest.raises(facts.FactsError):
        facts.fetch_offers(get, GROUP)
