# SPDX-License-Identifier: Apache-2.0
"""The whole chain on real services, a real libvirt and a real kernel."""

from typing import Any

import pytest

from tests.e2e.support.site import Site, fault

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_MDEV = "CUSTOM_MDEV"
_MTTY_2 = "CUSTOM_MDEV_MTTY_2"


@pytest.fixture
def accelerated(lab: Site) -> Any:
    return lab.flavor(
        "mdev",
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
    )


def test_devices_are_child_providers(lab: Site) -> None:
    providers = lab.providers()
    mtty = providers["mtty"]
    assert mtty.inventories[_MDEV]["total"] == 2
    assert mtty.inventories[_MDEV]["reserved"] == 0
    assert {_MTTY_2, "CUSTOM_OWNER_NOVA_ACCEL"} <= mtty.traits
    t4 = providers["0000_02_00_0"]
    assert t4.inventories["PGPU"]["total"] == 1
    assert "CUSTOM_ACCELERATOR_DEVICE_10DE_1EB8" in t4.traits


def test_two_servers_fill_the_device_and_a_third_is_refused(
    lab: Site, accelerated: Any
) -> None:
    mtty = lab.providers()["mtty"].uuid
    requested = [lab.request(f"e2e-{n}", accelerated) for n in range(2)]
    servers = [lab.await_build(server) for server in requested]
    assert [s.status for s in servers] == ["ACTIVE"] * 2, [
        fault(server) for server in servers
    ]
    uuids = {s.id: lab.hostdevs(s, "mdev") for s in servers}
    all_mdevs = {uuid for mdevs in uuids.values() for uuid in mdevs}
    assert [len(mdevs) for mdevs in uuids.values()] == [1, 1]
    assert len(all_mdevs) == 2
    assert lab.mdevs() == all_mdevs
    for server in servers:
        assert lab.allocations(server)[mtty] == {_MDEV: 1}
    claims = lab.claims()
    assert sorted(claims) == sorted(uuids)
    assert len({slot for slots in claims.values() for slot in slots}) == 2

    offset = lab.log_offset("nova-scheduler")
    third = lab.await_build(lab.request("e2e-third", accelerated))
    assert third.status == "ERROR"
    assert "No valid host was found" in third.fault["message"]
    # The owner sees the request, the operator also other servers' use.
    assert "no accelerator offers CUSTOM_MDEV with" in third.fault["message"]
    assert " left" not in third.fault["message"]
    reason = f"No host can serve .* of server {third.id}"
    assert lab.logged("nova-scheduler", reason, offset)
    assert lab.mdevs() == all_mdevs

    lab.clean()
    assert lab.mdevs() == set()
    assert lab.claims() == {}
    for server in servers:
        assert lab.allocations(server) == {}


@pytest.mark.long
def test_restarted_compute_still_knows_what_servers_hold(
    lab: Site, accelerated: Any
) -> None:
    server = lab.boot("e2e-restart", accelerated)
    mdevs = set(lab.hostdevs(server, "mdev"))
    lab.cloud.restart_compute()
    assert lab.mdevs() == mdevs
    mtty = lab.providers()["mtty"]
    assert mtty.inventories[_MDEV]["total"] == 2
    assert mtty.inventories[_MDEV]["reserved"] == 0
    lab.delete(server)
    lab.wait_gone(server)
    assert lab.mdevs() == set()
    assert lab.claims() == {}
    assert lab.allocations(server) == {}


def test_whole_function_passthrough(lab: Site) -> None:
    flavor = lab.flavor(
        "gpu",
        resources_GPU1__PGPU="1",
        trait_GPU1__CUSTOM_GPU_PCI_10DE_1EB8="required",
    )
    t4 = lab.providers()["0000_02_00_0"].uuid
    server = lab.boot("e2e-gpu", flavor)
    assert lab.hostdevs(server, "pci") == ["0000:02:00.0"]
    assert lab.allocations(server)[t4] == {"PGPU": 1}
    driver = "basename $(readlink /sys/bus/pci/devices/0000:02:00.0/driver)"
    assert lab.on_host(driver).strip() == "vfio-pci"
    lab.delete(server)
    lab.wait_gone(server)
    assert lab.claims() == {}
    again = lab.boot("e2e-gpu-again", flavor)
    assert lab.hostdevs(again, "pci") == ["0000:02:00.0"]
