# SPDX-License-Identifier: Apache-2.0
"""Plans for devices of Cyborg, and the reasons why they can't be applied."""

import dataclasses
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import (
    planner,
    planning,
    records,
    undo_planner,
)
from nova_accel.model import domains, providers
from tests.unit.nova_accel.inventory.adoption import clouds, pci_clouds

SERVER, OTHER = (f"5c1d5a2e-0000-4000-8000-00000000000{n}" for n in "12")
CARD = pci_clouds.build_card(0)
GPU = CARD.address
MDEV = "77777777-0000-4000-8000-000000000001"
SPECS = {"accel:device_profile": "gpu", "hw:cpu_policy": "shared"}
NATIVE = records.NativeProvider(
    uuid="bbbbbbbb-0000-4000-8000-000000000001",
    name=f"host1_{GPU}",
    address=GPU,
    inventories={"PGPU": providers.Inventory(total=1)},
)
REQUEST = records.CyborgRequest(
    uuid="cccccccc-0000-4000-8000-000000000001",
    server=SERVER,
    provider=NATIVE.uuid,
    profile="gpu",
    address=GPU,
    handle=GPU,
)


def domain(uuid: str, **fields: Any) -> domains.Domain:
    values: dict[str, Any] = {"functions": frozenset({GPU})} | fields
    return domains.Domain(
        uuid=uuid, name=f"d-{uuid[-1]}", is_running=True, **values
    )


def server(uuid: str, **fields: Any) -> planner.NovaServer:
    return planner.NovaServer(
        **{"uuid": uuid, "name": "vm", "specs": SPECS} | fields
    )


def build(**changes: Any) -> records.Plan:
    """Return the plan of a host with one server that has its GPU."""
    host = planner.Observed(
        root=clouds.ROOT,
        host=model.HostState(devices=(CARD,)),
        rules=policy.DeviceRules(),
        domains=(domain(SERVER),),
        servers={SERVER: server(SERVER)},
        natives=(NATIVE,),
        allocations={SERVER: {NATIVE.uuid: {"PGPU": 1}}},
        requests=(REQUEST,),
    )
    return planning.build(
        dataclasses.replace(host, **changes), records.Source.CYBORG
    )


def test_a_plan_leaves_nothing_to_choose() -> None:
    plan = build()
    ((adopted,), (part,)) = plan.servers, plan.servers[0].partitions
    assert plan.blockers == ()
    assert (part.handle, part.slot, part.device) == (GPU, GPU, GPU)
    (unit,) = part.units
    assert (unit.alias, unit.request) == ("gpu", REQUEST.uuid)
    profile = {
        "resources_GPU:PGPU": "1",
        "trait_GPU:CUSTOM_GPU_PCI_10DE_1E07": "required",
    }
    assert adopted.specs_after == {"hw:cpu_policy": "shared", **profile}
    (mapping,) = plan.flavors
    assert mapping.before == {"accel:device_profile": "gpu"}
    assert mapping.after == profile
    text = adoption_plan.FORMAT.encode(plan)
    assert adoption_plan.FORMAT.decode(text.encode()) == plan


def test_an_mdev_keeps_its_uuid() -> None:
    card = model.Device(
        address=GPU,
        plugin="nvidia_mdev",
        technology="mdev",
        vendor="nvidia",
        model="T4",
        resource_class="VGPU",
        counters={"VGPU": 16},
        slots=tuple(f"slot-{n}" for n in range(16)),
        profiles=(
            model.Profile(
                name="T4-4Q",
                charges={"VGPU": 1},
                trait="CUSTOM_VGPU_NVIDIA_T4_4Q",
                available=3,
                handles={GPU: "nvidia-232"},
            ),
        ),
        partitions=(
            model.Partition(profile="T4-4Q", parent=GPU, handle=MDEV),
        ),
    )
    plan = build(
        host=model.HostState(devices=(card,)),
        domains=(
            domain(SERVER, functions=frozenset(), mdevs=frozenset({MDEV})),
        ),
        natives=(
            dataclasses.replace(
                NATIVE, inventories={"VGPU": providers.Inventory(total=4)}
            ),
        ),
        allocations={SERVER: {NATIVE.uuid: {"VGPU": 1}}},
        requests=(dataclasses.replace(REQUEST, handle=MDEV),),
    )
    assert plan.blockers == ()
    (part,) = plan.servers[0].partitions
    assert (part.handle, part.slot) == (MDEV, MDEV)
    assert (part.parent, part.type_id) == (GPU, "nvidia-232")


def request(**fields: Any) -> dict[str, Any]:
    return {"requests": (dataclasses.replace(REQUEST, **fields),)}


_FREE: dict[str, Any] = {
    "domains": (),
    "servers": {},
    "allocations": {},
    "requests": (),
}
CASES: dict[str, tuple[records.Obstacle, dict[str, Any]]] = {
    "a port's device": (
        records.Obstacle.NETWORK_PORT,
        request(profile="smartnic"),
    ),
    "two domains": (
        records.Obstacle.SHARED_DEVICE,
        {"domains": (domain(SERVER), domain(OTHER))},
    ),
    "request of another server": (
        records.Obstacle.DRIFTED,
        request(server=OTHER),
    ),
    "domain without it": (records.Obstacle.DRIFTED, {"domains": ()}),
    "other allocations": (
        records.Obstacle.DRIFTED,
        {"allocations": {SERVER: {NATIVE.uuid: {"PGPU": 2}}}},
    ),
    "two classes": (
        records.Obstacle.DRIFTED,
        {
            "natives": (
                dataclasses.replace(
                    NATIVE,
                    inventories={
                        "PGPU": providers.Inventory(total=1),
                        "FPGA": providers.Inventory(total=1),
                    },
                ),
            )
        },
    ),
    "a second device that is off": (
        records.Obstacle.UNOFFERED_CARD,
        {
            "requests": (
                REQUEST,
                dataclasses.replace(
                    REQUEST, uuid="r2", address=OTHER, handle="0000:99:00.0"
                ),
            )
        },
    ),
    "provider of no known card": (
        records.Obstacle.SHARED_CARD,
        {"natives": (NATIVE, dataclasses.replace(NATIVE, address=""))},
    ),
    "a kind without functions": (
        records.Obstacle.UNKNOWN_TYPE,
        {
            "host": model.HostState(
                devices=(dataclasses.replace(CARD, technology="fpga"),)
            )
        },
    ),
    "no extra specs": (
        records.Obstacle.NETWORK_PORT,
        {"servers": {SERVER: server(SERVER, specs=None)}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_host_that_can_not_be_adopted_says_why(name: str) -> None:
    kind, changes = CASES[name]
    plan = build(**changes)
    assert kind in {blocker.kind for blocker in plan.blockers}
    assert all(blocker.remedy for blocker in plan.blockers)


def test_a_device_of_a_foreign_domain_is_reserved() -> None:
    plan = build(**_FREE | {"domains": (domain(OTHER),)})
    assert (plan.blockers, plan.reserved) == ((), (GPU,))


def test_a_free_card_of_cyborg_has_no_server_and_is_taken_over() -> None:
    plan = build(**_FREE)
    assert (plan.blockers, plan.servers) == ((), ())
    assert plan.natives == (NATIVE,)


def test_a_new_server_has_no_form_in_cyborg() -> None:
    plan = dataclasses.replace(build(), state=records.AdoptionState.ADOPTED)
    (part,) = plan.servers[0].partitions
    undo = undo_planner.build(
        plan,
        undo_planner.AdoptedHost(
            servers={OTHER: server(OTHER)},
            allocations={OTHER: {part.provider: {"PGPU": 1}}},
            claims=(),
        ),
    )
    (blocker,) = undo.blockers
    assert blocker.kind is records.Obstacle.NO_SUPPORT
    assert "Cyborg has no accelerator request" in blocker.reason
