# SPDX-License-Identifier: Apache-2.0
"""Refused share of requests for real profiles, by policy and live moves.

    python -m tests.benchmark.density.profile_replay REQUESTS.csv
        [--seeds 3 --requests 4000 --load 0.9]

Requests for one GPU or a part of it are drawn from a trace with their
lifetimes, and rounded up to the smallest profile with that share of the
card's memory and slices. They arrive at random (a Poisson process) at 32
cards of eight hosts, so many that they would use ``--load`` of the cards'
memory if none were refused. The servers that exist at the beginning are drawn
as they would be found at any time: by their lifetimes, of which a random part
is over. The output is the refused share of the requested memory in percent,
and in brackets the moves for each 1,000 requests, and how many placements are
invalid.

With moves, a request that has no room gets it if moving so many servers to
other cards makes room: the fewest, then the smallest. The policy chooses
where they go.

The last rows are the trace of ``cards``, with all sizes of a card.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import heapq
import itertools
import os
import pathlib
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence

from nova_accel import model
from tests.benchmark.density import cards, profile_policies
from tests.benchmark.density.profile_cards import (
    EMPTY,
    EQUAL,
    MIG,
    MIXED,
    CardModel,
    State,
)
from tests.benchmark.density.profile_policies import POLICIES, Place, add
from tests.benchmark.density.traces import GPU_MILLI

HOSTS = 8
# Seconds. In the trace one of 90 servers exists for longer than a day, and
# these have nine tenths of all time: they would never leave their cards.
LONGEST = 86400.0
MOVES = (0, 1, 3)
# Key in the catalog and layout.
MODELS: tuple[tuple[str, model.Layout], ...] = (
    ("L40S", EQUAL),
    ("L40S", MIXED),
    ("A100", MIG),
    ("A100D", MIG),
    ("H100", MIG),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A server: times of its creation and deletion, and its profile.

    It is counted with ``weight`` if it is refused, 0 for those before.
    """

    begin: float
    end: float
    profile: str
    weight: float


def read_pairs(path: pathlib.Path) -> list[tuple[float, float]]:
    """Return share of a card and lifetime in seconds of a trace's requests.

    Those for several GPUs are left out, and those that never existed or did
    for longer than a day.
    """
    with path.open(newline="", encoding="utf-8") as file:
        pairs = [
            (
                int(float(row["gpu_milli"])) / GPU_MILLI,
                float(row["deletion_time"] or 0) - float(row["creation_time"]),
            )
            for row in csv.DictReader(file)
            if row["num_gpu"] == "1"
        ]
    return [(share, life) for share, life in pairs if 0 < life <= LONGEST]


def draw(
    pairs: Sequence[tuple[float, float]],
    cards: CardModel,
    load: float,
    count: int,
    seed: int,
) -> Iterator[Request]:
    """Yield the servers of the beginning, then ``count`` requests."""
    chance = random.Random(seed)  # noqa: S311
    whole = load * HOSTS * profile_policies.CARDS
    servers = [
        (cards.profiles[cards.round_up(share)], life) for share, life in pairs
    ]
    rate = whole / statistics.fmean(p.share * life for p, life in servers)
    used = 0.0
    while True:
        (profile, life) = chance.choices(servers, [n for _, n in servers])[0]
        used += profile.share
        if used > whole:
            break
        rest = chance.random() * life
        yield Request(begin=0.0, end=rest, profile=profile.name, weight=0.0)
    now = 0.0
    for _ in range(count):
        now += chance.expovariate(rate)
        profile, life = chance.choice(servers)
        yield Request(
            begin=now,
            end=now + life,
            profile=profile.name,
            weight=profile.share,
        )


class Cloud:
    """Cards and their servers, with one policy."""

    def __init__(
        self, cards: CardModel, count: int, policy: profile_policies.Policy
    ) -> None:
        self._model = cards
        self._policy = policy
        self._places: dict[int, tuple[str, Place]] = {}
        self.cards = [EMPTY] * count
        self.moved = self.invalid = 0

    def add(self, server: int, name: str, moves: int) -> bool:
        """Place a server, with so many moves; return whether it has room."""
        self._policy.count(name)
        place = self._policy.choose(name, self.cards, ())
        if place is None and moves:
            place = self._make_room(name, moves)
        if place is None:
            return False
        self._put(server, name, place)
        return True

    def remove(self, server: int) -> None:
        """Remove a server."""
        name, place = self._places.pop(server)
        state = list(self.cards[place.card])
        state.remove((name, place.start))
        self.cards[place.card] = tuple(state)

    def _put(self, server: int, name: str, place: Place) -> None:
        self._places[server] = name, place
        state = add(self.cards[place.card], name, place.start)
        self.cards[place.card] = state
        self.invalid += not self._model.is_valid(state)

    def _make_room(self, name: str, moves: int) -> Place | None:
        """Move servers so that a profile fits; return its place, or None."""
        for servers, number in self._list_plans(name, moves):
            before = {server: self._places[server] for server in servers}
            if self._move_all(servers, number):
                state = self.cards[number]
                start = self._model.choose_start(state, name)
                assert start is not None
                self.moved += len(servers)
                return Place(number, start)
            for server, (moved, place) in before.items():
                if server in self._places:
                    self.remove(server)
                self._places[server] = moved, place
                self.cards[place.card] = add(
                    self.cards[place.card], moved, place.start
                )
        return None

    def _move_all(self, servers: Iterable[int], number: int) -> bool:
        """Move servers from a card, the largest first."""
        names = {server: self._places[server][0] for server in servers}
        for server in names:
            self.remove(server)
        for server, name in sorted(
            names.items(),
            key=lambda each: -self._model.profiles[each[1]].share,
        ):
            place = self._policy.choose(name, self.cards, (number,))
            if place is None:
                return False
            self._put(server, name, place)
        return True

    def _list_plans(
        self, name: str, moves: int
    ) -> list[tuple[tuple[int, ...], int]]:
        """Return the moves after which a card has room, the best first."""
        by_card: dict[int, list[int]] = {}
        for server, (_, place) in self._places.items():
            by_card.setdefault(place.card, []).append(server)
        plans: dict[State, tuple[int, float, int, tuple[int, ...]]] = {}
        for number, servers in sorted(by_card.items()):
            for size in range(1, moves + 1):
                for moved in itertools.combinations(servers, size):
                    state = self._list_rest(number, moved)
                    if self._model.choose_start(state, name) is None:
                        continue
                    memory = sum(
                        self._model.profiles[self._places[s][0]].share
                        for s in moved
                    )
                    plan = (size, round(memory, 6), number, moved)
                    # Cards of equal states are equal.
                    key = (*self.cards[number], *state)
                    plans[key] = min(plan, plans.get(key, plan))
        return [
            (moved, number) for *_, number, moved in sorted(plans.values())
        ]

    def _list_rest(self, number: int, moved: Iterable[int]) -> State:
        rest = list(self.cards[number])
        for server in moved:
            name, place = self._places[server]
            rest.remove((name, place.start))
        return tuple(rest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
    """Refused percentage, moves for each 1,000 requests, invalid ones."""

    refused: float
    moves: float
    invalid: int


def replay(
    requests: Iterable[Request],
    cards: CardModel,
    count: int,
    policy: str,
    moves: int,
) -> Replayed:
    """Place requests one after another on so many cards."""
    requests = list(requests)
    total = sum(r.weight for r in requests)
    mix = {
        name: sum(r.weight for r in requests if r.profile == name) / total
        for name in cards.profiles
    }
    cloud = Cloud(cards, count, POLICIES[policy](cards, mix))
    ends: list[tuple[float, int]] = []
    refused = 0.0
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.begin:
            cloud.remove(heapq.heappop(ends)[1])
        if cloud.add(number, request.profile, moves):
            heapq.heappush(ends, (request.end, number))
        else:
            refused += request.weight
    return Replayed(
        refused=100 * refused / total,
        moves=1000 * cloud.moved / len(requests),
        invalid=cloud.invalid,
    )


def replay_uniform(
    key: str, seed: int, count: int, policy: str, moves: int
) -> Replayed:
    """Replay the trace of ``cards``: all sizes of 16 cards at 80 %."""
    blank = cards.describe_card(cards.GPUS[key], True)
    card_model = CardModel(key, MIXED, [p.name for p in blank.profiles])
    requests = [
        Request(
            begin=each.begin,
            end=each.end,
            profile=each.profile.name,
            weight=each.profile.size * (number >= cards.WARM_UP * count),
        )
        for number, each in enumerate(cards.trace(blank, seed, count))
    ]
    return replay(requests, card_model, cards.CARDS, policy, moves)


_Job = tuple[pathlib.Path, str, model.Layout, str, int, int, int, float]


def _replay_job(job: _Job) -> Replayed:
    path, key, layout, policy, moves, seed, count, load = job
    if not load:
        return replay_uniform(key, seed, count, policy, moves)
    card_model = CardModel(key, layout)
    requests = draw(read_pairs(path), card_model, load, count, seed)
    number = HOSTS * profile_policies.CARDS
    return replay(requests, card_model, number, policy, moves)


def measure(
    path: pathlib.Path, seeds: int, count: int, load: float, workers: int
) -> Iterator[str]:
    """Yield the lines of the table: model, policy, and cells by moves."""
    rows: list[tuple[str, model.Layout, float]] = [
        (key, layout, load) for key, layout in MODELS
    ]
    rows += [(key, MIXED, 0.0) for key in cards.GPUS]
    yield f"refused, % of the memory; moves: {', '.join(map(str, MOVES))}"
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for key, layout, loaded in rows:
            for policy in POLICIES:
                if not profile_policies.is_defined(
                    policy, CardModel(key, layout)
                ):
                    continue
                cells = []
                for moves in MOVES:
                    results = list(
                        pool.map(
                            _replay_job,
                            [
                                (
                                    path,
                                    key,
                                    layout,
                                    policy,
                                    moves,
                                    seed,
                                    count,
                                    loaded,
                                )
                                for seed in range(1, seeds + 1)
                            ],
                        )
                    )
                    refused = statistics.fmean(r.refused for r in results)
                    moved = statistics.fmean(r.moves for r in results)
                    invalid = sum(r.invalid for r in results)
                    cells.append(f"{refused:6.2f} ({moved:.0f}, {invalid})")
                title = layout.value if loaded else "all sizes"
                yield f"{key:6}{title:10}{policy:16}{'  '.join(cells)}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(words)
    for line in measure(
        options.trace,
        options.seeds,
        options.requests,
        options.load,
        options.workers,
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
