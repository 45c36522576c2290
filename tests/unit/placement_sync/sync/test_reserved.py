# SPDX-License-Identifier: Apache-2.0
"""Merge of the reserved units of an operator and of a device."""

import dataclasses

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff, reserved
from tests.support import strategies

ROOT = strategies.ROOT
UUID = names.provider_uuid(ROOT.uuid, "0000:41:00.0")
NAME = names.provider_name(ROOT.name, "0000:41:00.0")
FREE = providers.Inventory(total=8, max_unit=8)
amounts = st.integers(0, 8)


def card(own: int, *traits: str, name: str = "VGPU") -> providers.ProviderTree:
    """Return one card of eight units of which the device needs some."""
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
    (found,) = tree.nodes[0].inventories.values()
    return found


def edited(
    tree: providers.ProviderTree, **fields: float
) -> providers.ProviderTree:
    """Return the tree after an operator's command changed a record."""
    (node,) = tree.nodes
    changed = {
        name: dataclasses.replace(found, **fields)  # type: ignore[arg-type]
        for name, found in node.inventories.items()
    }
    return dataclasses.replace(
        tree, nodes=(dataclasses.replace(node, inventories=changed),)
    )


def led(
    actual: providers.ProviderTree, desired: providers.ProviderTree
) -> providers.ProviderTree:
    """Return where a pass leads, and check that the next has no work."""
    result = diff.apply(actual, diff.plan(actual, desired))
    assert diff.plan(result, desired) == []
    return result


@given(amounts)
def test_a_record_tells_what_is_ours(own: int) -> None:
    found = FREE.with_own_reserved(own)
    assert (found.reserved, found.own_reserved) == (own, own)
    assert reserved.operator_amount(found) == 0


def test_no_more_is_reserved_than_there_is() -> None:
    assert FREE.with_own_reserved(99) == FREE.with_own_reserved(8)


def test_a_record_that_somebody_else_wrote_has_nothing_of_ours() -> None:
    """What a command leaves out, Placement sets to the largest number."""
    wiped = providers.Inventory(
        total=8, reserved=3, max_unit=providers.MAX_TOTAL
    )
    assert wiped.own_reserved == 0
    assert reserved.operator_amount(wiped) == 3


@given(amounts, st.lists(amounts, max_size=5))
def test_an_operator_s_reservation_is_the_least(
    theirs: int, needs: list[int]
) -> None:
    """Whatever the device needs in between, it comes back."""
    tree = edited(led(card(0), card(0)), reserved=theirs)
    for own in needs:
        tree = led(tree, card(own))
        assert record(tree).reserved == max(own, theirs)
    assert record(led(tree, card(0))).reserved == theirs


@given(amounts, amounts, amounts)
def test_it_counts_at_once_whatever_the_device_needs(
    own: int, theirs: int, later: int
) -> None:
    hypothesis.assume(theirs != own)
    tree = edited(card(own), reserved=theirs)
    assert record(led(tree, card(later))).reserved == max(later, theirs)


def test_what_a_device_needed_goes_when_it_needs_it_no_more() -> None:
    assert record(led(card(8), card(0))) == FREE
    assert record(led(card(3), card(1))) == FREE.with_own_reserved(1)


@given(st.floats(0.5, 16.0), amounts, amounts)
def test_an_allocation_ratio_stays(
    ratio: float, before: int, after: int
) -> None:
    tree = edited(card(before), allocation_ratio=ratio)
    assert record(led(tree, card(after))).allocation_ratio == ratio


def test_what_is_hidden_stands_in_a_trait_until_it_is_seen_again() -> None:
    tree = edited(card(0), reserved=2)
    hidden = led(tree, card(8, names.DRAINED_TRAIT))
    memory = "CUSTOM_ACCELERATOR_RESERVED_VGPU_2"
    assert memory in hidden.nodes[0].traits
    back = led(hidden, card(0))
    assert memory not in back.nodes[0].traits
    assert record(back).reserved == 2


def test_it_is_remembered_before_it_is_hidden() -> None:
    """A service that dies between two calls loses nothing."""
    start = edited(card(0), reserved=2)
    plan = diff.plan(start, card(8, names.DRAINED_TRAIT))
    assert [type(call) for call in plan] == [
        calls.ChangeTraits,
        calls.SetInventories,
    ]


@given(amounts, amounts, amounts, st.integers(0, 4))
def test_death_between_two_calls_loses_nothing(
    theirs: int, own: int, later: int, done: int
) -> None:
    start = edited(card(0), reserved=theirs)
    plan = diff.plan(start, card(own))
    half = diff.apply(start, plan[:done])
    back = diff.plan(half, card(later))
    for end in range(len(back) + 1):
        tree = led(diff.apply(half, back[:end]), card(0))
        assert record(tree).reserved == theirs


def test_a_custom_class_is_called_by_its_own_name() -> None:
    start = edited(card(0, name="CUSTOM_MDEV"), reserved=3)
    tree = led(start, card(8, name="CUSTOM_MDEV"))
    assert "CUSTOM_ACCELERATOR_RESERVED_MDEV_3" in tree.nodes[0].traits
    assert record(led(tree, card(0, name="CUSTOM_MDEV"))).reserved == 3


@given(amounts, st.lists(st.tuples(st.integers(1, 8), amounts), max_size=5))
def test_it_outlives_a_total_that_has_no_room_for_it(
    theirs: int, times: list[tuple[int, int]]
) -> None:
    """As of a card of whose VFs some are with another driver for a while."""
    tree = edited(led(card(0), card(0)), reserved=theirs)
    for total, own in times:
        less = providers.Inventory(total=total, max_unit=total)
        wanted = edited(
            card(0),
            **dataclasses.asdict(less.with_own_reserved(min(own, total))),
        )
        tree = led(tree, wanted)
        assert record(tree).reserved == max(
            min(own, total), min(theirs, total)
        )
    assert record(led(tree, card(0))).reserved == theirs
