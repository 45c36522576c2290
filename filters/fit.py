# SPDX-License-Identifier: Apache-2.0
"""Which allocation candidates fit, and in what order to try them."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from filters import cards, numa, offered, places
from filters import request as wanted
from nova_accel import flavors, names

# What speaks against candidates, in words, by who and what it is about: a
# provider's uuid and a resource class, for example.
Lacks = Mapping[tuple[str, str], str]

_HEALTH = "health"
_GEOMETRY = "geometry"
_NUMA = "NUMA"
ILL = {
    names.DRAINED_TRAIT: "drained by its operator",
    names.FAULTED_TRAIT: "at fault",
    names.MISSING_TRAIT: "missing on its host",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a host's candidates are judged by.

    ``cards`` reckons with what cards hold; ``cells`` are the host's.
    """

    facts: offered.Facts
    cards: cards.Cards
    cells: numa.Cells = numa.UNTOLD


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a candidate fits, and what it lacks if it does not."""

    ok: bool
    reason: str = ""


FITS = Verdict(ok=True)


def check(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Verdict:
    """Return whether a candidate fits what its providers have left.

    Only accelerators are looked at. Of how full and how well they are only
    exact facts can refuse, of where they are any: what is not known fits.
    """
    found = _lacks(request, candidate, view)
    if not found:
        return FITS
    return Verdict(ok=False, reason="; ".join(found.values()))


def doubts(
    request: wanted.AcceleratorRequest,
    candidates: Iterable[offered.Candidate],
    view: View,
) -> frozenset[str]:
    """Return the providers whose facts would refuse, were they exact.

    Who reads them anew knows.
    """
    loose = {
        uuid: dataclasses.replace(facts, exact=True)
        for uuid, facts in view.facts.items()
        if not facts.exact
    }
    sure = dataclasses.replace(view, facts=loose)
    return frozenset(
        uuid
        for candidate in candidates
        for uuid, _ in {
            **_illness(request, candidate, sure),
            **_crowding(request, candidate, sure),
        }
    )


def fitting(
    request: wanted.AcceleratorRequest,
    candidates: Sequence[offered.Candidate],
    view: View,
) -> tuple[list[offered.Candidate], Lacks]:
    """Return the candidates that fit, in order, and what the others lack.

    What speaks against several candidates is named once.
    """
    fits = []
    lacks: dict[tuple[str, str], str] = {}
    for candidate in candidates:
        found = _lacks(request, candidate, view)
        lacks.update(found)
        if not found:
            fits.append(candidate)
    return order(request, fits, view), lacks


def order(
    request: wanted.AcceleratorRequest,
    candidates: Sequence[offered.Candidate],
    view: View,
) -> list[offered.Candidate]:
    """Return the candidates, the one to try first in front.

    Devices where the guest will run come first, and those that hold what
    it wants; then the flavor's packing decides. Equals go by how full
    they are, and then by the providers' uuids. Candidates on providers of
    which nothing is known keep their order, at the end.
    """
    if len(candidates) == 1:
        return list(candidates)
    return sorted(candidates, key=lambda c: _rank(request, c, view))


# -- what speaks against a candidate ----------------------------------------


def _lacks(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Lacks:
    return {
        **_shortage(request, candidate, view),
        **_illness(request, candidate, view),
        **_crowding(request, candidate, view),
        **_distance(request, candidate, view),
    }


def _taken(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    facts: offered.Facts,
) -> Iterator[tuple[offered.ProviderFacts, dict[str, int]]]:
    """Yield the known accelerators of a candidate, and what it takes."""
    for uuid, allocation in candidate["allocations"].items():
        needed = {
            name: amount
            for name, amount in sorted(allocation["resources"].items())
            if name in request.classes
        }
        if needed and uuid in facts:
            yield facts[uuid], needed


def _shortage(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Lacks:
    return {
        (facts.uuid, name): (
            f"{facts.label}: {name} {stock.left} left of"
            f" {stock.capacity}, {amount} needed{_blame(facts)}"
        )
        for facts, needed in _taken(request, candidate, view.facts)
        if facts.exact
        for name, amount in needed.items()
        if (stock := facts.stock.get(name)) and amount > stock.left
    }


def _blame(facts: offered.ProviderFacts) -> str:
    takers = ", ".join(facts.taken_by)
    return f" (taken by server {takers} of the same request)" if takers else ""


def _illness(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Lacks:
    return {
        (facts.uuid, _HEALTH): f"{facts.label}: {words}"
        for facts, _ in _taken(request, candidate, view.facts)
        if facts.exact
        for trait, words in ILL.items()
        if trait in facts.traits
    }


def _crowding(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Lacks:
    """Return where types do not fit beside what the card holds."""
    found = {}
    for facts, gpu, more in _cut(request, candidate, view):
        shape = view.cards.shape(facts, gpu) if facts.exact else None
        if shape is not None and not view.cards.has_room(shape, more):
            names_of = ", ".join(f"{n} {name}" for name, n in more)
            found[facts.uuid, _GEOMETRY] = (
                f"{facts.label}: {names_of} has no place beside"
                f" {cards.described(shape)}{_blame(facts)}"
            )
    return found


def _distance(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Lacks:
    """Return what is wrong with where devices are."""
    seats = _seats(request, candidate, view.facts)
    placing, found = request.placing, {}
    if placing.numa is flavors.NumaPolicy.REQUIRED:
        found[_NUMA] = numa.objection(view.cells, seats)
    found[placing.locality.value] = places.objection(placing.locality, seats)
    return {(words, what): words for what, words in found.items() if words}


def _seats(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    facts: offered.Facts,
) -> tuple[places.Seat, ...]:
    return tuple(
        places.Seat(
            facts=one,
            units=max(
                (n for c, n in needed.items() if c not in names.MEASURES),
                default=1,
            ),
        )
        for one, needed in _taken(request, candidate, facts)
    )


def _cut(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> Iterator[tuple[offered.ProviderFacts, str, cards.More]]:
    """Yield which vGPU types a candidate cuts from which known card."""
    found: dict[tuple[str, str], dict[str, int]] = collections.defaultdict(
        dict
    )
    for group in request.groups:
        kind = view.cards.wanted(group)
        providers = candidate.get("mappings", {}).get(group.suffix, ())
        count = group.resources.get(names.GPU_CLASS, 0)
        if kind is None or len(providers) != 1 or not count:
            continue
        more = found[providers[0], kind.gpu]
        more[kind.name] = more.get(kind.name, 0) + count
    for (uuid, gpu), types in found.items():
        if uuid in view.facts:
            yield view.facts[uuid], gpu, tuple(sorted(types.items()))


# -- which one first --------------------------------------------------------

_Rank = tuple[bool, bool, int, cards.Loss, Fraction, tuple[str, ...]]
_LAST: _Rank = (True, True, 0, (), Fraction(0), ())


def _rank(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> _Rank:
    """Return the sort key: unknown, afar, lacking, loss, room left, who."""
    asked = [
        uuid
        for uuid, allocation in candidate["allocations"].items()
        if request.classes & allocation["resources"].keys()
    ]
    taken = list(_taken(request, candidate, view.facts))
    if len(taken) < len(asked) or not all(
        needed.keys() <= facts.stock.keys() for facts, needed in taken
    ):
        return _LAST
    packing = request.placing.packing
    room = sum(
        (_room(facts, needed) for facts, needed in taken), Fraction(0)
    )
    return (
        False,
        _is_afar(request, candidate, view),
        _lacking(request, candidate, view.facts),
        _loss(request, candidate, view)
        if packing is flavors.Packing.BEST_REMAINING
        else (),
        -room if packing is flavors.Packing.SPREAD else room,
        (*sorted(asked), *_mapped(candidate)),
    )


def _mapped(candidate: offered.Candidate) -> Iterator[str]:
    """Yield who serves each group: two may serve two crosswise."""
    for _, providers in sorted(candidate.get("mappings", {}).items()):
        yield from sorted(providers)


def _lacking(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    facts: offered.Facts,
) -> int:
    """Return how many devices are not what their group would prefer."""
    mappings = candidate.get("mappings", {})
    return sum(
        uuid not in facts or trait not in facts[uuid].traits
        for suffix, trait in request.preferred.items()
        for uuid in mappings.get(suffix, ())
    )


def _is_afar(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> bool:
    if request.placing.numa is flavors.NumaPolicy.NONE:
        return False
    seats = _seats(request, candidate, view.facts)
    return bool(numa.objection(view.cells, seats))


def _loss(
    request: wanted.AcceleratorRequest,
    candidate: offered.Candidate,
    view: View,
) -> cards.Loss:
    """Return what all cards of a candidate could make less of.

    A card of which that can't be told loses nothing.
    """
    found: collections.Counter[int] = collections.Counter()
    for facts, gpu, more in _cut(request, candidate, view):
        shape = view.cards.shape(facts, gpu)
        lost = view.cards.loss(shape, more) if shape else None
        found.update(dict(lost or ()))
    return tuple(sorted(found.items(), reverse=True))


def _room(
    facts: offered.ProviderFacts, needed: Mapping[str, int]
) -> Fraction:
    """Return what part of the scarcest class stays free afterwards."""
    return min(
        Fraction(
            facts.stock[name].left - amount,
            max(1, facts.stock[name].capacity),
        )
        for name, amount in needed.items()
    )
