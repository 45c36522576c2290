# SPDX-License-Identifier: Apache-2.0
"""Reserved units of operator and device are merged, and none is lost."""

import dataclasses

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.model import names, providers
from placement_sync.sync import diff, reserved
from tests.support import strategies
from tests.support.placement import applied_plans

ROOT = strategies.ROOT
UUID = names.provider_uuid(ROOT.uuid, "0000:41:00.0")
NAME = names.provider_name(ROOT.name, "0000:41:00.0")
FREE = providers.Inventory(total=8, max_unit=8)
amounts = st.integers(0, 8)


def card(own: int, *traits: str, name: str = "VGPU") -> providers.ProviderTree:
    """Return a card of eight units; the device itself reserves ``own``."""
    return providers.ProviderTree(
        root=ROOT,
        nodes=(
            providers.ProviderNode(
                name=NAME,
                uuid=UUID,
                parent=ROOT.uuid,
                inventories={name: FREE.with_own_reserved(own)},
                traits=strategies.OWNED | set(traits),
            ),
        ),
    )


def record(tree: providers.ProviderTree) -> providers.Inventory:
    (inventory,) = tree.nodes[0].inventories.values()
    return inventory


def edit_record(
    tree: providers.ProviderTree, **fields: float
) -> providers.ProviderTree:
    """Return the tree after an operator's command changed a record."""
    (node,) = tree.nodes
    changed = {
        name: dataclasses.replace(inventory, **fields)  # type: ignore[arg-type]
        for name, inventory in node.inventories.items()
    }
    return dataclasses.replace(
        tree, nodes=(dataclasses.replace(node, inventories=changed),)
    )


def run_pass(
    actual: providers.ProviderTree, desired: providers.ProviderTree
) -> providers.ProviderTree:
    """Return the tree after a pass; the next pass must change nothing."""
    result = applied_plans.apply(actual, diff.plan(actual, desired))
    assert diff.plan(result, desired) == []
    return result


@given(amounts)
def test_a_record_contains_the_devices_own_amount(own: int) -> None:
    inventory = FREE.with_own_reserved(own)
    assert (inventory.reserved, inventory.own_reserved) == (own, own)
    assert reserved.operator_amount(inventory) == 0


def test_reserved_is_at_most_the_total() -> None:
    assert FREE.with_own_reserved(99) == FREE.with_own_reserved(8)


def test_a_foreign_record_has_no_own_amount() -> None:
    """Placement sets max_unit to the maximum if a command omits it."""
    wiped = providers.Inventory(
        total=8, reserved=3, max_unit=providers.MAX_TOTAL
    )
    assert wiped.own_reserved == 0
    assert reserved.operator_amount(wiped) == 3


@given(amounts, st.lists(amounts, max_size=5))
def test_an_operators_amount_is_the_minimum(
    operators: int, needs: list[int]
) -> None:
    """It remains after any amounts of the device."""
    tree = edit_record(run_pass(card(0), card(0)), reserved=operators)
    for own in needs:
        tree = run_pass(tree, card(own))
        assert record(tree).reserved == max(own, operators)
    assert record(run_pass(tree, card(0))).reserved == operators


@given(amounts, amounts, amounts)
def test_an_operators_amount_counts_at_once(
    own: int, operators: int, later: int
) -> None:
    hypothesis.assume(operators != own)
    tree = edit_record(card(own), reserved=operators)
    assert record(run_pass(tree, card(later))).reserved == max(
        later, operators
    )


def test_a_devices_amount_is_released() -> None:
    assert record(run_pass(card(8), card(0))) == FREE
    assert record(run_pass(card(3), card(1))) == FREE.with_own_reserved(1)


@given(st.floats(0.5, 16.0), amounts, amounts)
def test_an_allocation_ratio_is_retained(
    ratio: float, before: int, after: int
) -> None:
    tree = edit_record(card(before), allocation_ratio=ratio)
    assert record(run_pass(tree, card(after))).allocation_ratio == ratio


def test_a_hidden_amount_is_stored_in_a_trait() -> None:
    tree = edit_record(card(0), reserved=2)
    hidden = run_pass(tree, card(8, names.DRAINED_TRAIT))
    memory = "CUSTOM_ACCELERATOR_RESERVED_VGPU_2"
    assert memory in hidden.nodes[0].traits
    back = run_pass(hidden, card(0))
    assert memory not in back.nodes[0].traits
    assert record(back).reserved == 2


@given(amounts, amounts, amounts, st.integers(0, 4))
def test_a_crash_between_two_calls_loses_nothing(
    operators: int, own: int, later: int, done: int
) -> None:
    start = edit_record(card(0), reserved=operators)
    plan = diff.plan(start, card(own))
    half = applied_plans.apply(start, plan[:done])
    back = diff.plan(half, card(later))
    for end in range(len(back) + 1):
        tree = run_pass(applied_plans.apply(half, back[:end]), card(0))
        assert record(tree).reserved == operators


def test_the_trait_of_a_custom_class_has_no_prefix() -> None:
    start = edit_record(card(0, name="CUSTOM_MDEV"), reserved=3)
    tree = run_pass(start, card(8, name="CUSTOM_MDEV"))
    assert "CUSTOM_ACCELERATOR_RESERVED_MDEV_3" in tree.nodes[0].traits
    assert record(run_pass(tree, card(0, name="CUSTOM_MDEV"))).reserved == 3


@given(amounts, st.lists(st.tuples(st.integers(1, 8), amounts), max_size=5))
def test_an_operators_amount_survives_smaller_totals(
    operators: int, times: list[tuple[int, int]]
) -> None:
    """As of a card with VFs that another driver has for some time."""
    tree = edit_record(run_pass(card(0), card(0)), reserved=operators)
    for total, own in times:
        smaller = providers.Inventory(total=total, max_unit=total)
        desired = edit_record(
            card(0),
            **dataclasses.asdict(smaller.with_own_reserved(min(own, total))),
        )
        tree = run_pass(tree, desired)
        assert record(tree).reserved == max(
            min(own, total), min(operators, total)
        )
    assert record(run_pass(tree, card(0))).reserved == operators
