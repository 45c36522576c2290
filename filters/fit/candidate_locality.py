# SPDX-License-Identifier: Apache-2.0
"""NVLink and PCIe affinity of a candidate's devices."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from filters import provider_facts
from nova_accel.geometry import topology
from nova_accel.model import flavors, names

_REGION = re.compile(r"_region_[0-9]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDevice:
    """A device that a candidate takes from, and how many parts of it."""

    facts: provider_facts.ProviderFacts
    units: int = 1

    @property
    def card(self) -> str:
        """Return what tells the physical card: of a region its whole's."""
        name = self.facts.name
        return _REGION.sub("", name) if name else self.facts.uuid

    @property
    def address(self) -> str:
        """Return the card's address, empty where no name was read."""
        if not self.facts.name:
            return ""
        return self.card.rpartition(names.PROVIDER_MARK)[2]

    @property
    def traits(self) -> frozenset[str]:
        """Return the provider's traits."""
        return self.facts.traits

    @property
    def nodes(self) -> frozenset[str]:
        """Return the NUMA nodes that it is said to be on: one, or none."""
        return topology.told(self.traits, names.NUMA_PREFIX)


def objection(
    wanted: flavors.Locality, seats: Sequence[CandidateDevice]
) -> str:
    """Return what speaks against taking these devices together.

    Empty if nothing does. A device of which too little is known to tell
    is no objection.
    """
    if wanted is flavors.Locality.ANY:
        return ""
    if wanted is flavors.Locality.DIFFERENT_CARD:
        for seat in seats:
            if seat.units > 1:
                return f"{seat.facts.label}: {seat.units} of one card"
    # In one order whoever serves which group, so that a pair is told once.
    in_order = sorted(seats, key=lambda seat: seat.facts.label)
    for one, two in itertools.combinations(in_order, 2):
        found = topology.between(wanted, one, two)
        if found:
            return f"{one.facts.label} and {two.facts.label}: {found}"
    return ""
