# SPDX-License-Identifier: Apache-2.0
"""Devices that are not on the guest's NUMA cells are rejected."""

import dataclasses

import pytest

from filters.fit import candidate_locality, numa
from nova_accel.model import names, providers

TWO = numa.Cells(present=frozenset({0, 1}), spacious=frozenset({0, 1}))
GUEST = numa.Cells(present=frozenset({0, 1}), chosen=frozenset({1}))


def device(name: str, *nodes: int) -> candidate_locality.CandidateDevice:
    traits = {names.custom_name("ACCELERATOR", "NUMA", str(n)) for n in nodes}
    return candidate_locality.CandidateDevice(
        facts=providers.Provider(
            uuid=name,
            capacities={},
            name=name,
            traits=frozenset({names.OWNER_TRAIT, *traits}),
        )
    )


def reject(
    cells: numa.Cells, devices: list[candidate_locality.CandidateDevice]
) -> str:
    """Return the text of the rejection, empty without one."""
    return str(numa.find_rejection(cells, devices) or "")


@pytest.mark.parametrize(
    "cells",
    [
        numa.UNKNOWN_CELLS,
        numa.Cells(present=frozenset({0})),
        numa.Cells(present=frozenset({0}), chosen=frozenset({0})),
    ],
)
def test_all_devices_are_near_on_a_host_with_one_cell(
    cells: numa.Cells,
) -> None:
    assert reject(cells, [device("a", 0), device("b", 1)]) == ""
    assert reject(cells, [device("a")]) == ""


def test_a_device_must_be_on_the_guests_cells() -> None:
    assert reject(GUEST, [device("a", 1), device("b", 1)]) == ""
    assert reject(GUEST, [device("a", 1), device("b", 0)]) == (
        "b: on NUMA node 0, the guest on 1"
    )


def test_a_guest_on_both_cells_may_have_devices_of_both() -> None:
    both = dataclasses.replace(GUEST, chosen=frozenset({0, 1}))

    assert reject(both, [device("a", 0), device("b", 1)]) == ""


def test_a_guest_without_topology_needs_one_cell_with_room() -> None:
    assert reject(TWO, [device("a", 0), device("b", 0)]) == ""
    assert reject(TWO, [device("a", 0), device("b", 1)]) == (
        "a, b: on several NUMA nodes (0, 1)"
    )
    second_only = dataclasses.replace(TWO, spacious=frozenset({1}))
    assert reject(second_only, [device("a", 0)]) == (
        "a: on NUMA node 0, which has no room for the guest (room on: 1)"
    )
    no_room = dataclasses.replace(TWO, spacious=frozenset())
    assert "(room on: none)" in reject(no_room, [device("a", 0)])


@pytest.mark.parametrize("nodes", [(), (0, 1)])
def test_a_device_without_exactly_one_node_is_rejected(
    nodes: tuple[int, ...],
) -> None:
    for cells in (TWO, GUEST):
        assert reject(cells, [device("a", *nodes)]) == (
            "a: its NUMA node is not known"
        )


def test_a_node_without_a_cell_is_not_near() -> None:
    for cells in (TWO, GUEST):
        assert "on NUMA node 2" in reject(cells, [device("a", 2)])


def test_an_unread_device_is_not_rejected() -> None:
    unread = candidate_locality.CandidateDevice(
        facts=providers.Provider(uuid="u", capacities={})
    )

    assert reject(GUEST, [unread]) == ""
    assert reject(GUEST, [unread, device("a", 0)])


def test_no_devices_are_not_rejected() -> None:
    assert reject(GUEST, []) == reject(TWO, []) == ""
