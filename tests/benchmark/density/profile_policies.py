# SPDX-License-Identifier: Apache-2.0
"""Choices of a card for a profile: the library's, and those of papers.

The policies of papers are written from their texts:

- best fit: the fullest card with room;
- MFI (Zambianco et al., 2025, arXiv 2511.18906): the card and the place that
  add least fragmentation. That of a card is the sum over the profiles that
  its free units could hold, and over their places that partitions overlap,
  of the profile's units;
- GRMU (Siavashi and Momtazpour, 2025, arXiv 2502.01909): profiles that take
  a whole card, and the others, have baskets of cards, each with a limit, here
  its part of the requests; the first card of the basket with room.

``best_remaining`` is the library's own code: ``candidate_fit`` chooses the
card of each host, ``usable_share`` the host.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from filters import request
from filters.fit import candidate_fit, provider_facts, request_mix
from nova_accel.geometry.scheduling import usable_share
from nova_accel.model import providers
from tests.benchmark.density import profile_cards
from tests.benchmark.density.profile_cards import CardModel, State
from tests.support.scheduler import scheduled

# Cards of one host.
CARDS = 4


class Place(NamedTuple):
    """A card by number, and the first unit of a partition on it."""

    card: int
    start: int


class Policy(Protocol):
    """Chooses a place; ``count`` is called once for each request."""

    def count(self, name: str) -> None:
        """Count a request for a profile."""

    def choose(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> Place | None:
        """Return a place on a card that is not excluded, None without."""


class BestFit:
    """The fullest card with room."""

    def __init__(self, model: CardModel, mix: Mapping[str, float]) -> None:
        self._model = model
        self._mix = mix

    def count(self, name: str) -> None:
        """Requests of the past do not matter."""

    def list_allowed(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> list[int]:
        """Return the cards with room, in order."""
        return [
            number
            for number, state in enumerate(cards)
            if number not in excluded
            and self._model.choose_start(state, name) is not None
        ]

    def choose(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> Place | None:
        """Return the place that the host chooses on the fullest card."""
        allowed = self.list_allowed(name, cards, excluded)
        if not allowed:
            return None
        fullness = self._model.sum_shares
        return self.place(
            name, cards, max(allowed, key=lambda n: (fullness(cards[n]), -n))
        )

    def place(self, name: str, cards: Sequence[State], number: int) -> Place:
        """Return the host's own place on a card with room."""
        start = self._model.choose_start(cards[number], name)
        assert start is not None
        return Place(number, start)


class Grmu(BestFit):
    """The first card of the basket with room."""

    def choose(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> Place | None:
        """Return the first place in the basket of the profile."""
        allowed = self.list_allowed(name, cards, excluded)
        return self.place(name, cards, allowed[0]) if allowed else None

    def list_allowed(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> list[int]:
        """Return the cards with room of a profile's basket."""
        is_heavy = self._model.is_whole(name)
        used = [
            number
            for number, state in enumerate(cards)
            if state and self._model.is_whole(state[0][0]) is is_heavy
        ]
        limit = self._heavy_limit(len(cards))
        has_more = len(used) < (limit if is_heavy else len(cards) - limit)
        return [
            number
            for number in super().list_allowed(name, cards, excluded)
            if (number in used if cards[number] else has_more)
        ]

    def _heavy_limit(self, cards: int) -> int:
        heavy = sum(
            part
            for name, part in self._mix.items()
            if self._model.is_whole(name)
        )
        return round(cards * heavy)


class Mfi(BestFit):
    """The place that adds least fragmentation."""

    def __init__(self, model: CardModel, mix: Mapping[str, float]) -> None:
        super().__init__(model, mix)
        self._measure = functools.lru_cache(1 << 16)(self._compute)
        self._best = functools.lru_cache(1 << 16)(self._find_best)

    def choose(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> Place | None:
        """Return the place with the least increment on all cards."""
        options = [
            (*best, number)
            for number, state in enumerate(cards)
            if number not in excluded and (best := self._best(state, name))
        ]
        if not options:
            return None
        _, start, number = min(options, key=lambda each: (each[0], each[2]))
        return Place(number, start)

    def _find_best(self, state: State, name: str) -> tuple[int, int] | None:
        """Return the least increment of a card, and its place."""
        before = self._measure(state)
        return min(
            (
                (
                    self._measure(add(state, name, start)) - before,
                    start,
                )
                for start in self._model.list_starts(state, name)
            ),
            default=None,
        )

    def _compute(self, state: State) -> int:
        taken = self._model.list_taken(state)
        free = self._model.region - len(taken)
        return sum(
            profile.size
            for profile in self._model.profiles.values()
            if profile.size <= free
            for start in profile.starts
            if not taken.isdisjoint(range(start, start + profile.size))
        )


class BestRemaining:
    """The library's choice among hosts of four cards each."""

    def __init__(self, model: CardModel, mix: Mapping[str, float]) -> None:
        self._model = model
        self._mix = request_mix.RequestMix()
        self._shares = usable_share.UsableShares(
            scheduled.GEOMETRY, self._mix.list_usual
        )
        self._requests = {
            name: scheduled.asks(name) for name in model.profiles
        }
        self._usual: usable_share.Usual = ()
        self._measured = self._shares.measure()
        # Of vGPUs the ranks do not depend on the usual requests.
        self._ranks: dict[tuple[object, ...], Any] = {}
        self._chosen: dict[object, tuple[usable_share.HostLoss, int] | None]
        self._chosen = {}
        self._build_card = functools.cache(self._name_card)

    def count(self, name: str) -> None:
        """Count a request as the filter does."""
        groups = self._requests[name].groups
        self._mix.add(usable_share.build_shape(0, 0, groups))
        usual = self._mix.list_usual()
        if usual is not self._usual:
            self._usual = usual
            self._measured = self._shares.measure()
            self._chosen.clear()

    def choose(
        self, name: str, cards: Sequence[State], excluded: Collection[int]
    ) -> Place | None:
        """Return the first candidate of the host with the least loss."""
        options = []
        for first in range(0, len(cards), CARDS):
            host = tuple(cards[first : first + CARDS])
            omitted = tuple(
                n - first for n in excluded if 0 <= n - first < CARDS
            )
            key = name, host, omitted
            if key not in self._chosen:
                self._chosen[key] = self._choose_card(name, host, omitted)
            if (best := self._chosen[key]) is not None:
                options.append((best[0], first + best[1]))
        if not options:
            return None
        _, number = min(options)
        start = self._model.choose_start(cards[number], name)
        assert start is not None
        return Place(number, start)

    def _choose_card(
        self, name: str, host: Sequence[State], omitted: Collection[int]
    ) -> tuple[usable_share.HostLoss, int] | None:
        """Return the loss of a host, and the card that it claims."""
        query = self._requests[name]
        cards = {
            f"card-{number}": self._build_card(number, state)
            for number, state in enumerate(host)
        }
        fitting = self._select(query, cards, omitted)
        if not fitting:
            return None
        (uuid,) = fitting[0]["mappings"]["_A"]
        loss = self._measured.compute(
            tuple(cards.values()),
            provider_facts.list_added(query.groups, fitting[0]),
        )
        return loss, list(cards).index(uuid)

    def _name_card(self, number: int, state: State) -> providers.Provider:
        return dataclasses.replace(
            self._model.build_facts(state), uuid=f"card-{number}"
        )

    def _select(
        self,
        query: request.AcceleratorRequest,
        cards: Mapping[str, providers.Provider],
        omitted: Collection[int],
    ) -> list[provider_facts.Candidate]:
        (group,) = query.groups
        uuids = [
            uuid
            for number, (uuid, card) in enumerate(cards.items())
            if number not in omitted
            and all(
                card.capacities[name].free >= amount
                for name, amount in group.resources.items()
            )
        ]
        fitting, _ = candidate_fit.select(
            query,
            scheduled.candidates(query, uuids),
            candidate_fit.HostFacts(
                facts=cards,
                geometry=scheduled.GEOMETRY,
                shares=self._shares,
                ranks=self._ranks,
            ),
        )
        return fitting


def add(state: State, name: str, start: int) -> State:
    """Return a card with one more partition."""
    return tuple(sorted((*state, (name, start))))


POLICIES: Mapping[str, type[BestFit] | type[BestRemaining]] = {
    "best fit": BestFit,
    "MFI": Mfi,
    "GRMU": Grmu,
    "best_remaining": BestRemaining,
}


def is_defined(policy: str, model: CardModel) -> bool:
    """Return whether a policy is: MFI measures places, if there are some."""
    return policy != "MFI" or model.layout is not profile_cards.EQUAL
