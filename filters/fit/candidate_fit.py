# SPDX-License-Identifier: Apache-2.0
"""Selection and order of the allocation candidates that fit."""

import collections
import dataclasses
import enum
import functools
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from fractions import Fraction

from filters import provider_facts
from filters import request as wanted
from filters.fit import candidate_locality, numa, vgpu_geometry
from nova_accel.model import flavors, names

# What speaks against candidates, in words, by who and what it is about: a
# provider's uuid and a resource class, for example.
Lacks = Mapping[tuple[str, str], str]
# Tells the cells that a guest gets with a candidate.
CellsOf = Callable[[provider_facts.Candidate], numa.Cells]

_HEALTH = "health"
_GEOMETRY = "geometry"
_NUMA = "NUMA"
ILL = {
    names.DRAINED_TRAIT: "drained by its operator",
    names.FAULTED_TRAIT: "at fault",
    names.MISSING_TRAIT: "missing on its host",
    names.UNKNOWN_TRAIT: "its host can't read its fault and drain marks",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host's candidates are judged by.

    ``cards`` reckons with what cards hold; ``cells`` are the host's, unless
    ``cells_of`` tells those of each candidate.
    """

    facts: provider_facts.Facts
    cards: vgpu_geometry.VgpuGeometry
    cells: numa.Cells = numa.UNTOLD
    cells_of: CellsOf | None = None


def doubts(
    request: wanted.AcceleratorRequest,
    hosts: Iterable[Sequence[provider_facts.Candidate]],
    view: HostFacts,
) -> frozenset[str]:
    """Return the providers to read anew: their facts speak against them.

    A shortage counts only where a host has another candidate: it puts a
    candidate last, although Placement has just said that there is room.

    :param hosts: the allocation candidates of each host.
    """
    return frozenset(
        uuid
        for candidates in hosts
        for choice in _choices(request, candidates, view)
        for uuid, _ in {
            **_illness(choice, is_exact=False),
            **_crowding(choice, is_exact=False),
            **(
                _shortage(choice, is_exact=False)
                if len(candidates) > 1
                else {}
            ),
        }
    )


def fitting(
    request: wanted.AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    view: HostFacts,
) -> tuple[list[provider_facts.Candidate], Lacks]:
    """Return the candidates that fit, in order, and what the others lack.

    Only accelerators are looked at. Of how full and how well they are only
    exact facts can refuse, of where they are any: what is not known fits.
    What speaks against several candidates is named once.
    """
    fits = []
    lacks: dict[tuple[str, str], str] = {}
    for choice in _choices(request, candidates, view):
        found = _lacks(choice)
        lacks.update(found)
        if not found:
            fits.append(choice)
    return _ordered(fits), lacks


def order(
    request: wanted.AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    view: HostFacts,
) -> list[provider_facts.Candidate]:
    """Return the candidates, the one to try first in front.

    Devices where the guest will run come first, and those that hold what
    it wants; then the flavor's packing decides. Equals go by how full
    they are, and then by the providers' uuids. Candidates on providers of
    which nothing is known keep their order, behind these. Candidates whose
    claim will probably fail come last: a card was read as full, at fault
    or without a place, and the reading is not exact.
    """
    return _ordered(list(_choices(request, candidates, view)))


# -- a candidate ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _VgpuRequest:
    """The vGPU types that a candidate cuts from a card.

    ``shape`` is None where what stands on the card is not known.
    """

    facts: provider_facts.ProviderFacts
    shape: vgpu_geometry.CardShape | None
    more: vgpu_geometry.More


class _RankedCandidate:
    """A candidate, and what is known of the accelerators it takes from."""

    def __init__(
        self,
        request: wanted.AcceleratorRequest,
        candidate: provider_facts.Candidate,
        view: HostFacts,
    ) -> None:
        classes = request.classes
        self.request = request
        self.candidate = candidate
        self.view = view
        # Who serves each group, by suffix.
        self.mappings: Mapping[str, Sequence[str]] = candidate.get(
            "mappings", {}
        )
        # What it takes of each accelerator, by uuid.
        self.asked: dict[str, dict[str, int]] = {}
        for uuid, allocation in candidate["allocations"].items():
            needed = {
                name: amount
                for name, amount in sorted(allocation["resources"].items())
                if name in classes
            }
            if needed:
                self.asked[uuid] = needed
        self.taken = [
            (view.facts[uuid], needed)
            for uuid, needed in self.asked.items()
            if uuid in view.facts
        ]

    @functools.cached_property
    def seats(self) -> tuple[candidate_locality.CandidateDevice, ...]:
        """Return the known accelerators, each with its number of parts."""
        return tuple(
            candidate_locality.CandidateDevice(
                facts=facts,
                units=max(
                    (n for c, n in needed.items() if c not in names.MEASURES),
                    default=1,
                ),
            )
            for facts, needed in self.taken
        )

    @functools.cached_property
    def afar(self) -> str:
        """Return why devices are not where the guest will run, if so."""
        tell = self.view.cells_of
        cells = tell(self.candidate) if tell else self.view.cells
        return numa.objection(cells, self.seats)

    @functools.cached_property
    def cuts(self) -> list[_VgpuRequest]:
        """Return what vGPU types are cut from which known card."""
        found: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for group in sorted(self.request.groups, key=lambda g: g.suffix):
            kind = self.view.cards.wanted(group)
            providers = self.mappings.get(group.suffix, ())
            count = group.resources.get(names.GPU_CLASS, 0)
            if kind is None or len(providers) != 1 or not count:
                continue
            more = found.setdefault((providers[0], kind.gpu), [])
            more.append((kind.name, count))
        facts = self.view.facts
        return [
            _VgpuRequest(
                facts=facts[uuid],
                shape=self.view.cards.shape(
                    facts[uuid],
                    gpu,
                    self.view.cards.siblings(
                        self.request.groups, facts[uuid].shares
                    ),
                ),
                more=tuple(types),
            )
            for (uuid, gpu), types in found.items()
            if uuid in facts
        ]


def _choices(
    request: wanted.AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    view: HostFacts,
) -> Iterator[_RankedCandidate]:
    for candidate in candidates:
        yield _RankedCandidate(request, candidate, view)


# -- what speaks against a candidate ----------------------------------------


def _lacks(choice: _RankedCandidate) -> Lacks:
    return {
        **_shortage(choice),
        **_illness(choice),
        **_crowding(choice),
        **_distance(choice),
    }


def _shortage(choice: _RankedCandidate, is_exact: bool = True) -> Lacks:
    return {
        (facts.uuid, name): (
            f"{facts.label}: {name} {stock.left} left of"
            f" {stock.capacity}, {amount} needed{_blame(facts)}"
        )
        for facts, needed in choice.taken
        if facts.exact is is_exact
        for name, amount in needed.items()
        if (stock := facts.stock.get(name)) and amount > stock.left
    }


def _blame(facts: provider_facts.ProviderFacts) -> str:
    takers = ", ".join(facts.taken_by)
    return f" (taken by server {takers} of the same request)" if takers else ""


def _illness(choice: _RankedCandidate, is_exact: bool = True) -> Lacks:
    return {
        (facts.uuid, _HEALTH): f"{facts.label}: {words}"
        for facts, _ in choice.taken
        if facts.exact is is_exact
        for trait, words in ILL.items()
        if trait in facts.traits
    }


def _crowding(choice: _RankedCandidate, is_exact: bool = True) -> Lacks:
    """Return where types do not fit beside what the card holds."""
    found = {}
    for cut in choice.cuts:
        if cut.shape is None or cut.facts.exact is not is_exact:
            continue
        if not choice.view.cards.has_room(cut.shape, cut.more):
            counts: collections.Counter[str] = collections.Counter()
            for name, count in cut.more:
                counts[name] += count
            names_of = ", ".join(
                f"{n} {name}" for name, n in sorted(counts.items())
            )
            found[cut.facts.uuid, _GEOMETRY] = (
                f"{cut.facts.label}: {names_of} has no place beside"
                f" {vgpu_geometry.described(cut.shape)}{_blame(cut.facts)}"
            )
    return found


def _distance(choice: _RankedCandidate) -> Lacks:
    """Return what is wrong with where devices are."""
    placing, found = choice.request.placing, {}
    if placing.numa is flavors.NumaPolicy.REQUIRED:
        found[_NUMA] = choice.afar
    found[placing.locality.value] = candidate_locality.objection(
        placing.locality, choice.seats
    )
    return {(words, what): words for what, words in found.items() if words}


# -- which one first --------------------------------------------------------


class _Prospect(enum.IntEnum):
    """Whether a claim of a candidate is expected to succeed."""

    LIKELY = 0
    UNKNOWN = 1
    UNLIKELY = 2


_Rank = tuple[
    _Prospect, bool, int, vgpu_geometry.Loss, Fraction, tuple[str, ...]
]


def _ordered(
    choices: list[_RankedCandidate],
) -> list[provider_facts.Candidate]:
    if len(choices) > 1:
        choices.sort(key=_rank)
    return [choice.candidate for choice in choices]


def _rank(choice: _RankedCandidate) -> _Rank:
    """Return the sort key: prospect, afar, lacking, loss, room left, uuids.

    Nova claims the first candidate only, and gives the host up if that
    claim fails.
    """
    prospect = _prospect(choice)
    if not _is_known(choice):
        return prospect, True, 0, (), Fraction(0), ()
    placing = choice.request.placing
    is_best = placing.packing is flavors.Packing.BEST_REMAINING
    room = sum(
        (_room(facts, needed) for facts, needed in choice.taken), Fraction(0)
    )
    return (
        prospect,
        placing.numa is not flavors.NumaPolicy.NONE and bool(choice.afar),
        _lacking(choice),
        _loss(choice) if is_best else (),
        -room if placing.packing is flavors.Packing.SPREAD else room,
        (*sorted(choice.asked), *_mapped(choice)),
    )


def _prospect(choice: _RankedCandidate) -> _Prospect:
    """Return what facts say of a claim, those too that are not exact."""
    if (
        _shortage(choice, is_exact=False)
        or _illness(choice, is_exact=False)
        or _crowding(choice, is_exact=False)
    ):
        return _Prospect.UNLIKELY
    return _Prospect.LIKELY if _is_known(choice) else _Prospect.UNKNOWN


def _is_known(choice: _RankedCandidate) -> bool:
    """Return whether the stock of all that a candidate takes is known."""
    return len(choice.taken) == len(choice.asked) and all(
        needed.keys() <= facts.stock.keys() for facts, needed in choice.taken
    )


def _mapped(choice: _RankedCandidate) -> Iterator[str]:
    """Yield who serves each group: two may serve two crosswise."""
    for _, providers in sorted(choice.mappings.items()):
        yield from sorted(providers)


def _lacking(choice: _RankedCandidate) -> int:
    """Return how many devices are not what their group would prefer."""
    facts = choice.view.facts
    return sum(
        uuid not in facts or trait not in facts[uuid].traits
        for suffix, trait in choice.request.preferred.items()
        for uuid in choice.mappings.get(suffix, ())
    )


def _loss(choice: _RankedCandidate) -> vgpu_geometry.Loss:
    """Return what all cards of a candidate could make less of.

    A card of which that can't be told loses nothing.
    """
    found: collections.Counter[int] = collections.Counter()
    for cut in choice.cuts:
        if cut.shape is not None:
            lost = choice.view.cards.loss(cut.shape, cut.more)
            found.update(dict(lost or ()))
    return tuple(sorted(found.items(), reverse=True))


def _room(
    facts: provider_facts.ProviderFacts, needed: Mapping[str, int]
) -> Fraction:
    """Return what part of the scarcest class stays free afterwards."""
    return min(
        Fraction(
            facts.stock[name].left - amount,
            max(1, facts.stock[name].capacity),
        )
        for name, amount in needed.items()
    )
