# SPDX-License-Identifier: Apache-2.0
"""Plans for PCI functions, and the reasons why they can't be applied."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given

from nova_accel import model
from nova_accel.config import policy
from nova_accel.config.lines import native_flavors as lines
from nova_accel.inventory.adoption import (
    planner,
    planning,
    records,
    undo_planner,
)
from nova_accel.model import domains, names, providers
from tests.unit.nova_accel.inventory.adoption import clouds, pci_clouds

SERVER, OTHER = (f"5c1d5a2e-0000-4000-8000-00000000000{n}" for n in "12")
CARD = pci_clouds.build_card(0)
GPU, AUDIO = CARD.address, CARD.members[0]
NATIVE = pci_clouds.build_native(CARD, "bbbbbbbb-0000-4000-8000-000000000001")
SPECS = {"pci_passthrough:alias": "gpu:1", "hw:cpu_policy": "shared"}
NIC = "0000:05:00.1"


def server(uuid: str, **fields: Any) -> planner.NovaServer:
    return planner.NovaServer(
        **{"uuid": uuid, "name": "vm", "specs": SPECS} | fields
    )


def domain(uuid: str, *functions: str) -> domains.Domain:
    return domains.Domain(
        uuid=uuid,
        name=f"d-{uuid[-1]}",
        is_running=True,
        functions=frozenset(functions),
    )


def observed(**changes: Any) -> planner.Observed:
    """Return a host with one server that has its GPU."""
    host = planner.Observed(
        root=clouds.ROOT,
        host=model.HostState(devices=(CARD,)),
        rules=policy.DeviceRules(),
        domains=(domain(SERVER, GPU),),
        servers={SERVER: server(SERVER)},
        natives=(NATIVE,),
        allocations={SERVER: {NATIVE.uuid: {pci_clouds.CLASS: 1}}},
        functions={GPU: pci_clouds.describe(GPU)},
        aliases=pci_clouds.ALIASES,
    )
    return dataclasses.replace(host, **changes)


def build(**changes: Any) -> records.Plan:
    return planning.build(observed(**changes), records.Source.NOVA_PCI)


def test_a_plan_leaves_nothing_to_choose() -> None:
    plan = build()
    ((adopted,), (part,)) = plan.servers, plan.servers[0].partitions
    assert plan.blockers == ()
    assert (part.handle, part.slot, part.device) == (GPU, GPU, GPU)
    assert part.units == (
        records.NativeUnit(
            address=GPU,
            provider=NATIVE.uuid,
            resource_class=pci_clouds.CLASS,
            alias="gpu",
        ),
    )
    assert plan.functions == (GPU,)
    assert adopted.own_amounts() == {part.provider: {"PGPU": 1}}
    assert adopted.specs_after == {
        "hw:cpu_policy": "shared",
        "resources_GPU:PGPU": "1",
        "trait_GPU:CUSTOM_GPU_PCI_10DE_1E07": "required",
    }


def test_the_functions_of_one_card_are_one_partition() -> None:
    audio = dataclasses.replace(
        NATIVE,
        uuid="audio",
        address=AUDIO,
        inventories={"CUSTOM_PCI_10DE_10F7": providers.Inventory(total=1)},
    )
    plan = build(
        domains=(domain(SERVER, GPU, AUDIO),),
        servers={
            SERVER: server(
                SERVER, specs={"pci_passthrough:alias": "gpu:1,audio:1"}
            )
        },
        natives=(NATIVE, audio),
        allocations={
            SERVER: {
                NATIVE.uuid: {pci_clouds.CLASS: 1},
                "audio": {"CUSTOM_PCI_10DE_10F7": 1},
            }
        },
        functions={
            GPU: pci_clouds.describe(GPU),
            AUDIO: pci_clouds.describe(AUDIO, "10f7"),
        },
    )
    assert plan.blockers == ()
    (adopted,) = plan.servers
    assert [unit.alias for unit in adopted.units] == ["gpu", "audio"]
    assert len(adopted.slots) == 1
    assert "pci_passthrough:alias" not in adopted.specs_after


def test_functions_of_other_domains_are_reserved() -> None:
    plan = build(
        domains=(domain(OTHER, GPU),), servers={}, natives=(), allocations={}
    )
    assert (plan.blockers, plan.servers) == ((), ())
    assert plan.reserved == (GPU,)


def test_what_nova_accel_does_not_offer_stays_novas() -> None:
    """A network card of Nova's, beside the GPU."""
    plan = build(
        domains=(domain(SERVER, GPU, NIC),),
        servers={
            SERVER: server(
                SERVER, specs={"pci_passthrough:alias": "gpu:1,nic:1"}
            )
        },
        functions={
            GPU: pci_clouds.describe(GPU),
            NIC: pci_clouds.describe(NIC, "1533"),
        },
    )
    assert plan.blockers == ()
    (adopted,) = plan.servers
    assert adopted.specs_after["pci_passthrough:alias"] == "nic:1"


def function(**fields: Any) -> dict[str, Any]:
    return {
        "functions": {
            GPU: dataclasses.replace(pci_clouds.describe(GPU), **fields)
        }
    }


def problem(address: str) -> model.HostState:
    return model.HostState(
        problems=(model.Problem.of_device(address, "is a boot display"),)
    )


# Obstacles of any card are in test_planner.py.
CASES: dict[str, tuple[records.Obstacle, dict[str, Any]]] = {
    "two lines": (records.Obstacle.SHARED_CARD, function(line_count=2)),
    "mdev types": (
        records.Obstacle.SHARED_CARD,
        {"shared": {GPU: "[devices] enabled_mdev_types"}},
    ),
    "network": (records.Obstacle.NETWORK_PORT, function(is_network=True)),
    "two domains": (
        records.Obstacle.SHARED_DEVICE,
        {"domains": (domain(SERVER, GPU), domain(OTHER, AUDIO))},
    ),
    "moved away": (
        records.Obstacle.MOVING,
        {"domains": (domain(OTHER, GPU),), "moving": frozenset({OTHER})},
    ),
    "task": (
        records.Obstacle.MOVING,
        {"servers": {SERVER: server(SERVER, busy="its task is rebuilding")}},
    ),
    "task without providers": (
        records.Obstacle.MOVING,
        {
            "servers": {SERVER: server(SERVER, busy="its task is deleting")},
            "natives": (),
            "allocations": {},
        },
    ),
    "by hand": (
        records.Obstacle.DRIFTED,
        {
            "functions": {AUDIO: pci_clouds.describe(AUDIO, "10f7")},
            "domains": (domain(SERVER, GPU, AUDIO),),
        },
    ),
    "suspended": (records.Obstacle.DRIFTED, {"domains": (domain(SERVER),)}),
    "suspended without providers": (
        records.Obstacle.DRIFTED,
        {"domains": (domain(SERVER),), "natives": (), "allocations": {}},
    ),
    "allocations": (
        records.Obstacle.DRIFTED,
        {"allocations": {SERVER: {NATIVE.uuid: {pci_clouds.CLASS: 2}}}},
    ),
    "aliases": (records.Obstacle.FLAVOR, {"aliases": ()}),
    "no alias": (
        records.Obstacle.FLAVOR,
        {"servers": {SERVER: server(SERVER, specs={})}},
    ),
    "not offered": (
        records.Obstacle.UNOFFERED_CARD,
        {"host": problem(GPU), "natives": (), "allocations": {}},
    ),
    "technology": (
        records.Obstacle.UNKNOWN_TYPE,
        {
            "host": model.HostState(
                devices=(dataclasses.replace(CARD, technology="mdev"),)
            )
        },
    ),
    "profile": (
        records.Obstacle.UNKNOWN_TYPE,
        {
            "host": model.HostState(
                devices=(dataclasses.replace(CARD, profiles=()),)
            )
        },
    ),
    "type without a name": (
        records.Obstacle.UNKNOWN_TYPE,
        {
            "host": model.HostState(
                devices=(
                    dataclasses.replace(
                        CARD,
                        technology="vendor-vfio",
                        partitions=(
                            model.Partition(
                                profile="10de:1e07",
                                parent=GPU,
                                handle=GPU,
                                is_nameless=True,
                            ),
                        ),
                    ),
                )
            )
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_host_that_can_not_be_adopted_says_why(name: str) -> None:
    kind, changes = CASES[name]
    blockers = {blocker.kind: blocker for blocker in build(**changes).blockers}
    assert kind in blockers
    assert blockers[kind].reason
    assert blockers[kind].remedy


# -- random hosts ----------------------------------------------------------


@given(pci_clouds.natives())
def test_an_undo_of_new_servers_asks_nova_for_the_same(
    cloud: pci_clouds.Cloud,
) -> None:
    """Each server as if it were new: the same units and aliases."""
    plan = cloud.plan
    undo = undo_planner.build(
        plan,
        undo_planner.AdoptedHost(
            servers={
                s.uuid: planner.NovaServer(
                    uuid=s.uuid,
                    name=s.name,
                    specs={**s.specs_after, "hw:boot_menu": "true"},
                )
                for s in plan.servers
            },
            allocations={s.uuid: s.own_amounts() for s in plan.servers},
            claims=tuple(cloud.claims()),
        ),
    )
    assert undo.blockers == ()
    for old, new in zip(plan.servers, undo.servers, strict=True):
        assert new.native_amounts() == old.native_amounts()
        assert sorted(lines.parse_aliases(new.specs_before)) == sorted(
            lines.parse_aliases(old.specs_before)
        )


def test_an_undo_of_an_attempt_keeps_what_was_not_moved() -> None:
    plan = dataclasses.replace(build(), state=records.AdoptionState.APPLYING)
    host = undo_planner.AdoptedHost(servers={}, allocations={}, claims=())
    assert undo_planner.build(plan, host).servers == plan.servers


def test_a_function_that_nova_did_not_have_is_not_handed_back() -> None:
    card = pci_clouds.build_card(1)
    provider = names.provider_uuid(clouds.ROOT.uuid, card.address)
    specs = {"resources_A:PGPU": "1", "trait_A:CUSTOM_X": "required"}
    host = undo_planner.AdoptedHost(
        servers={OTHER: server(OTHER, specs=specs)},
        allocations={OTHER: {provider: {"PGPU": 1}}},
        claims=(
            model.Claim(
                consumer=OTHER,
                provider=provider,
                device=card.address,
                profile="10de:1e07",
                slot=card.address,
                parent=card.address,
                handle=card.address,
                technology="passthrough",
            ),
        ),
    )
    (blocker,) = undo_planner.build(build(), host).blockers
    assert blocker.kind is records.Obstacle.NO_SUPPORT
    assert card.address in blocker.reason
