# SPDX-License-Identifier: Apache-2.0
"""Shape of devices: root ports, root complexes, NUMA nodes they share.

A guest that sees the PCIe of its host keeps its tree in a live migration, so
candidates with the shape of the server's devices are preferred. The
destination compares the trees themselves: traits show no switch below a root
port, and no profile of a slot.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from filters.fit import provider_facts
from nova_accel.geometry import topology
from nova_accel.model import names

# Units by class of each device, below ports, root complexes and NUMA nodes.
Shape = tuple[Any, ...]
# Traits of a device, and its units by class.
Device = tuple[frozenset[str], Mapping[str, int]]


def build(devices: Iterable[Device]) -> Shape:
    """Return the shape of devices; their order has no effect."""
    nodes: dict[str, dict[str, dict[str, list[Shape]]]] = {}
    for traits, units in devices:
        port = _join(traits, names.PCIE_PREFIX)
        # The bus of a root port is that of its root complex.
        root_complex = "_".join(port.split("_")[:2])
        nodes.setdefault(_join(traits, names.NUMA_PREFIX), {}).setdefault(
            root_complex, {}
        ).setdefault(port, []).append(
            tuple(
                sorted(u for u in units.items() if u[0] not in names.MEASURES)
            )
        )
    return tuple(
        sorted(
            tuple(
                sorted(
                    tuple(
                        sorted(
                            tuple(sorted(units)) for units in ports.values()
                        )
                    )
                    for ports in complexes.values()
                )
            )
            for complexes in nodes.values()
        )
    )


def of_candidate(
    candidate: provider_facts.Candidate,
    facts: provider_facts.Facts,
    classes: frozenset[str],
) -> Shape:
    """Return the shape of the known accelerators of a candidate."""
    return build(
        (
            facts[uuid].traits,
            {n: u for n, u in allocation["resources"].items() if n in classes},
        )
        for uuid, allocation in candidate["allocations"].items()
        if uuid in facts and not classes.isdisjoint(allocation["resources"])
    )


def _join(traits: Iterable[str], prefix: str) -> str:
    return " ".join(sorted(topology.trait_values(traits, prefix)))
