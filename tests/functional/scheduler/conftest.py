# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process, empty at the start of each test."""

from collections.abc import Iterator
from typing import Any

import pytest
from keystoneauth1 import exceptions, session
from nova.scheduler.client import report
from placement.tests.functional.fixtures import placement
from requests import adapters

from filters import accelerator_filter
from tests.functional.scheduler import scheduling
from tests.functional.sync.support import placement_app


@pytest.fixture(scope="module")
def placement_endpoint() -> Iterator[str]:
    """Return the endpoint of Placement's own fixture, over WSGI."""
    placement_app.spare_work()
    with placement.PlacementFixture() as service:
        yield service.endpoint


@pytest.fixture
def cloud(
    placement_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> scheduling.Cloud:
    placement_app.empty()
    # wsgi-intercept knows nothing of socket options.
    monkeypatch.setattr(
        session.TCPKeepAliveAdapter,
        "init_poolmanager",
        adapters.HTTPAdapter.init_poolmanager,
    )
    accelerator_filter.refusals.cache_clear()
    served = scheduling.Cloud(placement_endpoint)
    client = report.SchedulerReportClient(served.client)
    ask = client.get

    def get(url: str, *args: Any, **kwargs: Any) -> Any:
        served.read_paths.append(url)
        if served.broken and served.broken in url:
            raise exceptions.ConnectFailure(url)
        return ask(url, *args, **kwargs)

    monkeypatch.setattr(client, "get", get)
    monkeypatch.setattr(report, "PLACEMENTCLIENT", client)
    return served
