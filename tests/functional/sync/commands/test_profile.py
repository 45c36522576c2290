# SPDX-License-Identifier: Apache-2.0
"""Command ``profile list`` with captured hosts in Placement."""

import json
import pathlib
import uuid
from typing import Any

import pytest

from nova_accel.model import names
from placement_sync.client import cloud_client
from placement_sync.fleet.flavors import cloud
from tests.functional.sync.support import captured_hosts, servers

Output = pytest.CaptureFixture[str]
HOSTS = ("a40-vf-mdev", "a100-mig-mdev", "t4-mdev", "qat", "dfl-pac")


class Cloud(captured_hosts.Cloud):
    """Captured hosts, and the profiles of their devices."""

    def run(self, *words: str, status: int = 0) -> str:
        code, out, err = self.execute("profile", "list", *words)
        assert code == status
        return err if status else out

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        """Return all profiles by name, also those without free units."""
        return self.free_rows("--all", *words)

    def free_rows(self, *words: str) -> dict[str, dict[str, Any]]:
        profiles = json.loads(self.run("--long", "-f", "json", *words))
        return {profile["Profile"]: profile for profile in profiles}


@pytest.fixture
def site(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: Output
) -> Cloud:
    return Cloud(placement, tmp_path, capsys)


def test_many_hosts_are_three_requests(site: Cloud) -> None:
    for name in HOSTS:
        site.add(name, MEMORY_MB=65536, VCPU=64)
    profiles = site.rows()
    # The last request reads a region in fault.
    paths = [
        request.path.partition("?")[0] for request in site.placement.clear()
    ]
    # Two of them are sent at the same time.
    assert sorted(paths[:3]) == [
        "/allocation_candidates",
        "/resource_providers",
        "/traits",
    ]
    assert len(paths) == 4 and paths[3].endswith("/inventories")
    a40 = profiles["A40-8Q"]
    # One partition has no allocation and is reserved.
    assert (a40["Free"], a40["Most"]) == (5, 6)
    assert a40["Hosts"] == "a40-vf-mdev.example.org"
    assert a40["Charges"] == {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}
    assert profiles["A100-2-10C"]["Charges"]["CUSTOM_MIG_SLICE"] == 2
    assert profiles["8086:37c8-VF"]["Kind"] == "VF"
    assert profiles["region"]["Kind"] == "FPGA region"
    function = profiles["d8424dc4a4a3c413f89e433683f9040b"]
    assert function["Model"] == "INTEL ARRIA 10 PAC"
    assert profiles.keys() > site.free_rows().keys()
    assert site.free_rows() == site.free_rows("--free")
    assert set(site.rows("--host", "t4-mdev")) == set(
        site.rows("--model", "T4")
    )


def test_other_hosts_are_left_out(site: Cloud) -> None:
    root = site.add("t4-mdev", MEMORY_MB=65536)
    other = str(uuid.uuid4())
    site.placement.call(
        "POST", "/resource_providers", {"uuid": other, "name": "plain"}
    )
    site.placement.call(
        "PUT",
        f"/resource_providers/{other}/inventories",
        {
            "resource_provider_generation": 0,
            "inventories": {"MEMORY_MB": {"total": 65536}},
        },
    )
    read = cloud.read(cloud_client.from_endpoint(site.placement.url))
    assert set(read.hosts) == {device.root for device in read.devices}
    assert set(read.hosts) == {root}


def test_hosts_without_free_memory_are_read(site: Cloud) -> None:
    site.add("a40-vf-mdev", MEMORY_MB=65536)
    site.add("t4-mdev", MEMORY_MB=-65536, VCPU=8)
    site.add("qat")
    profiles = site.rows()
    # Candidates: two requests in bulk, then one for a single host.
    paths = [request.path for request in site.placement.clear()]
    assert len([p for p in paths if p.startswith("/alloc")]) == 3
    assert {"A40-8Q", "T4-4Q", "8086:37c8-VF"} <= profiles.keys()
    assert profiles["T4-4Q"]["Free"] > 0


def test_allocated_units_are_not_free(site: Cloud) -> None:
    root = site.add("a40-vf-mdev", MEMORY_MB=65536)
    card = names.provider_uuid(root, "0000:41:00.0")
    site.allocate(card, VGPU=2, CUSTOM_GPU_MEMORY_MB=16384)
    assert site.rows()["A40-8Q"]["Free"] == 3
    text = site.run("--free", "--long")
    assert "CUSTOM_VGPU_NVIDIA_A40_8Q" in text


def test_the_option_all_is_named_if_nothing_is_free(site: Cloud) -> None:
    root = site.add("a40-vf-mdev", MEMORY_MB=65536)
    card = names.provider_uuid(root, "0000:41:00.0")
    site.allocate(card, VGPU=5, CUSTOM_GPU_MEMORY_MB=40960)
    assert "--all lists all" in site.run("--host", "a40-vf-mdev")
    assert site.run("--all").count("A40-8Q ") == 1


def test_a_device_off_the_pci_bus_has_its_host(site: Cloud) -> None:
    root = site.add("a40-vf-mdev", MEMORY_MB=65536)
    card = names.provider_uuid(root, "0000:41:00.0")
    host = "a40-vf-mdev.example.org"
    # No address of a PCI function, and the mark of the name is in it.
    site.placement.call(
        "PUT",
        f"/resource_providers/{card}",
        {"name": f"{host}_accel_x_accel_y", "parent_provider_uuid": root},
    )
    client = cloud_client.from_endpoint(site.placement.url)
    (device,) = cloud.read(client).devices
    assert (device.host, device.address) == (host, "x_accel_y")


def test_a_drained_card_offers_nothing_and_keeps_its_totals(
    site: Cloud,
) -> None:
    root = site.add("a40-vf-mdev", MEMORY_MB=65536)
    client = cloud_client.from_endpoint(site.placement.url)
    (card,) = cloud.read(client).devices
    path = f"/resource_providers/{card.uuid}"
    body = site.placement.call("GET", f"{path}/traits")
    site.placement.call("PUT", f"/traits/{names.DRAINED_TRAIT}")
    body["traits"].append(names.DRAINED_TRAIT)
    site.placement.call("PUT", f"{path}/traits", body)
    site.set_inventories(card.uuid, VGPU=-6, CUSTOM_GPU_MEMORY_MB=-49152)
    assert site.free_rows() == {}
    assert not site.rows()["A40-8Q"]["Offered"]
    assert site.run().startswith("No card takes servers now; see")
    (card,) = cloud.read(client).devices
    assert card.root == root and card.is_unavailable
    assert card.capacities["VGPU"].total == 6
    assert card.capacities["VGPU"].free == 0
