# SPDX-License-Identifier: Apache-2.0
"""diff.plan is minimal, ordered and idempotent on random trees."""

import dataclasses
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.inventory import health
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff
from tests.support import strategies
from tests.support.placement import applied_plans

ROOT = strategies.ROOT
NOTHING = diff.Guard()
desired_trees = strategies.trees()
actual_trees = strategies.trees(strategies.operator_traits)
all_uuids = [
    names.provider_uuid(ROOT.uuid, address) for address in strategies.ADDRESSES
]
some_uuids = st.frozensets(st.sampled_from(all_uuids))
guards = st.builds(
    diff.Guard, allocated=some_uuids, unknown=some_uuids, unreadable=some_uuids
)


def owned(node: providers.ProviderNode) -> frozenset[str]:
    return frozenset(filter(names.is_managed_trait, node.traits))


def foreign(node: providers.ProviderNode) -> frozenset[str]:
    return node.traits - owned(node)


def apply_plan(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> providers.ProviderTree:
    return applied_plans.apply(actual, diff.plan(actual, desired, guard))


@given(actual_trees, guards)
def test_a_tree_needs_no_call_to_be_itself(
    tree: providers.ProviderTree, guard: diff.Guard
) -> None:
    readable = dataclasses.replace(guard, unreadable=frozenset())
    assert diff.plan(tree, tree, readable) == []


@given(actual_trees, desired_trees)
def test_the_plan_leads_to_the_desired_tree(
    actual: providers.ProviderTree, desired: providers.ProviderTree
) -> None:
    result = apply_plan(actual, desired, NOTHING)
    assert [n.uuid for n in result.nodes] == [n.uuid for n in desired.nodes]
    for node in result.nodes:
        expected = desired.node(node.uuid)
        assert expected is not None
        assert (node.name, node.parent) == (expected.name, expected.parent)
        assert dict(node.inventories) == dict(expected.inventories)
        assert owned(node) == owned(expected)


@given(actual_trees, desired_trees, guards)
def test_foreign_traits_are_retained(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    for node in apply_plan(actual, desired, guard).nodes:
        before = actual.node(node.uuid)
        if before is not None:
            assert foreign(before) <= foreign(node)


@given(actual_trees, desired_trees, guards)
def test_the_result_needs_no_further_call(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    result = apply_plan(actual, desired, guard)
    assert diff.plan(result, desired, guard) == []


@given(actual_trees, desired_trees, guards)
def test_placement_accepts_the_order(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    parents = {node.uuid: node.parent for node in actual.nodes}
    for call in diff.plan(actual, desired, guard):
        match call:
            case calls.CreateProvider(uuid=uuid, parent=parent):
                assert uuid not in parents
                assert parent == ROOT.uuid or parent in parents
                parents[uuid] = parent
            case calls.DeleteProvider(uuid=uuid):
                assert uuid not in parents.values()
                del parents[uuid]
            case calls.CreateClass() | calls.CreateTrait():
                raise AssertionError("another function creates names")
            case _:
                assert call.uuid in parents


@given(actual_trees, desired_trees, guards)
def test_allocated_providers_retain_every_class(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    result = apply_plan(actual, desired, guard)
    for before in actual.nodes:
        excluded = guard.unknown | guard.unreadable
        if before.uuid not in guard.allocated or before.uuid in excluded:
            continue
        if before.parent in excluded:
            continue
        after = result.node(before.uuid)
        assert after is not None
        assert before.inventories.keys() <= after.inventories.keys()
        desired_node = desired.node(before.uuid)
        for name, record in after.inventories.items():
            if desired_node is None or name not in desired_node.inventories:
                assert record.reserved == record.total
                assert record.total == before.inventories[name].total
        if desired_node is None:
            assert names.MISSING_TRAIT in after.traits
            assert not any(
                t.startswith(names.PROFILE_PREFIXES) for t in after.traits
            )


@given(actual_trees, desired_trees, guards)
def test_unknown_providers_are_untouched(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    result = apply_plan(actual, desired, guard)
    for before in actual.nodes:
        if before.uuid in guard.unknown:
            assert result.node(before.uuid) == before


def without(
    tree: providers.ProviderTree, gone: Iterable[str]
) -> providers.ProviderTree:
    """Return a tree without some providers and their children."""
    removed = set(gone)
    return dataclasses.replace(
        tree,
        nodes=tuple(n for n in tree.nodes if not {n.uuid, n.parent} & removed),
    )


@given(desired_trees, some_uuids)
def test_a_device_that_returns_heals_its_provider(
    tree: providers.ProviderTree, gone: frozenset[str]
) -> None:
    healthy = dataclasses.replace(
        tree,
        nodes=tuple(
            dataclasses.replace(n, traits=n.traits - {names.MISSING_TRAIT})
            for n in tree.nodes
        ),
    )
    guard = diff.Guard(allocated=frozenset(all_uuids))
    lost = apply_plan(healthy, without(healthy, gone), guard)
    assert [n.uuid for n in lost.nodes] == [n.uuid for n in healthy.nodes]
    assert apply_plan(lost, healthy, guard) == healthy


def node(
    address: str, parent: str = ROOT.uuid, **inventories: int
) -> providers.ProviderNode:
    return providers.ProviderNode(
        name=names.provider_name(ROOT.name, address),
        uuid=names.provider_uuid(ROOT.uuid, address),
        parent=parent,
        inventories={
            name: providers.Inventory(total=total, max_unit=total)
            for name, total in inventories.items()
        },
        traits=strategies.OWNED | {strategies.profile_trait("P-1")},
    )


def tree_of(*nodes: providers.ProviderNode) -> providers.ProviderTree:
    return providers.ProviderTree(root=ROOT, nodes=nodes)


def uuids(plan: Iterable[calls.Call]) -> list[str]:
    return [c.uuid for c in plan if not isinstance(c, calls.Name)]


def test_a_parent_of_an_allocated_child_is_retained() -> None:
    """Placement refuses to delete a provider that has children."""
    card = node("0000:3b:00.0", VGPU=4)
    region = node("0000:3b:00.1", card.uuid, FPGA=1)
    plan = diff.plan(
        tree_of(card, region),
        tree_of(),
        diff.Guard(allocated=frozenset({region.uuid})),
    )
    assert not any(isinstance(c, calls.DeleteProvider) for c in plan)


def test_each_call_is_described_in_one_line() -> None:
    gone, stale, new = node("a", VGPU=4), node("b", VGPU=4), node("c")
    changed = dataclasses.replace(
        stale,
        inventories={
            "VGPU": providers.Inventory(total=2, max_unit=2).with_own_reserved(
                1
            )
        },
        traits=strategies.OWNED | {"HW_GPU_API_VULKAN"},
    )
    plan = diff.plan(
        tree_of(gone, stale),
        tree_of(changed, new),
        existing_names=frozenset({names.OWNER_TRAIT}),
    )
    assert [str(call) for call in plan] == [
        "create trait CUSTOM_VGPU_TEST_P_1",
        f"create provider compute-1_accel_c ({new.uuid})",
        "change traits of compute-1_accel_c: +CUSTOM_OWNER_NOVA_ACCEL,"
        " +CUSTOM_VGPU_TEST_P_1, +OWNER_NOVA",
        "set inventories of compute-1_accel_b: VGPU total=2 reserved=1",
        "change traits of compute-1_accel_b: +HW_GPU_API_VULKAN,"
        " -CUSTOM_VGPU_TEST_P_1",
        f"delete provider compute-1_accel_a ({gone.uuid})",
    ]


def test_a_provider_keeps_its_name_and_parent() -> None:
    card, region = node("a", FPGA=1), node("b", FPGA=1)
    moved = dataclasses.replace(region, parent=card.uuid, name="renamed")
    assert diff.plan(tree_of(card, moved), tree_of(card, region)) == []


def test_novas_owner_trait_is_added_and_never_removed() -> None:
    """A writer outside Nova does not know whether to publish it."""
    owned_node = node("a", VGPU=1)
    plain = dataclasses.replace(
        owned_node, traits=owned_node.traits - {names.NOVA_OWNER_TRAIT}
    )
    assert diff.plan(tree_of(owned_node), tree_of(plain)) == []
    (call,) = diff.plan(tree_of(plain), tree_of(owned_node))
    assert isinstance(call, calls.ChangeTraits)
    assert call.added == {names.NOVA_OWNER_TRAIT}


def test_a_moved_part_is_unreadable_with_its_card() -> None:
    address = "0000:3b:00.0"
    card = node(address)
    region = node(names.region_address(address, 1), FPGA=1)
    other = node("0000:3c:00.0", VGPU=4)
    actual = tree_of(card, region, other)
    assert diff.find_unreadable(actual, {address}) == {card.uuid, region.uuid}
    assert diff.find_unreadable(actual, ()) == frozenset()


@given(actual_trees, desired_trees, guards)
def test_unreadable_providers_are_reserved_and_labelled(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    result = apply_plan(actual, desired, guard)
    for before in actual.nodes:
        above = {before.uuid, before.parent}
        if not guard.unreadable & above or guard.unknown & above:
            continue
        if desired.node(before.uuid) is not None:
            continue
        after = result.node(before.uuid)
        assert after is not None
        assert health.UNREAD_TRAITS <= after.traits
        assert before.traits <= after.traits
        assert after.inventories.keys() == before.inventories.keys()
        for name, record in after.inventories.items():
            assert record.reserved == record.total
            assert record.total == before.inventories[name].total


@given(actual_trees, desired_trees, guards)
def test_only_shrinking_providers_need_their_allocations(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    shrinking = diff.find_shrinking(actual, desired, guard)
    none_allocated = dataclasses.replace(guard, allocated=frozenset())
    all_allocated = dataclasses.replace(guard, allocated=frozenset(all_uuids))
    plain = apply_plan(actual, desired, none_allocated)
    for before in actual.nodes:
        if before.uuid not in shrinking:
            after = plain.node(before.uuid)
            assert after is not None
            assert before.inventories.keys() <= after.inventories.keys()
    least = dataclasses.replace(guard, allocated=shrinking)
    assert apply_plan(actual, desired, least) == apply_plan(
        actual, desired, all_allocated
    )
