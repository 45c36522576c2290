# SPDX-License-Identifier: Apache-2.0
"""Scores of hosts for a request: numbers from 0 to 1."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from filters import provider_facts, request
from nova_accel.model import names


def held(
    wanted: request.AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    cards: Iterable[provider_facts.ProviderFacts],
    traits: frozenset[str],
) -> Fraction:
    """Return what part of the traits the best candidate's cards have.

    :param candidates: of one host.
    :param cards: that host's.
    """
    known = {card.uuid: card.traits for card in cards}
    classes = wanted.classes
    best = 0
    for candidate in candidates:
        found = traits.intersection(
            trait
            for uuid in provider_facts.named(classes, (candidate,))
            for trait in known.get(uuid, ())
        )
        best = max(best, len(found))
    return Fraction(best, max(1, len(traits)))


def fullness(
    wanted: request.AcceleratorRequest,
    cards: Iterable[provider_facts.ProviderFacts],
    uuids: Collection[str],
    more: int = 0,
) -> Fraction | None:
    """Return how full a host's cards of the wanted kind are.

    Of all of them together, by the class that is used most. A full card
    counts, although it may offer no profile now; one set aside, with
    nothing to allocate, does not. None if there is none.

    :param uuids: cards that could serve the request; those of the same
        models are of its kind.
    :param more: how many servers like this one were placed here after the
        cards were read.
    """
    known = tuple(cards)
    models = frozenset(
        model for c in known if c.uuid in uuids for model in _models(c)
    )
    kind = [c for c in known if c.uuid in uuids or models & _models(c)]
    needed = _needed(wanted)
    used = [
        Fraction(
            sum(stock.used for stock in stocks) + more * needed[name],
            sum(stock.capacity for stock in stocks),
        )
        for name, stocks in _stocks(kind, needed).items()
    ]
    return min(Fraction(1), max(used)) if used else None


def _models(card: provider_facts.ProviderFacts) -> frozenset[str]:
    return frozenset(
        t for t in card.traits if t.startswith(names.MODEL_PREFIX)
    )


def _needed(wanted: request.AcceleratorRequest) -> dict[str, int]:
    needed = dict.fromkeys(wanted.classes, 0)
    for group in wanted.groups:
        for name, amount in group.resources.items():
            needed[name] += amount
    return needed


def _stocks(
    cards: Sequence[provider_facts.ProviderFacts], needed: Mapping[str, int]
) -> dict[str, list[provider_facts.ClassCapacity]]:
    found: dict[str, list[provider_facts.ClassCapacity]] = {}
    for card in cards:
        for name, stock in card.stock.items():
            if name in needed and stock.capacity > 0:
                found.setdefault(name, []).append(stock)
    return found
