# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from filters import provider_facts
from filters.fit import candidate_locality, numa
from nova_accel.model import names

TWO = numa.Cells(present=frozenset({0, 1}), roomy=frozenset({0, 1}))
GUEST = numa.Cells(present=frozenset({0, 1}), chosen=frozenset({1}))


def seat(name: str, *nodes: int) -> candidate_locality.CandidateDevice:
    traits = {names.custom("ACCELERATOR", "NUMA", str(n)) for n in nodes}
    return candidate_locality.CandidateDevice(
        facts=provider_facts.ProviderFacts(
            uuid=name,
            stock={},
            name=name,
            traits=frozenset({names.OWNER_TRAIT, *traits}),
        )
    )


@pytest.mark.parametrize(
    "cells",
    [
        numa.UNTOLD,
        numa.Cells(present=frozenset({0})),
        numa.Cells(present=frozenset({0}), chosen=frozenset({0})),
    ],
)
def test_where_there_is_one_cell_all_is_near(cells: numa.Cells) -> None:
    assert numa.objection(cells, [seat("a", 0), seat("b", 1)]) == ""
    assert numa.objection(cells, [seat("a")]) == ""


def test_a_device_is_on_the_guest_s_cells() -> None:
    assert numa.objection(GUEST, [seat("a", 1), seat("b", 1)]) == ""
    assert numa.objection(GUEST, [seat("a", 1), seat("b", 0)]) == (
        "b: on NUMA node 0, the guest on 1"
    )


def test_a_guest_on_both_cells_may_have_devices_of_both() -> None:
    both = dataclasses.replace(GUEST, chosen=frozenset({0, 1}))

    assert numa.objection(both, [seat("a", 0), seat("b", 1)]) == ""


def test_without_a_topology_all_are_on_one_cell_with_room() -> None:
    assert numa.objection(TWO, [seat("a", 0), seat("b", 0)]) == ""
    assert numa.objection(TWO, [seat("a", 0), seat("b", 1)]) == (
        "a, b: on several NUMA nodes (0, 1)"
    )
    one = dataclasses.replace(TWO, roomy=frozenset({1}))
    assert numa.objection(one, [seat("a", 0)]) == (
        "a: on NUMA node 0, which has no room for the guest (room on: 1)"
    )
    none = dataclasses.replace(TWO, roomy=frozenset())
    assert "(room on: none)" in numa.objection(none, [seat("a", 0)])


@pytest.mark.parametrize("nodes", [(), (0, 1)])
def test_a_device_that_does_not_tell_its_node_is_not_near(
    nodes: tuple[int, ...],
) -> None:
    for cells in (TWO, GUEST):
        assert numa.objection(cells, [seat("a", *nodes)]) == (
            "a: its NUMA node is not known"
        )


def test_a_node_without_a_cell_is_not_near() -> None:
    for cells in (TWO, GUEST):
        assert "on NUMA node 2" in numa.objection(cells, [seat("a", 2)])


def test_of_what_nothing_was_read_nothing_is_said() -> None:
    unread = candidate_locality.CandidateDevice(
        facts=provider_facts.ProviderFacts(uuid="u", stock={})
    )

    assert numa.objection(GUEST, [unread]) == ""
    assert numa.objection(GUEST, [unread, seat("a", 0)])


def test_no_devices_are_nowhere_else() -> None:
    assert numa.objection(GUEST, []) == numa.objection(TWO, []) == ""
