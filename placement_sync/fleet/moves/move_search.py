# SPDX-License-Identifier: Apache-2.0
"""Search for the fewest moves after which a profile fits.

Iterative deepening: plans of one move, then of two, and so on. A branch ends
where its moves can't reach the goal even if each server found a place. So
the first plan has the fewest moves, unless the search was stopped before
it had tried all shorter ones.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from placement_sync.fleet.moves import (
    card_contents,
    movable_servers,
    move_state,
)

Contents = card_contents.Contents
KnownCard = card_contents.KnownCard
Server = movable_servers.MovableServer
State = move_state.MoveState
# How many more of a profile fit on a card after 0, 1, 2 ... removals.
_Gains = tuple[int, ...]
# Movable servers of a card, as numbers by profile.
_Movable = tuple[tuple[str, int], ...]

# More removals than any cloud has servers.
_NEVER = 1 << 30
# Servers that a dive tries in each state.
_DIVE_WIDTH = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Number of a profile that shall fit.

    ``profiles`` are its names by card, of the cards that offer it;
    ``elsewhere`` is how many fit on cards whose partitions are not known.
    """

    profiles: Mapping[str, str]
    count: int
    elsewhere: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Result of a search: the last state, None without a plan.

    ``is_complete`` is False if shorter plans were not all tried.
    """

    state: State | None
    is_complete: bool


class _StoppedError(Exception):
    """The search has taken too long."""


class MoveSearch:
    """Search among the moves of some servers.

    :param servers: those that can move.
    :param is_over: returns whether to stop; called for each state.
    """

    def __init__(
        self,
        begin: State,
        site: move_state.MoveSite,
        servers: Iterable[Server],
        is_over: Callable[[], bool],
    ) -> None:
        self._begin, self._site, self._is_over = begin, site, is_over
        self._servers: dict[str, list[Server]] = {}
        for server in sorted(servers, key=lambda s: (s.name, s.uuid)):
            self._servers.setdefault(server.card, []).append(server)
        # Cards with movable servers, the emptiest first.
        self.sources = sorted(
            (site.cards[uuid] for uuid in self._servers),
            key=lambda c: (len(c.holders), *_name_card(c)),
        )
        self._best_counts = functools.cache(_count_best)
        self._hosts = {
            root: tuple(
                (
                    card.row.device.traits,
                    tuple(s.terms for s in self._servers.get(card.uuid, ())),
                )
                for card in cards
            )
            for root, cards in site.cards_by_root.items()
        }

    def count(self, state: State, goal: Goal) -> int:
        """Return how many of the goal's profile fit."""
        return goal.elsewhere + sum(
            state.contents[uuid].counts.get(profile, 0)
            for uuid, profile in goal.profiles.items()
        )

    def find(self, goal: Goal, most: int) -> SearchResult:
        """Return the fewest moves that reach a goal.

        :param most: moves, at most.
        """
        for depth in range(most + 1):
            result = self.find_within(goal, depth)
            if result.state is not None or not result.is_complete:
                return result
        return SearchResult(state=None, is_complete=True)

    def find_within(self, goal: Goal, depth: int) -> SearchResult:
        """Return up to so many moves that reach a goal."""
        run = _Run(self._begin, goal, depth, self)
        try:
            state = run.descend(self._begin, depth)
        except _StoppedError:
            return SearchResult(state=None, is_complete=False)
        return SearchResult(state=state, is_complete=True)

    def dive(self, goal: Goal, most: int) -> State | None:
        """Return moves that reach a goal, not the fewest, None without any.

        Of each state only the few servers that get nearest to it are tried.
        """
        for depth in range(1, most + 1):
            run = _Run(self._begin, goal, depth, self, is_dive=True)
            state = run.descend(self._begin, depth)
            if state is not None:
                return state
        return None

    # -- for runs -------------------------------------------------------------

    def check_time(self) -> None:
        if self._is_over():
            raise _StoppedError

    def list_movable(self, state: State, card: str) -> list[Server]:
        """Return the servers of a card that have not moved."""
        moved = state.moved
        return [s for s in self._servers.get(card, ()) if s.uuid not in moved]

    def compute_gains(
        self,
        contents: Contents,
        servers: Iterable[Server],
        profile: str,
        most: int,
    ) -> _Gains:
        """Return how many more of a profile fit after up to so many moves.

        :param servers: those of the card that can move.
        """
        counts = collections.Counter(server.profile for server in servers)
        return self._best_counts(
            contents, profile, tuple(sorted(counts.items())), most
        )

    def list_targets(
        self, state: State, server: Server
    ) -> Iterator[KnownCard]:
        """Yield one of the targets that are alike, the fullest first."""
        seen = set()
        for target in sorted(
            state.list_targets(server),
            key=lambda card: (
                sum(state.contents[card.uuid].counts.values()),
                *_name_card(card),
            ),
        ):
            likeness = self._describe_target(state, target, server)
            if likeness not in seen:
                seen.add(likeness)
                yield target

    def _describe_target(
        self, state: State, target: KnownCard, server: Server
    ) -> object:
        """Return a value that targets share after which all is the same."""
        root = target.root
        if server.separated or root in state.touched_hosts:
            return target.uuid
        return (
            id(state.contents[target.uuid]),
            target.row.device.traits,
            self._hosts[root],
            state.describe(root),
        )


def _name_card(card: KnownCard) -> tuple[str, str]:
    return card.row.device.host, card.row.device.name


def _count_best(
    contents: Contents, profile: str, movable: _Movable, most: int
) -> _Gains:
    """Return the largest counts of a profile after 0 to ``most`` removals."""
    best = [contents.counts.get(profile, 0)]
    for number in range(1, most + 1):
        counts = [
            functools.reduce(Contents.remove, removed, contents).counts.get(
                profile, 0
            )
            for removed in _list_removals(movable, number)
        ]
        if not counts:
            break
        best.append(max(best[-1], *counts))
    return tuple(best)


def _list_removals(movable: _Movable, number: int) -> Iterator[list[str]]:
    """Yield the profiles of so many servers, each combination once."""
    profiles, most = [name for name, _ in movable], dict(movable)
    for names in itertools.combinations_with_replacement(profiles, number):
        if all(names.count(name) <= most[name] for name in set(names)):
            yield list(names)


class _Run:
    """Search of one depth."""

    def __init__(
        self,
        begin: State,
        goal: Goal,
        depth: int,
        search: MoveSearch,
        is_dive: bool = False,
    ) -> None:
        self._goal, self._depth = goal, depth
        self._search, self._is_dive = search, is_dive
        self._seen: set[object] = set()
        self._own = {
            uuid: search.compute_gains(
                begin.contents[uuid],
                search.list_movable(begin, uuid),
                profile,
                depth,
            )
            for uuid, profile in goal.profiles.items()
        }
        # Numbers of cards with equal gains.
        self._gains = collections.Counter(self._own.values())
        self._total = search.count(begin, goal)

    def descend(self, state: State, rest: int) -> State | None:
        """Return a state that reaches the goal with so many more moves."""
        if not self._is_dive:
            self._search.check_time()
        needed = self._count_needed(state, {})
        if needed == 0:
            return state
        if needed > rest or self._is_known(state):
            return None
        for server in self._list_servers(state, rest):
            for target in self._search.list_targets(state, server):
                reached = self.descend(state.move(server, target), rest - 1)
                if reached is not None:
                    return reached
                if self._is_dive:
                    break
        return None

    def _is_known(self, state: State) -> bool:
        """Return whether the same moves were tried in another order."""
        key = (
            frozenset(state.moves),
            frozenset(
                (uuid, id(state.contents[uuid])) for uuid in state.touched
            ),
        )
        is_known = key in self._seen
        self._seen.add(key)
        return is_known

    def _list_servers(self, state: State, rest: int) -> list[Server]:
        """Return one of the servers that are alike, the best first.

        A server whose departure is no step to the goal may make room for
        another one, if there is a move to spare.
        """
        chosen: list[tuple[int, int, Server]] = []
        # Equal cards have equal results.
        checked: dict[object, int] = {}
        for number, card in enumerate(self._search.sources):
            servers = self._search.list_movable(state, card.uuid)
            contents = state.contents[card.uuid]
            seen = set()
            for server in servers:
                if server.likeness in seen:
                    continue
                seen.add(server.likeness)
                others = [s for s in servers if s is not server]
                key = (
                    id(contents),
                    server.profile,
                    tuple(sorted(s.profile for s in others)),
                    self._goal.profiles.get(card.uuid),
                    card.uuid in state.touched,
                )
                if key not in checked:
                    checked[key] = self._count_needed(
                        state,
                        {card.uuid: (contents.remove(server.profile), others)},
                    )
                if checked[key] < rest:
                    chosen.append((checked[key], number, server))
        chosen.sort(key=lambda each: each[:2])
        if self._is_dive:
            del chosen[_DIVE_WIDTH:]
        return [server for *_, server in chosen]

    def _count_needed(
        self,
        state: State,
        changed: Mapping[str, tuple[Contents, Sequence[Server]]],
    ) -> int:
        """Return how many more moves are needed at least.

        Only departures count: that each server finds a place is assumed.

        :param changed: contents and movable servers of cards, in place of
            those of the state.
        """
        gains, total = self._gains.copy(), self._total
        for uuid in {*state.touched, *changed} & self._own.keys():
            contents, servers = changed.get(uuid) or (
                state.contents[uuid],
                self._search.list_movable(state, uuid),
            )
            own = self._search.compute_gains(
                contents, servers, self._goal.profiles[uuid], self._depth
            )
            gains[self._own[uuid]] -= 1
            gains[own] += 1
            total += own[0] - self._own[uuid][0]
        return _count_removals(gains, max(0, self._goal.count - total))


def _count_removals(gains: collections.Counter[_Gains], lacking: int) -> int:
    """Return the fewest removals after which so many more fit."""
    fewest = [0] + [_NEVER] * lacking
    for counts, cards in gains.items():
        options = [
            (number, count - counts[0])
            for number, count in enumerate(counts)
            if number and count > counts[number - 1]
        ]
        for _ in range(min(cards, lacking) if options else 0):
            for rest in range(lacking, 0, -1):
                fewest[rest] = min(
                    fewest[rest],
                    *(
                        fewest[max(0, rest - gain)] + number
                        for number, gain in options
                    ),
                )
    return fewest[lacking]
