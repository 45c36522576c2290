# SPDX-License-Identifier: Apache-2.0
"""Where the devices of a candidate stand, and how near to each other."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from filters import offered
from nova_accel import flavors, names

# Between a provider's name and its device's address.
_MARK = "_accel_"
_REGION = re.compile(r"_region_[0-9]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A device that a candidate takes from, and how many parts of it."""

    facts: offered.ProviderFacts
    units: int = 1

    @property
    def card(self) -> str:
        """Return what tells the physical card: of a region its whole's."""
        name = self.facts.name
        return _REGION.sub("", name) if name else self.facts.uuid

    @property
    def nodes(self) -> frozenset[str]:
        """Return the NUMA nodes that it is said to be on: one, or none."""
        return _said(self.facts, names.NUMA_PREFIX)


_Rule = Callable[[Sequence[Seat]], str]


def objection(locality: flavors.Locality, seats: Sequence[Seat]) -> str:
    """Return what speaks against taking these devices together.

    Empty if nothing does. A device of which too little is known to tell
    is no objection.
    """
    return _RULES[locality](seats)


def _nothing(seats: Sequence[Seat]) -> str:
    return ""


def _apart(seats: Sequence[Seat]) -> str:
    """Object to two parts of one card."""
    taken: dict[str, Seat] = {}
    for seat in seats:
        if seat.units > 1:
            return f"{seat.facts.label}: {seat.units} of one card"
        if seat.card in taken:
            return f"{_both(taken[seat.card], seat)}: one card"
        taken[seat.card] = seat
    return ""


def _linked(seats: Sequence[Seat]) -> str:
    """Object to two cards without an NVLink between them."""
    for one, two in itertools.combinations(seats, 2):
        if one.card == two.card or not (_is_told(one) and _is_told(two)):
            continue
        if not _is_linked(one, two) and not _is_linked(two, one):
            return f"{_both(one, two)}: no NVLink between them"
    return ""


def _is_told(seat: Seat) -> bool:
    return bool(seat.facts.name and seat.facts.traits)


def _is_linked(one: Seat, two: Seat) -> bool:
    address = two.card.rpartition(_MARK)[2]
    return names.nvlink_trait(address) in one.facts.traits


def _below_one_port(seats: Sequence[Seat]) -> str:
    return _alike(seats, names.PCIE_PREFIX, "PCIe root port")


def _on_one_node(seats: Sequence[Seat]) -> str:
    return _alike(seats, names.NUMA_PREFIX, "NUMA node")


def _alike(seats: Sequence[Seat], prefix: str, what: str) -> str:
    """Object to devices whose traits under a prefix differ."""
    for one, two in itertools.combinations(seats, 2):
        if one.card == two.card or not one.facts.traits:
            continue
        here, there = _said(one.facts, prefix), _said(two.facts, prefix)
        if here != there and two.facts.traits:
            return (
                f"{_both(one, two)}: {what}"
                f" {_told(here)} and {_told(there)}"
            )
    return ""


def _said(facts: offered.ProviderFacts, prefix: str) -> frozenset[str]:
    return frozenset(
        trait.removeprefix(prefix)
        for trait in facts.traits
        if trait.startswith(prefix)
    )


def _told(said: Iterable[str]) -> str:
    return ", ".join(sorted(said)) or "not known"


def _both(one: Seat, two: Seat) -> str:
    return f"{one.facts.label} and {two.facts.label}"


_RULES: Mapping[flavors.Locality, _Rule] = {
    flavors.Locality.ANY: _nothing,
    flavors.Locality.DIFFERENT_CARD: _apart,
    flavors.Locality.NVLINK: _linked,
    flavors.Locality.PCIE: _below_one_port,
    flavors.Locality.NUMA: _on_one_node,
}
