# SPDX-License-Identifier: Apache-2.0
"""Updates of Nova's ProviderTree with the library's tree."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.compute import provider_tree

from nova_accel import model
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff
from tests.support import examples, strategies
from virt_hooks.report import nova_provider_tree

ROOT = strategies.ROOT
NOTHING = diff.Guard()
all_uuids = [
    names.provider_uuid(ROOT.uuid, address) for address in strategies.ADDRESSES
]
guards = st.builds(
    diff.Guard,
    allocated=st.frozensets(st.sampled_from(all_uuids)),
    unknown=st.frozensets(st.sampled_from(all_uuids)),
    unreadable=st.frozensets(st.sampled_from(all_uuids)),
)
FOREIGN = "cccccccc-0000-4000-8000-00000000000c"
SHARED = "dddddddd-0000-4000-8000-00000000000d"
slow = settings(deadline=None, max_examples=examples.examples(25))


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()


def nova_tree(*, pgpu: int = 2) -> provider_tree.ProviderTree:
    """Return Nova's tree of a node, with two foreign providers."""
    tree = provider_tree.ProviderTree()
    tree.new_root(ROOT.name, ROOT.uuid, generation=1)
    tree.update_inventory(ROOT.uuid, {"VCPU": {"total": 8, "reserved": 0}})
    tree.update_traits(ROOT.uuid, ["COMPUTE_NODE", "CUSTOM_VGPU_ROOT"])
    tree.new_child("compute-1_0000:3b:00.0", ROOT.uuid, uuid=FOREIGN)
    tree.update_inventory(FOREIGN, {"PGPU": {"total": pgpu}})
    tree.update_traits(FOREIGN, ["OWNER_NOVA", "CUSTOM_GPU_FOREIGN"])
    tree.new_root("shared storage", SHARED, generation=1)
    tree.update_traits(SHARED, ["MISC_SHARES_VIA_AGGREGATE"])
    return tree


def dump(tree: provider_tree.ProviderTree) -> dict[str, Any]:
    return {
        uuid: tree.data(uuid)._asdict() for uuid in tree.get_provider_uuids()
    }


@st.composite
def slotted(draw: st.DrawFn) -> providers.ProviderTree:
    """Draw a desired tree whose providers have slots."""
    drawn = draw(strategies.trees())
    return providers.ProviderTree(
        root=ROOT,
        nodes=tuple(
            providers.ProviderNode(
                name=n.name,
                uuid=n.uuid,
                parent=n.parent,
                inventories=n.inventories,
                traits=n.traits,
                slots={
                    name: frozenset(names.slot_names(record.total))
                    for name, record in n.inventories.items()
                },
            )
            for n in drawn.nodes
        ),
    )


def update(
    tree: provider_tree.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard = NOTHING,
) -> list[calls.ProviderCall]:
    return nova_provider_tree.update_tree(tree, desired, guard)


@given(slotted())
@slow
def test_an_update_is_read_back(desired: providers.ProviderTree) -> None:
    tree = nova_tree()
    update(tree, desired)
    read = nova_provider_tree.read_tree(tree, desired)
    assert [n.uuid for n in read.nodes] == [n.uuid for n in desired.nodes]
    for node in read.nodes:
        expected = desired.node(node.uuid)
        assert expected is not None
        assert (node.name, node.parent) == (expected.name, expected.parent)
        assert dict(node.inventories) == dict(expected.inventories)
        assert node.traits == expected.traits


@given(slotted(), slotted(), guards)
@slow
def test_a_second_update_changes_nothing(
    first: providers.ProviderTree,
    second: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    tree = nova_tree()
    update(tree, first)
    update(tree, second, guard)
    before = dump(tree)
    assert update(tree, second, guard) == []
    assert dump(tree) == before


@given(slotted(), slotted(), guards)
@slow
def test_foreign_providers_are_untouched(
    first: providers.ProviderTree,
    second: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    tree = nova_tree()
    before = dump(tree)
    update(tree, first)
    update(tree, second, guard)
    after = dump(tree)
    for uuid in (ROOT.uuid, FOREIGN, SHARED):
        assert after[uuid] == before[uuid]


@given(slotted())
@slow
def test_slots_are_nova_s_own_resources(
    desired: providers.ProviderTree,
) -> None:
    tree = nova_tree()
    update(tree, desired)
    for node in desired.nodes:
        published = tree.data(node.uuid).resources
        assert published.keys() == node.slots.keys()
        for name, resources in published.items():
            assert all(isinstance(r, objects.Resource) for r in resources)
            assert {
                (r.provider_uuid, r.resource_class, r.identifier)
                for r in resources
            } == {(node.uuid, name, slot) for slot in node.slots[name]}


@given(slotted(), st.data())
@slow
def test_providers_of_a_crashed_update_are_adopted(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    """They exist, but lack the owner's trait."""
    tree, expected = nova_tree(), nova_tree()
    plan = nova_provider_tree.plan(tree, desired, NOTHING)
    done = plan[: data.draw(st.integers(0, len(plan)))]
    nova_provider_tree.apply(tree, done)
    update(tree, desired)
    update(expected, desired)
    assert dump(tree) == dump(expected)


@given(slotted())
@slow
def test_an_empty_tree_removes_all_own_providers(
    desired: providers.ProviderTree,
) -> None:
    tree = nova_tree()
    before = dump(tree)
    update(tree, desired)
    update(tree, providers.ProviderTree(root=ROOT))
    assert dump(tree) == before


@given(slotted(), st.data())
@slow
def test_only_free_providers_shrink(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    tree = nova_tree()
    update(tree, desired)
    allocated = data.draw(st.frozensets(st.sampled_from(all_uuids)))
    host = model.HostState(
        unknown=data.draw(
            st.frozensets(st.sampled_from(strategies.ADDRESSES))
        ),
        complete=data.draw(st.booleans()),
    )
    empty = providers.ProviderTree(root=ROOT)
    queried: list[str] = []

    def is_allocated(uuid: str) -> bool:
        queried.append(uuid)
        return uuid in allocated

    free = nova_provider_tree.find_shrinkable(tree, empty, host, is_allocated)
    unreadable = {
        names.provider_uuid(ROOT.uuid, address) for address in host.unknown
    }
    guard = nova_provider_tree.guard(tree, empty, free, host)
    before = dump(tree)
    update(tree, empty, guard)
    remaining = {
        n.uuid for n in nova_provider_tree.read_tree(tree, empty).nodes
    }
    if not host.complete:
        # A whole technology could not be read: no provider is certainly gone.
        assert not queried
        assert dump(tree) == before
        return
    unread = {n.uuid for n in desired.nodes if n.uuid in unreadable}
    unread |= {n.uuid for n in desired.nodes if n.parent in unread}
    assert sorted(queried) == sorted(
        n.uuid for n in desired.nodes if n.uuid not in unread
    )
    for uuid in unread:
        assert names.FAULTED_TRAIT in tree.data(uuid).traits
        assert all(
            record["reserved"] == record["total"]
            for record in tree.data(uuid).inventory.values()
        )
    retained = allocated | unread
    assert {n.uuid for n in desired.nodes} & retained <= remaining
    parents = {n.parent for n in desired.nodes if n.uuid in retained}
    assert remaining <= retained | parents


@given(slotted())
@slow
def test_no_allocations_are_queried_if_nothing_shrinks(
    desired: providers.ProviderTree,
) -> None:
    tree = nova_tree()
    update(tree, desired)

    def is_allocated(uuid: str) -> bool:
        raise AssertionError(f"queried {uuid}")

    host = model.HostState()
    assert not nova_provider_tree.find_shrinkable(
        tree, desired, host, is_allocated
    )


@given(slotted(), st.data())
@slow
def test_a_claimed_slot_of_a_missing_device_remains(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    """Nova's check at its start fails for a slot that it can't find."""
    tree = nova_tree()
    update(tree, desired)
    slots = [
        model.Slot(provider=n.uuid, resource_class=name, identifier=slot)
        for n in desired.nodes
        for name, identifiers in n.slots.items()
        for slot in identifiers
    ]
    claimed = data.draw(st.sets(st.sampled_from(slots))) if slots else set()
    for uuid in tree.get_provider_uuids():
        tree.update_resources(uuid, {})  # The service has just started.
    guard = diff.Guard(allocated=frozenset(slot.provider for slot in claimed))
    empty = providers.ProviderTree(root=ROOT)
    nova_provider_tree.update_tree(tree, empty, guard, claimed)
    published = {
        (r.provider_uuid, r.resource_class, r.identifier)
        for uuid in tree.get_provider_uuids()
        for resources in tree.data(uuid).resources.values()
        for r in resources
    }
    assert published == {
        (s.provider, s.resource_class, s.identifier) for s in claimed
    }


def test_a_copy_of_the_tree_is_enough(registered: None) -> None:
    """Nova updates a deep copy and compares it with its own tree."""
    node = providers.ProviderNode(
        name=names.provider_name(ROOT.name, "0000:3b:00.0"),
        uuid=all_uuids[0],
        parent=ROOT.uuid,
        inventories={"VGPU": providers.Inventory(total=2, max_unit=2)},
        traits=strategies.OWNED,
        slots={"VGPU": frozenset(names.slot_names(2))},
    )
    desired = providers.ProviderTree(root=ROOT, nodes=(node,))
    tree = nova_tree()
    update(tree, desired)
    copied = copy.deepcopy(tree)
    assert update(copied, desired) == []
    assert dump(copied) == dump(tree)


def test_copies_of_a_tree_share_its_slots() -> None:
    """Nova copies the slots several times in each update."""
    tree, later = nova_tree(), nova_tree()
    update(tree, card(2))
    update(later, card(2))
    (uuid,) = (node.uuid for node in card(2).nodes)
    slots = [
        {r.identifier: r for r in each.data(uuid).resources["VGPU"]}
        for each in (tree, copy.deepcopy(tree), later)
    ]
    for each in slots[1:]:
        assert each.keys() == slots[0].keys()
        assert all(each[name] is slots[0][name] for name in each)
    # Nova's tracker takes its slots from such a difference.
    free = tree.data(uuid).resources["VGPU"] - {slots[0]["slot-0"]}
    free.pop()
    assert len(tree.data(uuid).resources["VGPU"]) == 2


def card(total: int, reserved: int = 0) -> providers.ProviderTree:
    """Return a tree with one card."""
    record = providers.Inventory(total=total, max_unit=total)
    node = providers.ProviderNode(
        name=names.provider_name(ROOT.name, "0000:3b:00.0"),
        uuid=all_uuids[0],
        parent=ROOT.uuid,
        inventories={"VGPU": record.with_own_reserved(reserved)},
        traits=strategies.OWNED,
        slots={"VGPU": frozenset(names.slot_names(total))},
    )
    return providers.ProviderTree(root=ROOT, nodes=(node,))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
@slow
def test_an_operators_changes_survive(
    total: int, operators: int, own: int
) -> None:
    """The larger of both reserved amounts is published."""
    tree = nova_tree()
    update(tree, card(total))
    record = tree.data(all_uuids[0]).inventory["VGPU"]
    operators, own = min(operators, total), min(own, total)
    edited = {**record, "reserved": operators, "allocation_ratio": 2.0}
    tree.update_inventory(all_uuids[0], {"VGPU": edited})
    tree.add_traits(all_uuids[0], "CUSTOM_RACK_7")
    assert update(tree, card(total)) == []
    for reserved in (own, total, 0):
        update(tree, card(total, reserved))
        now = tree.data(all_uuids[0])
        assert now.inventory["VGPU"]["reserved"] == max(operators, reserved)
        assert now.inventory["VGPU"]["allocation_ratio"] == 2.0
        assert "CUSTOM_RACK_7" in now.traits
        assert update(tree, card(total, reserved)) == []


def test_a_provider_with_another_parent_is_not_moved() -> None:
    tree = nova_tree()
    tree.new_child("old name", FOREIGN, uuid=all_uuids[0])
    tree.add_traits(all_uuids[0], *strategies.OWNED)
    plan = update(tree, card(2))
    assert [type(call) for call in plan] == [calls.SetInventories]
    assert tree.data(all_uuids[0]).name == "old name"
    assert tree.data(all_uuids[0]).parent_uuid == FOREIGN
    assert update(tree, card(2)) == []


def test_a_provider_below_another_root_is_not_created_again() -> None:
    """Nova has read the other tree, because the provider is in it."""
    tree = nova_tree()
    update(tree, card(2))
    record = dict(tree.data(all_uuids[0]).inventory["VGPU"], reserved=1)
    tree.remove(all_uuids[0])
    tree.new_child("compute-1_accel_a", SHARED, uuid=all_uuids[0])
    tree.add_traits(all_uuids[0], *strategies.OWNED)
    tree.update_inventory(all_uuids[0], {"VGPU": record})
    update(tree, card(4))
    assert tree.data(all_uuids[0]).parent_uuid == SHARED
    assert tree.data(all_uuids[0]).inventory["VGPU"]["total"] == 4
    assert tree.data(all_uuids[0]).inventory["VGPU"]["reserved"] == 1


def test_a_compute_node_with_the_owner_trait_is_foreign() -> None:
    """Providers of another node in the tree are foreign, too."""
    tree = nova_tree()
    tree.add_traits(ROOT.uuid, names.OWNER_TRAIT)
    tree.new_child("compute-2", ROOT.uuid, uuid=all_uuids[1])
    name = names.provider_name("compute-2", "0000:3b:00.0")
    tree.new_child(name, all_uuids[1], uuid=all_uuids[2])
    tree.add_traits(all_uuids[2], *strategies.OWNED)
    before = dump(tree)
    assert update(tree, providers.ProviderTree(root=ROOT)) == []
    assert dump(tree) == before
    update(tree, card(2))
    assert {u: dump(tree)[u] for u in before} == before


@given(slotted(), slotted())
@slow
def test_new_slots_are_added_and_none_removed(
    first: providers.ProviderTree, second: providers.ProviderTree
) -> None:
    tree = nova_tree()
    update(tree, first)
    before = {
        uuid: tree.data(uuid).resources for uuid in tree.get_provider_uuids()
    }
    nova_provider_tree.add_new_slots(tree, second)
    for uuid, old in before.items():
        for name, resources in old.items():
            assert resources <= tree.data(uuid).resources[name]
    for node in second.nodes:
        data = tree.data(node.uuid)
        for name, slots in node.slots.items():
            assert slots <= {r.identifier for r in data.resources[name]}
        if node.uuid not in before:  # Nova may send it unchanged.
            assert data.inventory == providers.as_dicts(node.inventories)
            assert data.traits == node.traits
    again = dump(tree)
    nova_provider_tree.add_new_slots(tree, second)
    assert dump(tree) == again
