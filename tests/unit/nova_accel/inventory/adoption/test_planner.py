# SPDX-License-Identifier: Apache-2.0
"""Plans of adoptions, and the reasons why a host can't be adopted."""

import dataclasses
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory.adoption import (
    mdev_planner,
    planner,
    planning,
    records,
)
from nova_accel.model import domains, providers
from tests.unit.nova_accel.inventory.adoption import clouds

CARD = "0000:3b:00.0"
MDEV, OTHER_MDEV = (f"11111111-0000-4000-8000-00000000000{n}" for n in "12")
SERVER, OTHER = (f"5c1d5a2e-0000-4000-8000-00000000000{n}" for n in "12")
NATIVE = records.NativeProvider(
    uuid="bbbbbbbb-0000-4000-8000-000000000001",
    name="host1_pci_0000_3b_00_0",
    address=CARD,
    inventories={"VGPU": providers.Inventory(total=4, max_unit=4)},
    traits=frozenset({"OWNER_NOVA", "CUSTOM_RACK_1"}),
)


def server(uuid: str, **fields: Any) -> planner.NovaServer:
    specs = {"resources:VGPU": "1", "hw:mem_page_size": "large"}
    return planner.NovaServer(
        **{"uuid": uuid, "name": "vm", "specs": specs} | fields
    )


def domain(uuid: str, *mdevs: str) -> domains.Domain:
    return domains.Domain(
        uuid=uuid,
        name=f"d-{uuid[-1]}",
        is_running=True,
        mdevs=frozenset(mdevs),
    )


def observed(**changes: Any) -> planner.Observed:
    """Return a card with one server, and room for three more."""
    host = planner.Observed(
        root=clouds.ROOT,
        host=model.HostState(
            devices=(clouds.build_card(0, False, "4Q", [MDEV], 3),)
        ),
        rules=policy.DeviceRules(),
        domains=(domain(SERVER, MDEV),),
        servers={SERVER: server(SERVER)},
        natives=(NATIVE,),
        allocations={SERVER: {NATIVE.uuid: {"VGPU": 1}}},
    )
    return dataclasses.replace(host, **changes)


def with_card(**changes: Any) -> model.HostState:
    (card,) = observed().host.devices
    return model.HostState(devices=(dataclasses.replace(card, **changes),))


def test_a_plan_leaves_nothing_to_choose() -> None:
    plan = planning.build(observed())
    ((adopted,), (mdev,)) = plan.servers, plan.servers[0].partitions
    assert plan.blockers == ()
    assert adopted.uuid == SERVER
    assert (mdev.handle, mdev.slot) == (MDEV, MDEV)
    assert mdev.type_id == "nvidia-4096"
    assert adopted.native_amounts() == {NATIVE.uuid: {"VGPU": 1}}
    assert adopted.own_amounts() == {
        mdev.provider: {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}
    }
    assert adopted.specs_after == {
        "hw:mem_page_size": "large",
        "resources_GPU:VGPU": "1",
        "resources_GPU:CUSTOM_GPU_MEMORY_MB": "4096",
        "trait_GPU:CUSTOM_VGPU_NVIDIA_T4_4Q": "required",
    }
    (mapping,) = plan.flavors
    assert mapping.before == {"resources:VGPU": "1"}
    assert mapping.after.items() <= adopted.specs_after.items()
    assert "CUSTOM_RACK_1" in mapping.traits


def test_the_slot_of_a_vf_is_its_address() -> None:
    card = clouds.build_card(0, True, "4Q", [MDEV], 3)
    (partition,) = card.partitions
    native = dataclasses.replace(NATIVE, address=partition.parent)
    plan = planning.build(
        observed(host=model.HostState(devices=(card,)), natives=(native,))
    )
    assert plan.blockers == ()
    assert plan.servers[0].partitions[0].slot == partition.parent


def test_names_of_novas_providers_are_those_of_parents_in_libvirt() -> None:
    """Nova names one parent that is no PCI function: mtty."""
    (card,) = observed().host.devices
    mtty = dataclasses.replace(card, address="mtty", slots=())
    by_name = mdev_planner.native_names(
        clouds.ROOT, model.HostState(devices=(card, mtty))
    )
    assert by_name["host1_pci_0000_3b_00_0"] == CARD
    assert by_name["host1_mtty_mtty"] == "mtty"


def test_a_card_that_is_left_to_nova_is_not_adopted() -> None:
    plan = planning.build(observed(host=model.HostState(), natives=()))
    assert plan.servers == ()


def test_an_mdev_of_a_domain_of_others_is_reserved() -> None:
    plan = planning.build(
        observed(servers={}, allocations={}, domains=(domain(OTHER, MDEV),))
    )
    assert plan.blockers == ()
    assert plan.reserved == (MDEV,)


def test_the_mdev_of_a_server_that_is_adopted_stays() -> None:
    plan = planning.build(observed(allocations={}, own=frozenset({SERVER})))
    assert (plan.blockers, plan.servers, plan.reserved) == ((), (), ())


MAX_0 = policy.DeviceRules(rules=(policy.Rule(max_slots=0),))
TWO_SPECS = {SERVER: server(SERVER, specs={"resources:VGPU": "2"})}
CASES: dict[records.Obstacle, dict[str, Any]] = {
    records.Obstacle.UNKNOWN_TYPE: {"host": with_card(profiles=())},
    records.Obstacle.UNOFFERED_CARD: {"host": with_card(counters={})},
    records.Obstacle.CLOSED_CARD: {"host": with_card(drain="repair")},
    records.Obstacle.SHARED_CARD: {"shared": {CARD: "device_spec has it"}},
    records.Obstacle.UNUSED_MDEV: {"domains": ()},
    records.Obstacle.MISSING_MDEV: {
        "domains": (domain(SERVER, MDEV, OTHER_MDEV),)
    },
    records.Obstacle.SHARED_DEVICE: {
        "domains": (domain(SERVER, MDEV), domain(OTHER, MDEV))
    },
    records.Obstacle.MOVING: {
        "servers": {SERVER: server(SERVER, busy="its task is resize_prep")}
    },
    records.Obstacle.DRIFTED: {
        "allocations": {SERVER: {NATIVE.uuid: {"VGPU": 2}}}
    },
    records.Obstacle.FLAVOR: {"servers": TWO_SPECS},
    records.Obstacle.OVERBOOKED: {"rules": MAX_0},
    records.Obstacle.UNKNOWN_CONSUMER: {
        "allocations": {
            SERVER: {NATIVE.uuid: {"VGPU": 1}},
            OTHER: {NATIVE.uuid: {"VGPU": 1}},
        }
    },
}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: str(kind.value))
def test_a_host_that_can_not_be_adopted_says_why(
    kind: records.Obstacle,
) -> None:
    plan = planning.build(observed(**CASES[kind]))
    blockers = {blocker.kind: blocker for blocker in plan.blockers}
    assert kind in blockers
    assert blockers[kind].reason
    assert blockers[kind].remedy


def test_each_obstacle_of_a_plan_has_a_case() -> None:
    elsewhere = {records.Obstacle.NO_SUPPORT, records.Obstacle.NETWORK_PORT}
    assert {*records.Obstacle} - elsewhere == CASES.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"natives": (dataclasses.replace(NATIVE, inventories={}),)},
        {"domains": (domain(SERVER),), "host": with_card(partitions=())},
    ],
    ids=["no inventory", "no mdev"],
)
def test_a_server_that_drifted_is_named(changes: dict[str, Any]) -> None:
    blockers = planning.build(observed(**changes)).blockers
    assert (records.Obstacle.DRIFTED, SERVER) in {
        (b.kind, b.subject) for b in blockers
    }


def test_hidden_extra_specs_are_a_blocker() -> None:
    hidden = {SERVER: server(SERVER, specs=None)}
    (blocker,) = planning.build(observed(servers=hidden)).blockers
    assert blocker.kind is records.Obstacle.FLAVOR
    assert "credentials" in blocker.reason


def test_plans_are_compared_by_their_work() -> None:
    plan = planning.build(observed())
    applied = dataclasses.replace(
        plan, state=records.AdoptionState.APPLYING, applied_at="2026-11-27"
    )
    assert plan.is_same_work(applied)
    changed = dataclasses.replace(plan, servers=())
    assert not plan.is_same_work(changed)
