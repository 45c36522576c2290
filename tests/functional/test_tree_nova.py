# SPDX-License-Identifier: Apache-2.0
"""Our tree laid onto Nova's own ProviderTree."""

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


def resource(slot: model.Slot) -> Any:
    return objects.Resource(
        provider_uuid=slot.provider,
        resource_class=slot.resource_class,
        identifier=slot.identifier,
    )


def nova_tree(*, pgpu: int = 2) -> provider_tree.ProviderTree:
    """Return a node as Nova fills it, beside ours: two foreign providers."""
    found = provider_tree.ProviderTree()
    found.new_root(ROOT.name, ROOT.uuid, generation=1)
    found.update_inventory(ROOT.uuid, {"VCPU": {"total": 8, "reserved": 0}})
    found.update_traits(ROOT.uuid, ["COMPUTE_NODE", "CUSTOM_VGPU_ROOT"])
    found.new_child("compute-1_0000:3b:00.0", ROOT.uuid, uuid=FOREIGN)
    found.update_inventory(FOREIGN, {"PGPU": {"total": pgpu}})
    found.update_traits(FOREIGN, ["OWNER_NOVA", "CUSTOM_GPU_FOREIGN"])
    found.new_root("shared storage", SHARED, generation=1)
    found.update_traits(SHARED, ["MISC_SHARES_VIA_AGGREGATE"])
    return found


def everything(found: provider_tree.ProviderTree) -> dict[str, Any]:
    return {
        uuid: found.data(uuid)._asdict() for uuid in found.get_provider_uuids()
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


def lay(
    found: provider_tree.ProviderTree,
    desired: providers.ProviderTree,
    guard: diff.Guard = NOTHING,
) -> list[calls.ProviderCall]:
    return nova_provider_tree.update_tree(found, desired, guard, resource)


@given(slotted())
@slow
def test_what_is_laid_is_what_is_read(desired: providers.ProviderTree) -> None:
    found = nova_tree()
    lay(found, desired)
    read = nova_provider_tree.read_tree(found, desired)
    assert [n.uuid for n in read.nodes] == [n.uuid for n in desired.nodes]
    for node in read.nodes:
        wanted = desired.node(node.uuid)
        assert wanted is not None
        assert (node.name, node.parent) == (wanted.name, wanted.parent)
        assert dict(node.inventories) == dict(wanted.inventories)
        assert node.traits == wanted.traits


@given(slotted(), slotted(), guards)
@slow
def test_laid_twice_is_laid_once(
    first: providers.ProviderTree,
    second: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    found = nova_tree()
    lay(found, first)
    lay(found, second, guard)
    before = everything(found)
    assert lay(found, second, guard) == []
    assert everything(found) == before


@given(slotted(), slotted(), guards)
@slow
def test_what_is_not_ours_is_untouched(
    first: providers.ProviderTree,
    second: providers.ProviderTree,
    guard: diff.Guard,
) -> None:
    found = nova_tree()
    before = everything(found)
    lay(found, first)
    lay(found, second, guard)
    after = everything(found)
    for uuid in (ROOT.uuid, FOREIGN, SHARED):
        assert after[uuid] == before[uuid]


@given(slotted())
@slow
def test_slots_are_nova_s_own_resources(
    desired: providers.ProviderTree,
) -> None:
    found = nova_tree()
    lay(found, desired)
    for node in desired.nodes:
        published = found.data(node.uuid).resources
        assert published.keys() == node.slots.keys()
        for name, resources in published.items():
            assert all(isinstance(r, objects.Resource) for r in resources)
            assert {
                (r.provider_uuid, r.resource_class, r.identifier)
                for r in resources
            } == {(node.uuid, name, slot) for slot in node.slots[name]}


@given(slotted(), st.data())
@slow
def test_what_a_crash_left_is_adopted(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    """Created, but not yet marked as ours, when the service died."""
    found, whole = nova_tree(), nova_tree()
    made = nova_provider_tree.plan(found, desired, NOTHING)
    for call in made[: data.draw(st.integers(0, len(made)))]:
        nova_provider_tree._apply(found, call)
    lay(found, desired)
    lay(whole, desired)
    assert everything(found) == everything(whole)


@given(slotted())
@slow
def test_all_of_ours_can_go_again(desired: providers.ProviderTree) -> None:
    found = nova_tree()
    before = everything(found)
    lay(found, desired)
    lay(found, providers.ProviderTree(root=ROOT))
    assert everything(found) == before


@given(slotted(), st.data())
@slow
def test_only_what_is_known_to_be_free_shrinks(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    found = nova_tree()
    lay(found, desired)
    allocated = data.draw(st.frozensets(st.sampled_from(all_uuids)))
    host = model.HostState(
        unknown=data.draw(
            st.frozensets(st.sampled_from(strategies.ADDRESSES))
        ),
        complete=data.draw(st.booleans()),
    )
    empty = providers.ProviderTree(root=ROOT)
    asked: list[str] = []

    def is_allocated(uuid: str) -> bool:
        asked.append(uuid)
        return uuid in allocated

    free = nova_provider_tree.find_shrinkable(found, empty, host, is_allocated)
    unreadable = {
        names.provider_uuid(ROOT.uuid, address) for address in host.unknown
    }
    guard = nova_provider_tree.guard(found, empty, free, host)
    before = everything(found)
    lay(found, empty, guard)
    left = {n.uuid for n in nova_provider_tree.read_tree(found, empty).nodes}
    if not host.complete:
        # A whole technology could not be read: nothing may be told absent.
        assert not asked
        assert everything(found) == before
        return
    asides = {n.uuid for n in desired.nodes if n.uuid in unreadable}
    asides |= {n.uuid for n in desired.nodes if n.parent in asides}
    assert sorted(asked) == sorted(
        n.uuid for n in desired.nodes if n.uuid not in asides
    )
    for uuid in asides:
        assert names.FAULTED_TRAIT in found.data(uuid).traits
        assert all(
            record["reserved"] == record["total"]
            for record in found.data(uuid).inventory.values()
        )
    kept = allocated | asides
    assert {n.uuid for n in desired.nodes} & kept <= left
    parents = {n.parent for n in desired.nodes if n.uuid in kept}
    assert left <= kept | parents


@given(slotted())
@slow
def test_nothing_is_asked_where_nothing_shrinks(
    desired: providers.ProviderTree,
) -> None:
    found = nova_tree()
    lay(found, desired)

    def is_allocated(uuid: str) -> bool:
        raise AssertionError(f"asked for {uuid}")

    host = model.HostState()
    assert not nova_provider_tree.find_shrinkable(
        found, desired, host, is_allocated
    )


@given(slotted(), st.data())
@slow
def test_a_held_slot_of_a_missing_device_is_still_there(
    desired: providers.ProviderTree, data: st.DataObject
) -> None:
    """Nova's check at its start fails for a slot that it can't find."""
    found = nova_tree()
    lay(found, desired)
    slots = [
        model.Slot(provider=n.uuid, resource_class=name, identifier=slot)
        for n in desired.nodes
        for name, identifiers in n.slots.items()
        for slot in identifiers
    ]
    held = data.draw(st.sets(st.sampled_from(slots))) if slots else set()
    for uuid in found.get_provider_uuids():
        found.update_resources(uuid, {})  # the service has just started
    guard = diff.Guard(allocated=frozenset(slot.provider for slot in held))
    empty = providers.ProviderTree(root=ROOT)
    nova_provider_tree.update_tree(found, empty, guard, resource, held)
    published = {
        (r.provider_uuid, r.resource_class, r.identifier)
        for uuid in found.get_provider_uuids()
        for resources in found.data(uuid).resources.values()
        for r in resources
    }
    assert published == {
        (s.provider, s.resource_class, s.identifier) for s in held
    }


def test_a_copy_of_the_tree_is_enough(registered: None) -> None:
    """Nova lays onto a deep copy and compares it with what it had."""
    node = providers.ProviderNode(
        name=names.provider_name(ROOT.name, "0000:3b:00.0"),
        uuid=all_uuids[0],
        parent=ROOT.uuid,
        inventories={"VGPU": providers.Inventory(total=2, max_unit=2)},
        traits=strategies.OWNED,
        slots={"VGPU": frozenset(names.slot_names(2))},
    )
    desired = providers.ProviderTree(root=ROOT, nodes=(node,))
    found = nova_tree()
    lay(found, desired)
    copied = copy.deepcopy(found)
    assert lay(copied, desired) == []
    assert everything(copied) == everything(found)


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
def test_what_an_operator_has_set_survives(
    total: int, theirs: int, ours: int
) -> None:
    """Through a time in which the card reserves more, and back."""
    found = nova_tree()
    lay(found, card(total))
    record = found.data(all_uuids[0]).inventory["VGPU"]
    theirs, ours = min(theirs, total), min(ours, total)
    edited = {**record, "reserved": theirs, "allocation_ratio": 2.0}
    found.update_inventory(all_uuids[0], {"VGPU": edited})
    found.add_traits(all_uuids[0], "CUSTOM_RACK_7")
    assert lay(found, card(total)) == []
    for reserved in (ours, total, 0):
        lay(found, card(total, reserved))
        now = found.data(all_uuids[0])
        assert now.inventory["VGPU"]["reserved"] == max(theirs, reserved)
        assert now.inventory["VGPU"]["allocation_ratio"] == 2.0
        assert "CUSTOM_RACK_7" in now.traits
        assert lay(found, card(total, reserved)) == []


def test_a_provider_elsewhere_is_left_to_the_pass_over_placement() -> None:
    found = nova_tree()
    found.new_child("old name", FOREIGN, uuid=all_uuids[0])
    found.add_traits(all_uuids[0], *strategies.OWNED)
    made = lay(found, card(2))
    assert [type(call) for call in made] == [calls.SetInventories]
    assert found.data(all_uuids[0]).name == "old name"
    assert found.data(all_uuids[0]).parent_uuid == FOREIGN
    assert lay(found, card(2)) == []


def test_a_mark_on_a_compute_node_makes_it_not_ours() -> None:
    """Nor are the providers of another node that got into the tree."""
    found = nova_tree()
    found.add_traits(ROOT.uuid, names.OWNER_TRAIT)
    found.new_child("compute-2", ROOT.uuid, uuid=all_uuids[1])
    found.new_child("compute-2_accel", all_uuids[1], uuid=all_uuids[2])
    found.add_traits(all_uuids[2], *strategies.OWNED)
    before = everything(found)
    assert lay(found, providers.ProviderTree(root=ROOT)) == []
    assert everything(found) == before
    lay(found, card(2))
    assert {u: everything(found)[u] for u in before} == before


@given(slotted(), slotted())
@slow
def test_new_slots_come_to_a_tree_in_use_and_none_go(
    first: providers.ProviderTree, second: providers.ProviderTree
) -> None:
    found = nova_tree()
    lay(found, first)
    before = {
        uuid: found.data(uuid).resources for uuid in found.get_provider_uuids()
    }
    nova_provider_tree.add_new_slots(found, second, resource)
    for uuid, old in before.items():
        for name, resources in old.items():
            assert resources <= found.data(uuid).resources[name]
    for node in second.nodes:
        data = found.data(node.uuid)
        for name, slots in node.slots.items():
            assert slots <= {r.identifier for r in data.resources[name]}
        if node.uuid not in before:  # Nova may send it as it is
            assert data.inventory == nova_provider_tree.as_dicts(
                node.inventories
            )
            assert data.traits == node.traits
    again = everything(found)
    nova_provider_tree.add_new_slots(found, second, resource)
    assert everything(found) == again
