# SPDX-License-Identifier: Apache-2.0
"""The whole chain on real services, a real libvirt and a real kernel."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.site import Site, fault
from tests.lab.cloud import actual_state
from tests.lab.cloud.processes import LabError

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_MDEV = "CUSTOM_MDEV"
_MTTY_2 = "CUSTOM_MDEV_MTTY_2"
#: mtty's 24 serial ports (MTTY_MAX_PORTS, samples/vfio-mdev/mtty.c), two for
#: each mdev of the type mtty-2.
_ALL_OF_MTTY = 12

_FILL = f"""
for n in $(seq {_ALL_OF_MTTY}); do
    uuid=$(cat /proc/sys/kernel/random/uuid)
    echo $uuid > {actual_state.MTTY_TYPES}/mtty-2/create && echo $uuid
done 2>/dev/null
"""
#: Removing an mdev that a guest holds would wait for the guest to end.
_REMOVE = f"""
for uuid; do
    device={actual_state.MDEV_DEVICES}/$uuid
    [ ! -e $device ] || echo 1 > $device/remove
done
"""


@pytest.fixture
def accelerated(lab: Site) -> Any:
    return lab.flavor(
        "mdev",
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
    )


@pytest.fixture
def strangers(lab: Site) -> Iterator[list[str]]:
    """Take every port of mtty behind nova's back."""
    made = lab.on_host(_FILL).split()
    assert len(made) == _ALL_OF_MTTY
    yield made
    lab.on_host(_REMOVE, *made)


@pytest.fixture
def compute_restored(lab: Site) -> Iterator[None]:
    yield
    lab.cloud.restart_compute()


def test_devices_are_child_providers(lab: Site) -> None:
    providers = lab.providers()
    mtty = providers["mtty"]
    assert mtty.inventories[_MDEV]["total"] == 2
    assert mtty.inventories[_MDEV]["reserved"] == 0
    assert {_MTTY_2, "CUSTOM_OWNER_NOVA_ACCEL"} <= mtty.traits
    t4 = providers["0000_02_00_0"]
    assert t4.inventories["PGPU"]["total"] == 1
    assert "CUSTOM_ACCELERATOR_VENDOR_NVIDIA" in t4.traits


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
def test_hard_reboot_keeps_the_mdev(lab: Site, accelerated: Any) -> None:
    server = lab.boot("e2e-reboot", accelerated)
    before = lab.hostdevs(server, "mdev")
    claims = lab.claims()
    offset = lab.log_offset("nova-compute")
    server = lab.hard_reboot(server)
    assert server.status == "ACTIVE", fault(server)
    assert lab.hostdevs(server, "mdev") == before
    assert lab.mdevs() == set(before)
    assert lab.claims() == claims
    assert not lab.logged("nova-compute", "remove mdev|create mdev", offset)


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


@pytest.mark.long
def test_slot_that_cannot_be_made_fails_the_server_and_nothing_else(
    lab: Site, accelerated: Any, strangers: list[str]
) -> None:
    offset = lab.log_offset("nova-compute")
    server = lab.await_build(lab.request("e2e-full", accelerated))
    assert server.status == "ERROR"
    reason = rf"accelerators of server {server.id}.*mtty"
    assert lab.logged("nova-compute", reason, offset), fault(server)
    assert lab.mdevs() == set(strangers)
    assert lab.allocations(server) == {}
    assert lab.claims() == {}

    lab.on_host(_REMOVE, *strangers)
    assert lab.mdevs() == set()
    # The provider must be as before, without waiting for a periodic pass.
    lab.cloud.restart_compute()
    lab.boot("e2e-after", accelerated)


@pytest.mark.long
def test_unknown_driver_name_stops_nova_compute(
    lab: Site, compute_restored: None
) -> None:
    overlay = lab.layout.state / "unknown-driver.conf"
    overlay.write_text("[nova_accel]\ndrivers = mdev, nonsense\n")
    offset = lab.log_offset("nova-compute")
    with pytest.raises(LabError, match="nova-compute ended with 1"):
        lab.cloud.restart_compute(overlay)
    (line,) = lab.logged("nova-compute", "nova-accel can't start", offset)
    assert "[nova_accel] drivers = nonsense" in line
    assert "known are" in line
