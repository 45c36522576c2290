# SPDX-License-Identifier: Apache-2.0
"""Distances between the NUMA nodes of a guest, as those of its host.

Nova writes none, and a guest takes 20 for each. libvirt keeps these over a
live migration, as the guest does until its next start.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from lxml import etree

from nova_accel import errors
from nova_accel.host.sysfs import fs, host_reader

_NODE = re.compile(r"node(\d+)")
# ACPI, "System Locality Distance Information Table"; 255 is no path.
_LOCAL, _LARGEST = 10, 254

#: Distance between two NUMA nodes.
Distances = Mapping[tuple[int, int], int]


def read(files: fs.Files) -> Distances:
    """Return the distances between the nodes of a host, as far as known.

    A file has one number for each node that is online
    (drivers/base/node.c, node_read_distance).
    """
    try:
        names = files.names(host_reader.NODES)
    except errors.UnreadableError:
        return {}
    nodes = sorted(int(m[1]) for n in names if (m := _NODE.fullmatch(n)))
    distances: dict[tuple[int, int], int] = {}
    for node in nodes:
        with contextlib.suppress(errors.UnreadableError, ValueError):
            text = files.text(f"{host_reader.NODES}/node{node}/distance")
            row = list(map(int, text.split()))
            if len(row) == len(nodes):
                distances |= {
                    (node, n): d for n, d in zip(nodes, row, strict=True)
                }
    return distances


def choose(cells: Mapping[int, int], host: Distances) -> Distances:
    """Return the distances between the cells of a guest.

    Empty if one is unknown, or none that a guest can have.

    :param cells: cells of the guest by nodes of the host.
    """
    chosen = {
        (cells[a], cells[b]): host.get((a, b), 0) for a in cells for b in cells
    }
    is_valid = len(cells) > 1 and all(
        distance == _LOCAL if a == b else _LOCAL < distance <= _LARGEST
        for (a, b), distance in chosen.items()
    )
    return chosen if is_valid else {}


def add(config: Any, cells: Mapping[int, int], host: Distances) -> None:
    """Add the distances of the host to the cells of a guest.

    Not if one of them is unknown.

    :param config: a ``LibvirtConfigGuest``.
    :param cells: see ``choose``.
    """
    numa = config.cpu.numa if config.cpu else None
    distances = choose(cells, host)
    if numa and {c.id for c in numa.cells} == {a for a, _ in distances}:
        numa.cells = [_DistantCell(cell, distances) for cell in numa.cells]


class _DistantCell:
    """Nova's cell with its distances to all cells."""

    def __init__(self, cell: Any, distances: Distances) -> None:
        self._cell, self._distances = cell, distances

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell, name)

    def format_dom(self) -> Any:
        element = self._cell.format_dom()
        distances = etree.SubElement(element, "distances")
        for (cell, other), distance in sorted(self._distances.items()):
            if cell == self.id:
                etree.SubElement(
                    distances, "sibling", id=str(other), value=str(distance)
                )
        return element
