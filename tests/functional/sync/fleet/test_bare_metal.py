# SPDX-License-Identifier: Apache-2.0
"""Bare-metal nodes beside compute nodes, as Nova's Ironic driver has them."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.model import names
from tests.functional.sync.fleet import test_fleet
from tests.functional.sync.support import (
    captured_hosts,
    nova_standin,
    one_card,
    servers,
)

CLASS = "CUSTOM_BAREMETAL_GPU_NVIDIA_H100XM_X8"
COUNT = "CUSTOM_GPU_NVIDIA_H100XM_X8"
PROFILE = "gpu_nvidia_h100xm_x8"
MODEL = "CUSTOM_ACCELERATOR_MODEL_NVIDIA_H100XM"
FREE, USED, FAULTY = (f"0000000{n}-0000-4000-8000-00000000000b" for n in "123")
SERVER = "dddddddd-0000-4000-8000-00000000000d"
FLAVOR = (
    f"resources:{CLASS}=1",
    "resources:VCPU=0",
    "resources:MEMORY_MB=0",
    "resources:DISK_GB=0",
    f"trait:{COUNT}=required",
)


def add_node(placement: servers.Server, uuid: str, *traits: str) -> None:
    """Add a node; its provider has the node's uuid as its name."""
    for trait in traits:
        placement.call("PUT", f"/traits/{trait}")
    placement.call("PUT", f"/resource_classes/{CLASS}")
    one_card.add(placement, uuid, uuid)
    one_card.put(placement, uuid, "inventories", {CLASS: {"total": 1}})
    one_card.put(placement, uuid, "traits", sorted(traits))


def dump(placement: servers.Server) -> list[Any]:
    """Return all of Placement's data of the nodes."""
    parts = ("", "/traits", "/inventories", "/allocations")
    return [
        placement.call("GET", f"/resource_providers/{uuid}{part}")
        for uuid in (FREE, USED, FAULTY)
        for part in parts
    ]


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[test_fleet.Site]:
    for uuid in (FREE, USED):
        add_node(placement, uuid, COUNT, MODEL)
    add_node(placement, FAULTY, COUNT, MODEL, names.FAULTED_TRAIT)
    with nova_standin.serve() as nova:
        site = test_fleet.Site(placement, tmp_path, capsys, nova)
        site.allocate(USED, SERVER, **{CLASS: 1})
        site.nova.add_server(SERVER, USED, "metal")
        yield site


def test_nodes_are_devices(site: test_fleet.Site) -> None:
    rows = site.read("device", "list")
    assert [
        (r["Host"], r["Address"], r["Model"], r["State"], r["Servers"])
        for r in rows
    ] == [
        (FREE, "bare metal", "NVIDIA H100XM", "ok", 0),
        (USED, "bare metal", "NVIDIA H100XM", "ok", 1),
        (FAULTY, "bare metal", "NVIDIA H100XM", "faulted", 0),
    ]
    assert rows[0]["Still fits"] == [{"profile": PROFILE, "count": 1}]


def test_nodes_are_profiles(site: test_fleet.Site) -> None:
    cloud = captured_hosts.Cloud(site.placement, site.place, site.capsys)
    code, out, err = cloud.execute("profile", "list", "-f", "json")
    assert code == 0, err
    (profile,) = json.loads(out)
    assert profile["Profile"] == PROFILE
    assert profile["Kind"] == "bare metal"
    assert (profile["Free"], profile["Cards"]) == (1, "1 of 3")


def test_nodes_have_holders_and_projects(site: test_fleet.Site) -> None:
    (row,) = site.read("allocation", "list")
    assert row["Server"] == "metal"
    (usage,) = site.read("usage", "list")
    assert (usage["Resource class"], usage["Units"]) == (CLASS, 1)


def test_a_flavor_of_nodes_has_no_group(site: test_fleet.Site) -> None:
    site.nova.add_flavor("metal")
    words = ("--profile", PROFILE, "--dry-run", "-f", "json")
    code, out, err = site.execute("flavor", "set", "metal", *words)
    assert (code, err) == (0, "")
    added = json.loads(out)["set"]
    assert {f"{k}={v}" for k, v in added.items()} == {*FLAVOR}


def test_a_flavor_of_nodes_replaces_another(site: test_fleet.Site) -> None:
    site.nova.add_flavor(
        "old",
        **{
            "resources:CUSTOM_BAREMETAL_OLD": "1",
            "trait:CUSTOM_GPU_OLD_X1": "required",
        },
    )
    words = ("--profile", PROFILE, "--dry-run", "-f", "json")
    _, out, _ = site.execute("flavor", "set", "old", *words)
    assert json.loads(out)["removed"] == [
        "resources:CUSTOM_BAREMETAL_OLD",
        "trait:CUSTOM_GPU_OLD_X1",
    ]


def test_passes_and_repairs_do_not_touch_nodes(site: test_fleet.Site) -> None:
    before = dump(site.placement)
    site.report()
    site.execute("audit", "--heal")
    site.execute("drain", FREE, "--reason", "repair")
    site.nova.add_flavor("pinned")
    words = ("--profile", PROFILE, "--device", f"{FREE}/bare metal")
    code, _, err = site.execute("flavor", "set", "pinned", *words)
    assert (code, "--device" in err) == (2, True)
    assert dump(site.placement) == before
    writes = [
        r
        for r in site.placement.requests()
        if r.is_write and any(u in r.path for u in (FREE, USED, FAULTY))
    ]
    assert writes == []
