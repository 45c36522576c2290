# SPDX-License-Identifier: Apache-2.0
"""Placement is equal after an adoption and its undo, on random hosts."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import records, reshape
from nova_accel.model import names, providers
from tests.support import examples
from tests.unit.nova_accel.inventory.adoption import clouds, pci_clouds

OTHER = "eeeeeeee-0000-4000-8000-00000000000e"


def own_providers(stored: reshape.Stored) -> set[str]:
    return {
        uuid
        for uuid, provider in stored.providers.items()
        if names.OWNER_TRAIT in provider.traits
    }


def list_natives(plan: records.Plan) -> list[str]:
    return [native.uuid for native in plan.natives]


def report_node(
    stored: reshape.Stored, before: reshape.Stored
) -> reshape.Stored:
    """Return Placement after Nova's next report of the node itself."""
    root = clouds.ROOT.uuid
    return dataclasses.replace(
        stored,
        providers={**stored.providers, root: before.providers[root]},
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=examples.examples(1000))
@given(clouds.natives() | pci_clouds.natives())
def test_placement_is_equal_after_an_adoption_and_its_undo(
    cloud: clouds.Cloud,
) -> None:
    """A service that was killed between two steps does both again."""
    plan = cloud.plan
    assert plan.blockers == ()
    before = cloud.with_own_providers()
    written = adoption_plan.FORMAT.encode(reshape.record(plan, before))
    adopted = reshape.adopt(plan, before)
    assert reshape.adopt(plan, adopted) == adopted
    for server in plan.servers:
        for provider, amounts in server.own_amounts().items():
            assert adopted.allocations[server.uuid][provider] == amounts
    adopted = reshape.make_room(plan, adopted)
    # Placement 13 refuses a reshape of a provider that holds more.
    for uuid, stored in adopted.providers.items():
        for name, amount in adopted.used(uuid).items():
            assert stored.inventories[name].capacity >= amount
    assert not reshape.list_sources(adopted, list_natives(plan))
    recorded, own = (
        adoption_plan.FORMAT.decode(written),
        own_providers(adopted),
    )
    undone = reshape.hand_back(recorded, adopted, own)
    assert reshape.hand_back(recorded, undone, own) == undone
    undone = reshape.make_room(plan, undone)
    assert report_node(undone, cloud.stored) == cloud.stored


@given(clouds.natives())
def test_our_provider_has_what_operators_gave_to_novas(
    cloud: clouds.Cloud,
) -> None:
    plan = cloud.plan
    adopted = reshape.adopt(plan, cloud.with_own_providers())
    natives = {native.uuid: native for native in plan.natives}
    for native, provider in plan.own_providers().items():
        custom = natives[native].traits - {"OWNER_NOVA"}
        assert custom <= adopted.providers[provider].traits
        assert natives[native].aggregates <= (
            adopted.providers[provider].aggregates
        )


@given(clouds.natives(), st.data())
def test_an_interrupted_adoption_loses_nothing(
    cloud: clouds.Cloud, data: st.DataObject
) -> None:
    """Nova deletes its providers one by one, after it has emptied them.

    It sets the traits and aggregates of our providers after that.
    """
    before = cloud.with_own_providers()
    plan = reshape.record(cloud.plan, before)
    adopted = reshape.adopt(plan, before)
    remaining = data.draw(st.sets(st.sampled_from(list_natives(plan))))
    emptied = {
        uuid: dataclasses.replace(before.providers[uuid], inventories={})
        for uuid in remaining
    }
    cut_off = reshape.Stored(
        providers={
            **emptied,
            **{u: before.providers[u] for u in adopted.providers},
        },
        allocations=adopted.allocations,
    )
    assert not reshape.list_sources(cut_off, list_natives(plan))
    assert reshape.record(plan, cut_off) == plan
    assert reshape.adopt(plan, cut_off) == adopted


def build_plan() -> tuple[records.Plan, reshape.Stored]:
    """Return the plan of a card with one server, and Placement."""
    mdev = records.AdoptedPartition(
        handle="11111111-0000-4000-8000-000000000001",
        parent="0000:3b:00.0",
        type_id="nvidia-232",
        profile="T4-4Q",
        device="0000:3b:00.0",
        units=(
            records.NativeUnit(
                address="0000:3b:00.0",
                provider="native",
                resource_class="VGPU",
            ),
        ),
        provider="own",
        resource_class="VGPU",
        slot="11111111-0000-4000-8000-000000000001",
        charges={"VGPU": 1},
    )
    inventories = {"VGPU": providers.Inventory(total=1)}
    native = records.NativeProvider(
        uuid="native", name="host1_pci", address="", inventories=inventories
    )
    server = records.AdoptedServer(
        uuid="server",
        name="",
        partitions=(mdev,),
        specs_before={},
        specs_after={},
    )
    plan = records.Plan(
        source=records.Source.NOVA_MDEV,
        root=clouds.ROOT,
        natives=(native,),
        servers=(server,),
    )
    below = clouds.ROOT.uuid
    stored = reshape.Stored(
        providers={
            "native": reshape.StoredProvider(
                name="host1_pci", parent=below, inventories=inventories
            ),
            "own": reshape.StoredProvider(
                name="host1_accel", parent=below, inventories=inventories
            ),
        },
        allocations={"server": {"native": {"VGPU": 1}}},
    )
    return plan, stored


def test_an_allocation_that_is_not_planned_fails_the_adoption() -> None:
    plan, stored = build_plan()
    stored = dataclasses.replace(
        stored,
        allocations={**stored.allocations, OTHER: {"native": {"VGPU": 1}}},
    )
    with pytest.raises(reshape.PlanError, match=OTHER):
        reshape.adopt(plan, stored)


def test_a_deleted_server_does_not_fail_the_adoption() -> None:
    plan, stored = build_plan()
    stored = dataclasses.replace(stored, allocations={})
    assert reshape.adopt(plan, stored).allocations == {}


def test_another_consumer_of_our_provider_fails_the_undo() -> None:
    plan, stored = build_plan()
    adopted = reshape.adopt(plan, stored)
    adopted = dataclasses.replace(
        adopted,
        allocations={**adopted.allocations, OTHER: {"own": {"VGPU": 1}}},
    )
    with pytest.raises(reshape.PlanError, match=OTHER):
        reshape.hand_back(plan, adopted, {"own"})


def test_another_provider_with_novas_name_fails_the_undo() -> None:
    plan, stored = build_plan()
    adopted = reshape.adopt(plan, stored)
    taken = {**adopted.providers, "new": stored.providers["native"]}
    with pytest.raises(reshape.PlanError, match="enabled_mdev_types"):
        reshape.hand_back(
            plan, dataclasses.replace(adopted, providers=taken), {"own"}
        )


def test_an_adoption_before_our_provider_exists_fails() -> None:
    plan, stored = build_plan()
    stored = dataclasses.replace(
        stored, providers={"native": stored.providers["native"]}
    )
    with pytest.raises(reshape.PlanError, match="own"):
        reshape.adopt(plan, stored)
