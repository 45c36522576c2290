# SPDX-License-Identifier: Apache-2.0
"""NUMA affinity of devices and guests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from filters.fit.candidate_locality import CandidateDevice
from filters.fit.rejection import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """NUMA cells of a host, by id, as the scheduler knows them.

    ``present`` is empty if the host reports none. ``chosen`` are the cells
    that Nova will assign to a guest with a NUMA topology, None for a guest
    without one. Such a guest runs on any cell with enough room for all of
    it: ``spacious``.
    """

    present: frozenset[int] = frozenset()
    chosen: frozenset[int] | None = None
    spacious: frozenset[int] = frozenset()


UNKNOWN_CELLS = Cells()
_SEVERAL = 2


def find_rejection(
    cells: Cells, devices: Sequence[CandidateDevice]
) -> Rejection | None:
    """Return why devices are not on the guest's cells, None if they are.

    They are if the host has one cell or its cells are not known. With a
    NUMA topology each device must be on one of the cells chosen for the
    guest; without one all must be on one cell that has room for it.
    """
    if len(cells.present) < _SEVERAL:
        return None
    allowed = cells.spacious if cells.chosen is None else cells.chosen
    nodes: set[int] = set()
    for device in devices:
        if not device.facts.traits:
            continue  # The provider was not read.
        of_device = {int(node) for node in device.nodes if node.isdecimal()}
        if len(of_device) != 1:
            return Rejection(
                providers=(device.facts,), cause="its NUMA node is not known"
            )
        if not of_device <= allowed:
            return Rejection(
                providers=(device.facts,),
                cause=_describe_node(cells, *of_device),
            )
        nodes |= of_device
    if cells.chosen is None and len(nodes) > 1:
        return Rejection(
            providers=tuple(device.facts for device in devices),
            cause=f"on several NUMA nodes ({_join(nodes)})",
        )
    return None


def _describe_node(cells: Cells, node: int) -> str:
    if cells.chosen is None:
        room = _join(cells.spacious)
        return (
            f"on NUMA node {node}, which has no room for the guest"
            f" (room on: {room or 'none'})"
        )
    return f"on NUMA node {node}, the guest on {_join(cells.chosen)}"


def _join(nodes: Iterable[int]) -> str:
    return ", ".join(str(node) for node in sorted(nodes))
