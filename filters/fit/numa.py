# SPDX-License-Identifier: Apache-2.0
"""NUMA affinity of devices and guests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from filters.fit import candidate_locality


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A host's NUMA cells, as the scheduler sees them.

    ``present`` are their ids, none if the host tells of none. ``chosen``
    are those that Nova will give to a guest with a NUMA topology, None for
    a guest without one, which runs wherever there is room: ``roomy`` are
    the cells large enough to take it whole.
    """

    present: frozenset[int] = frozenset()
    chosen: frozenset[int] | None = None
    roomy: frozenset[int] = frozenset()


UNTOLD = Cells()
_SEVERAL = 2


def objection(
    cells: Cells, seats: Sequence[candidate_locality.CandidateDevice]
) -> str:
    """Return why devices are not where the guest will run, or nothing.

    On a host with one cell, or of which no cells are known, they are.
    With a NUMA topology each device must be on one of the cells chosen for
    the guest; without one all must be on one cell that has room for it.
    """
    if len(cells.present) < _SEVERAL:
        return ""
    wanted = cells.roomy if cells.chosen is None else cells.chosen
    nodes: set[int] = set()
    for seat in seats:
        if not seat.facts.traits:
            continue  # nothing was read of it
        found = {int(n) for n in seat.nodes if n.isdecimal()}
        if len(found) != 1:
            return f"{seat.facts.label}: its NUMA node is not known"
        if not found <= wanted:
            return f"{seat.facts.label}: {_elsewhere(cells, *found)}"
        nodes |= found
    if cells.chosen is None and len(nodes) > 1:
        who = ", ".join(seat.facts.label for seat in seats)
        return f"{who}: on several NUMA nodes ({_listed(nodes)})"
    return ""


def _elsewhere(cells: Cells, node: int) -> str:
    if cells.chosen is None:
        room = _listed(cells.roomy)
        return (
            f"on NUMA node {node}, which has no room for the guest"
            f" (room on: {room or 'none'})"
        )
    return f"on NUMA node {node}, the guest on {_listed(cells.chosen)}"


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(str(node) for node in sorted(nodes))
