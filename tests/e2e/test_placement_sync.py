# SPDX-License-Identifier: Apache-2.0
"""The operator's command beside a running nova-compute."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.site import Site, fault, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_MDEV = "CUSTOM_MDEV"
_DRAINED = "CUSTOM_ACCELERATOR_DRAINED"
_PROFILE = "CUSTOM_MDEV_MTTY_2"
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


@pytest.fixture
def undrained(lab: Site) -> Iterator[None]:
    yield
    lab.sync("undrain", "mtty")


def is_drained(lab: Site) -> bool:
    mtty = lab.providers()["mtty"]
    return _DRAINED in mtty.traits


@pytest.mark.long
@pytest.mark.usefixtures("quick", "undrained")
def test_a_drained_card_takes_no_new_server_and_keeps_its_own(
    lab: Site, accelerated: Any
) -> None:
    server = lab.boot("e2e-kept", accelerated)
    mdevs = lab.hostdevs(server, "mdev")
    lab.synced("drain", "mtty", "--reason", "its fan is loud")
    wait_for(lambda: is_drained(lab), "nova-compute to drain the card")

    mtty = lab.providers()["mtty"]
    assert mtty.inventories[_MDEV]["total"] == 2
    assert mtty.inventories[_MDEV]["reserved"] == 2
    assert _PROFILE not in mtty.traits
    refused = lab.await_build(lab.request("e2e-new", accelerated))
    assert refused.status == "ERROR"
    assert "its fan is loud" in lab.synced("drain")
    assert "its fan is loud" in lab.accel(
        "inspect", f"--config-file={lab.layout.etc}/nova-compute.conf"
    )

    # What runs there goes on, whatever is restarted.
    server = lab.hard_reboot(server)
    assert server.status == "ACTIVE", fault(server)
    lab.restart_compute("quick", "sync_interval = 2")
    assert is_drained(lab)
    assert lab.hostdevs(server, "mdev") == mdevs
    assert lab.mdevs() == set(mdevs)
    assert lab.allocations(server)[mtty.uuid] == {_MDEV: 1}

    lab.synced("undrain", "mtty")
    wait_for(lambda: not is_drained(lab), "nova-compute to offer it again")
    assert lab.providers()["mtty"].inventories[_MDEV]["reserved"] == 0
    lab.boot("e2e-after", accelerated)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_what_is_wiped_by_hand_is_back(lab: Site) -> None:
    mtty = lab.providers()["mtty"]
    lab.place("DELETE", f"/resource_providers/{mtty.uuid}")
    wait_for(lambda: "mtty" in lab.providers(), "the provider to return")

    def is_back() -> bool:
        now = lab.providers()["mtty"]
        return (
            now.uuid == mtty.uuid
            and now.inventories.keys() == mtty.inventories.keys()
            and now.traits == mtty.traits
        )

    wait_for(is_back, "its records to return")
    lab.place("DELETE", f"/resource_providers/{mtty.uuid}/traits")
    wait_for(is_back, "its traits to return")
    lab.place("DELETE", f"/resource_providers/{mtty.uuid}/inventories")
    wait_for(is_back, "its inventories to return")


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
@pytest.mark.usefixtures("quick")
def test_the_pass_of_nova_compute_is_known_without_placement(
    lab: Site,
) -> None:
    def passes() -> list[dict[str, Any]]:
        done = lab.sync("status", "-f", "json")
        status = json.loads(done.stdout)
        return [s for s in status["writers"] if s["writer"] == "nova-compute"]

    (status,) = wait_for(passes, "nova-compute's first pass")
    assert status["devices"]["ok"] >= 3
    assert status["error"] == ""
    assert "nova-compute" in lab.synced("status")


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
