# SPDX-License-Identifier: Apache-2.0
"""Which allocation candidates still fit, and in what order to try them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from filters import request as wanted

# One of Nova's allocation candidates (Placement's "allocation_requests"
# from microversion 1.34): {"allocations": {provider uuid: {"resources":
# {class: amount}}}, "mappings": {suffix: [provider uuid]}}
Candidate = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a provider has of one class, in Placement's units.

    ``capacity`` is what may be allocated in all: (total - reserved) times
    allocation_ratio.
    """

    capacity: int
    used: int

    @property
    def left(self) -> int:
        """Return the units not allocated, never below 0."""
        return max(0, self.capacity - self.used)

    def __str__(self) -> str:
        """Return the stock in words: ``0 of 4 left``."""
        return f"{self.left} of {self.capacity} left"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """What is known of a resource provider.

    ``name`` is empty where it was not read. ``exact`` tells that the stock
    was read after the latest server of the same request took its share;
    only such facts may refuse. ``taken_by`` are those servers.
    """

    uuid: str
    stock: Mapping[str, Stock]
    name: str = ""
    traits: frozenset[str] = frozenset()
    exact: bool = False
    taken_by: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the name, or the uuid where no name was read."""
        return self.name or self.uuid


Facts = Mapping[str, ProviderFacts]
# What is short, in words, by provider's uuid and resource class.
Lacks = Mapping[tuple[str, str], str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a candidate fits, and what it lacks if it does not."""

    ok: bool
    reason: str = ""


FITS = Verdict(ok=True)


def check(
    request: wanted.AcceleratorRequest, candidate: Candidate, facts: Facts
) -> Verdict:
    """Return whether a candidate fits what its providers have left.

    Only accelerators' classes are looked at, and only providers whose
    facts are exact can refuse: what is not known fits.
    """
    shortages = _lacks(request, candidate, facts)
    if not shortages:
        return FITS
    return Verdict(ok=False, reason="; ".join(shortages.values()))


def _lacks(
    request: wanted.AcceleratorRequest, candidate: Candidate, facts: Facts
) -> Lacks:
    return {
        (uuid, name): shortage
        for uuid, allocation in candidate["allocations"].items()
        if uuid in facts and facts[uuid].exact
        for name, shortage in _shortages(
            request.classes, allocation["resources"], facts[uuid]
        )
    }


def _shortages(
    classes: frozenset[str], needed: Mapping[str, int], facts: ProviderFacts
) -> Iterable[tuple[str, str]]:
    takers = ", ".join(facts.taken_by)
    blame = (
        f" (taken by server {takers} of the same request)" if takers else ""
    )
    for name, amount in sorted(needed.items()):
        stock = facts.stock.get(name)
        if name in classes and stock is not None and amount > stock.left:
            yield name, (
                f"{facts.label}: {name} {stock.left} left of"
                f" {stock.capacity}, {amount} needed{blame}"
            )


def order(
    request: wanted.AcceleratorRequest,
    candidates: Sequence[Candidate],
    facts: Facts,
) -> list[Candidate]:
    """Return the candidates, the one to try first in front.

    The fullest devices come first, so that small requests leave whole
    devices free; equals go by the providers' uuids. Candidates on
    providers of which nothing is known keep their order, at the end.
    """
    classes = request.classes
    return sorted(candidates, key=lambda c: _rank(classes, c, facts))


def _rank(
    classes: frozenset[str], candidate: Candidate, facts: Facts
) -> tuple[bool, Fraction, tuple[str, ...]]:
    """Return the sort key: unknown, room left afterwards, who."""
    room = Fraction(0)
    who = []
    for uuid, allocation in candidate["allocations"].items():
        needed = {
            name: amount
            for name, amount in allocation["resources"].items()
            if name in classes
        }
        if not needed:
            continue
        known = facts.get(uuid)
        if known is None or not needed.keys() <= known.stock.keys():
            return True, Fraction(0), ()
        room += min(
            _room(known.stock[name], amount)
            for name, amount in needed.items()
        )
        who.append(uuid)
    return False, room, tuple(sorted(who))


def _room(stock: Stock, amount: int) -> Fraction:
    """Return what part of the stock stays free once amount is taken."""
    return Fraction(stock.left - amount, max(1, stock.capacity))


def fitting(
    request: wanted.AcceleratorRequest,
    candidates: Sequence[Candidate],
    facts: Facts,
) -> tuple[list[Candidate], Lacks]:
    """Return the candidates that fit, in order, and what the others lack.

    A shortage met in several candidates is named once.
    """
    fits = []
    lacks: dict[tuple[str, str], str] = {}
    for candidate in candidates:
        shortages = _lacks(request, candidate, facts)
        lacks.update(shortages)
        if not shortages:
            fits.append(candidate)
    return order(request, fits, facts), lacks
