# SPDX-License-Identifier: Apache-2.0
"""Plans of undos, and servers that Nova's own driver can't express."""

import dataclasses
from typing import Any

import pytest

from nova_accel import model
from nova_accel.inventory.adoption import (
    planner,
    planning,
    records,
    undo_planner,
)
from tests.unit.nova_accel.inventory.adoption import test_planner
from tests.unit.nova_accel.inventory.adoption.test_planner import (
    CARD,
    MDEV,
    OTHER,
    OTHER_MDEV,
    SERVER,
)

PLAN = planning.build(test_planner.observed())
(ADOPTED,) = PLAN.servers
PROVIDER = ADOPTED.partitions[0].provider
AMOUNTS = {PROVIDER: {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}}
NEW_SPECS = {
    "resources_A:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "4096",
    "trait_A:CUSTOM_VGPU_NVIDIA_T4_4Q": "required",
    "hw:mem_page_size": "large",
}


def claim(
    consumer: str, handle: str, slot: str, **changes: Any
) -> model.Claim:
    made = model.Claim(
        consumer=consumer,
        provider=PROVIDER,
        device=CARD,
        profile="T4-4Q",
        slot=slot,
        parent=CARD,
        handle=handle,
        technology="mdev",
    )
    return dataclasses.replace(made, **changes)


def server(uuid: str, specs: Any, busy: str = "") -> planner.NovaServer:
    return planner.NovaServer(uuid=uuid, name="vm", specs=specs, busy=busy)


def adopted_host(**changes: Any) -> undo_planner.AdoptedHost:
    """Return a host with an adopted server, and a new one."""
    host = undo_planner.AdoptedHost(
        servers={
            SERVER: server(SERVER, ADOPTED.specs_after),
            OTHER: server(OTHER, NEW_SPECS),
        },
        allocations={SERVER: AMOUNTS, OTHER: AMOUNTS},
        claims=(
            claim(SERVER, MDEV, MDEV),
            claim(OTHER, OTHER_MDEV, "slot-0"),
        ),
    )
    return dataclasses.replace(host, **changes)


def test_adopted_servers_go_back_as_they_were() -> None:
    plan = undo_planner.build(PLAN, adopted_host())
    assert plan.blockers == ()
    assert plan.state is records.AdoptionState.UNDOING
    assert plan.server(SERVER) == ADOPTED


def test_a_new_server_gets_the_form_of_novas_own() -> None:
    new = undo_planner.build(PLAN, adopted_host()).server(OTHER)
    assert new is not None
    assert new.native_amounts() == {test_planner.NATIVE.uuid: {"VGPU": 1}}
    assert new.specs_after == NEW_SPECS
    assert new.specs_before == {
        "resources_A:VGPU": "1",
        "hw:mem_page_size": "large",
    }
    assert {slot.identifier for slot in new.slots} == {"slot-0"}


def test_a_server_that_is_gone_is_forgotten() -> None:
    plan = undo_planner.build(PLAN, adopted_host(allocations={OTHER: AMOUNTS}))
    assert [each.uuid for each in plan.servers] == [OTHER]


def test_an_adopted_server_may_have_moved_here_again() -> None:
    """It has a slot of its own now, and the flavor of its profile."""
    plan = undo_planner.build(
        PLAN,
        adopted_host(
            allocations={SERVER: AMOUNTS},
            claims=(claim(SERVER, OTHER_MDEV, "slot-1"),),
        ),
    )
    (moved,) = plan.servers
    assert [mdev.handle for mdev in moved.partitions] == [OTHER_MDEV]
    assert moved.specs_before["resources_GPU:VGPU"] == "1"


def with_other(specs: dict[str, str], **fields: Any) -> dict[str, Any]:
    servers = adopted_host().servers
    return {"servers": {**servers, OTHER: server(OTHER, specs, **fields)}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (with_other(NEW_SPECS, busy="its task is rebuilding"), "rebuilding"),
        (with_other(NEW_SPECS | {"accelerator:rom": "on"}), "accelerator:"),
        ({"claims": (claim(SERVER, MDEV, MDEV),)}, "differ"),
        (
            {
                "claims": (
                    claim(SERVER, MDEV, MDEV),
                    claim(OTHER, OTHER_MDEV, "slot-0", profile="T4-8Q"),
                )
            },
            "T4-8Q",
        ),
        (
            {
                "claims": (
                    claim(SERVER, MDEV, MDEV),
                    claim(OTHER, OTHER_MDEV, "s", parent="0000:71:00.0"),
                )
            },
            "0000:71:00.0",
        ),
        (
            {"servers": {SERVER: server(SERVER, ADOPTED.specs_after)}},
            "no server of this host",
        ),
    ],
    ids=["task", "option", "claims", "type", "card", "unknown"],
)
def test_what_nova_can_not_express_is_named(
    changes: dict[str, Any], words: str
) -> None:
    (blocker,) = undo_planner.build(PLAN, adopted_host(**changes)).blockers
    assert blocker.kind is records.Obstacle.NO_SUPPORT
    assert blocker.subject == OTHER
    assert words in blocker.reason
