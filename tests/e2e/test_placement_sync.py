# SPDX-License-Identifier: Apache-2.0
"""The operator's command beside a running nova-compute."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.site import Site, fault

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_MDEV = "CUSTOM_MDEV"
_OWNER = "CUSTOM_OWNER_NOVA_ACCEL"


@pytest.fixture
def accelerated(lab: Site) -> Any:
    return lab.flavor(
        "mdev",
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
    )


@pytest.fixture
def quick(lab: Site) -> Iterator[None]:
    """Let nova-compute sync with Placement every other second."""
    lab.restart_compute("quick", "sync_interval = 2")
    yield
    lab.cloud.restart_compute()


@pytest.mark.usefixtures("quick")
def test_a_pass_from_outside_agrees_with_nova_compute(
    lab: Site, accelerated: Any
) -> None:
    """Both read the same host, so the second has nothing to write."""
    server = lab.boot("e2e-agreed", accelerated)
    before = lab.providers()
    for _ in range(3):
        report = json.loads(lab.synced("run", "--once", "-f", "json"))
        assert report["calls"] == [], report
        assert report["writes"] == 0
    assert lab.providers() == before
    lab.delete(server)
    lab.wait_gone(server)
    assert json.loads(lab.synced("run", "--once", "-f", "json"))["calls"] == []


@pytest.mark.long
def test_the_audit_finds_and_heals_a_leaked_allocation(
    lab: Site, accelerated: Any
) -> None:
    server = lab.boot("e2e-audited", accelerated)
    assert json.loads(lab.synced("audit", "-f", "json"))["findings"] == []

    mtty = lab.providers()["mtty"].uuid
    leaked = str(uuid.uuid4())
    lab.place(
        "PUT",
        f"/allocations/{leaked}",
        {
            "allocations": {mtty: {"resources": {_MDEV: 1}}},
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
            "project_id": "nobody",
            "user_id": "nobody",
        },
    )
    done = lab.sync("audit", "-f", "json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["kind"] == "leaked-allocation"
    assert finding["consumer"] == leaked

    lab.synced("audit", "--heal")
    assert json.loads(lab.synced("audit", "-f", "json"))["findings"] == []
    assert lab.allocations(server)[mtty] == {_MDEV: 1}
    server = lab.hard_reboot(server)
    assert server.status == "ACTIVE", fault(server)
