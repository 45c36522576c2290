# SPDX-License-Identifier: Apache-2.0
"""Messages of ``explain`` about a server, and of cards without a place."""

import pytest

from nova_accel.model import names
from placement_sync.fleet.explain import simulation
from tests.functional.sync.commands import test_explain
from tests.functional.sync.fleet import test_fleet
from tests.functional.sync.messages import test_cloud

empty, cloud = test_cloud.empty, test_cloud.cloud
VM, OTHER, GROUP = test_fleet.VM, test_fleet.OTHER_VM, test_fleet.MOVE
SHOWN = "-c Host -c Verdict -c Why --sort-column Verdict"
A100 = "CUSTOM_VGPU_NVIDIA_A100"


def test_hosts_that_a_server_excludes(cloud: test_cloud.Cloud) -> None:
    site = cloud.site
    for root, node in ((site.root, test_fleet.A40_HOST), ("t", "t4-mdev")):
        site.nova.add_host(root, node)
    server = site.nova.servers[VM]
    site.nova.aggregates = [
        {
            "name": "gpus",
            "hosts": ["a40-vf-mdev"],
            "availability_zone": "east",
            "metadata": {},
        }
    ]
    members = {"members": [VM, OTHER]}
    site.nova.groups[GROUP] = members | {"policy": "affinity"}
    other = {"different_host": [OTHER]}
    for changes in (
        {"pinned_availability_zone": "east", "scheduler_hints": other},
        {"pinned_availability_zone": "west"},
        {"scheduler_hints": {"same_host": GROUP, "query": "[]"}},
        {"scheduler_hints": {"group": GROUP}},
    ):
        site.nova.servers[VM] = server | changes
        cloud.run_all(f"explain {VM} {SHOWN}")
    site.nova.groups[GROUP]["policy"] = "anti-affinity"
    cloud.run_all(f"explain {VM} {SHOWN}")
    site.nova.servers[OTHER]["OS-EXT-SRV-ATTR:host"] = "t4-mdev"
    site.nova.groups[GROUP]["policy"] = "affinity"
    fault = {"created": "2026-01-31T12:00:00Z", "message": "No valid host"}
    site.nova.servers[VM]["fault"] = fault
    cloud.run_all(f"explain {VM} {SHOWN}")
    site.nova.servers[VM] = server
    site.nova.aggregates[0]["metadata"] = {"filter_tenant_id": "films"}
    cloud.run_all(f"explain {VM} {SHOWN}")
    del server["flavor"]["extra_specs"]
    cloud.run_all(f"explain {VM} {SHOWN}")
    cloud.check("explain a server")


def test_cards_without_a_place(
    empty: test_cloud.Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = test_explain.Cloud(empty.site.placement)
    test_explain.add_a100(
        cards,
        "mig",
        "CUSTOM_ACCELERATOR_UNALLOCATED_0_1_VGPU_NVIDIA_A100_1_5C",
        "CUSTOM_ACCELERATOR_INSTANCE_4_3G_20GB",
    )
    cards.host("off", "a", names.DISABLED_TRAIT)
    cards.host("two", "ab")
    cards.usual = (f"{names.MODEL_PREFIX}NVIDIA_A100", *cards.usual[::2])
    (card,) = cards.host("equal", "a")
    cards.call("PUT", f"/traits/{A100}_4_20C")
    cards.traits(card)
    explain = f"explain {SHOWN} --extra-spec resources_A:VGPU=1"
    trait = "--extra-spec trait_A:CUSTOM_VGPU_NVIDIA"
    empty.run_all(f"{explain} {trait}_A100_4_20C=required")
    monkeypatch.setattr(simulation, "MAX_CANDIDATES", 1)
    empty.run_all(f"{explain} {trait}_T4_4Q=required")
    empty.check("cards without a place")


def test_names_of_several_devices(empty: test_cloud.Cloud) -> None:
    cards = test_explain.Cloud(empty.site.placement)
    root = cards.add("odd", {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 99})
    id_traits = [f"{names.DEVICE_PREFIX}1234_000{n}" for n in "12"]
    name = f"{names.NAME_PREFIX}ACME_ONE"
    ids = (f"{names.FUNCTION_PREFIX}1FACE", f"{names.INTERFACE_PREFIX}1FACE")
    for trait in (*id_traits, name, *ids, names.PROGRAMMABLE_TRAIT):
        cards.call("PUT", f"/traits/{trait}")
    own = names.OWNER_TRAIT
    for each in id_traits:
        card = f"odd_accel_{each[-1]}"
        cards.add(card, {"PGPU": 1}, own, each, name, parent=root)
    region = (own, *ids, names.PROGRAMMABLE_TRAIT)
    cards.add("odd_accel_f", {"FPGA": 1}, *region, parent=root)
    empty.site.nova.add_flavor("plain")
    empty.run_all(
        """\
flavor set plain --class PGPU --model 'ACME ONE' --dry-run
flavor set plain --profile 1face --dry-run
"""
    )
    empty.check("names of several devices")
