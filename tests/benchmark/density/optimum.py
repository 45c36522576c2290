# SPDX-License-Identifier: Apache-2.0
"""Moves of `plan defragment` against the optimum of a solver.

    python -m tests.benchmark.density.optimum [--clouds 1000 --seed 1]

Small random clouds of three to five hosts, with a card each of one model,
whose servers come and go; on each the fewest moves, three at most, that make a
random profile fit once or twice more. CP-SAT of OR-tools has the same
knowledge (not which of equal servers has which place) and fewer duties: each
host may put a partition anywhere, and the order of the moves does not matter.
So its number is at most the true optimum. The rules of the cards are those of
``profile_cards``, from the catalog alone.

``missed`` are the clouds in which only the solver has moves. They are tried
again by all sequences of moves, in which hosts choose the places; ``lost`` is
the number of those with a plan, and ``longer`` that of plans for which there
is a shorter sequence: 0 both.
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence

from ortools.sat.python import cp_model

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.model import providers
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.moves import defragmentation, movable_servers
from tests.benchmark.density import profile_cards
from tests.support.placement import clouds, fleets, fragmented

# Profiles of servers: more of the smallest would only take time.
MODELS = (
    ("A40", profile_cards.EQUAL, ("A40-6A", "A40-8A", "A40-12A", "A40-24A")),
    (
        "L40S",
        profile_cards.MIXED,
        ("L40S-6A", "L40S-8A", "L40S-12A", "L40S-16A", "L40S-24A", "L40S-48A"),
    ),
    ("A100", profile_cards.MIG, ()),
)
MOST_MOVES = 3
# Share of the servers that have left.
_LEAVING = 0.35
# Names of profiles, sorted.
Names = tuple[str, ...]
State = profile_cards.State


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallCloud:
    """A card on each host, and the profile that shall fit.

    ``room`` is how many more servers the memory of each host takes.
    """

    card: profile_cards.CardModel
    devices: Mapping[str, model.Device]
    room: Mapping[str, int]
    profile: str
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Change of a card: profiles that leave and arrive, and what fits then."""

    removed: Names
    added: Names
    count: int


def draw(chance: random.Random) -> SmallCloud:
    """Return a cloud whose servers have come and gone."""
    gpu, layout, profiles = chance.choice(MODELS)
    card = get_model(gpu, layout, profiles)
    devices, number = {}, 0
    for host in range(chance.randint(3, 5)):
        device = fragmented.make_device(gpu, layout.value)
        for _ in range(chance.randint(2, 9)):
            number += 1
            usual = sorted(fragmented.list_possible(device) & {*card.profiles})
            if usual:
                device = fragmented.add(
                    device, chance.choice(usual), fleets.consumer(number)
                )
        leaving = [
            p.handle for p in device.partitions if chance.random() < _LEAVING
        ]
        devices[f"node{host}/0000:41:00.0"] = (
            device_capacity.remove_partitions(device, leaving)
        )
    profile = chance.choice([*card.profiles])
    now = sum(
        count_fitting(card, read_state(device), profile)
        for device in devices.values()
    )
    return SmallCloud(
        card=card,
        devices=devices,
        room={at: chance.choice((0, 1, 2, 9, 9)) for at in devices},
        profile=profile,
        count=now + chance.randint(1, 2),
    )


@functools.cache
def get_model(
    gpu: str, layout: model.Layout, profiles: Names
) -> profile_cards.CardModel:
    return profile_cards.CardModel(gpu, layout, profiles)


# -- the plan --------------------------------------------------------------


def build_fleet(cloud: SmallCloud) -> fleet_state.Fleet:
    world = fragmented.make_world(
        cloud.devices, cloud.card.key, cloud.card.layout.value
    )
    hosts = {
        clouds.root(at.partition("/")[0]): {
            "MEMORY_MB": providers.ClassCapacity(
                capacity=room + len(cloud.devices[at].partitions),
                used=len(cloud.devices[at].partitions),
            )
        }
        for at, room in cloud.room.items()
    }
    return dataclasses.replace(
        world.fleet, cloud=dataclasses.replace(world.fleet.cloud, hosts=hosts)
    )


def plan(cloud: SmallCloud) -> int | None:
    """Return the number of moves of a plan, None without one."""
    search = defragmentation.Defragmentation(
        build_fleet(cloud),
        fragmented.TYPES,
        movable_servers.MoveRules(),
        lambda: False,
    )
    vgpu_type = fragmented.CATALOG.find(cloud.profile)
    assert vgpu_type is not None
    try:
        result = search.make_room(vgpu_type, cloud.count, MOST_MOVES)
    except defragmentation.NoPlanError as error:
        assert error.is_certain
        return None
    assert result.is_shortest
    return len(result.moves)


# -- the optimum ------------------------------------------------------------


def read_state(device: model.Device) -> State:
    """Return the partitions of a card with their places."""
    starts = []
    for partition in device.partitions:
        instance = device.geometry.instance(partition.instance)
        start = partition.start or 0
        if instance is not None and instance.span is not None:
            start = instance.span.start
        starts.append((partition.profile, start))
    return tuple(sorted(starts))


def list_rests(state: State, removed: Names) -> set[State]:
    """Return what may remain of a card after servers have left."""
    rests = {state}
    for name in removed:
        rests = {
            tuple(p for i, p in enumerate(rest) if i != index)
            for rest in rests
            for index, (other, _) in enumerate(rest)
            if other == name
        }
    return rests


@functools.cache
def add_anywhere(
    card: profile_cards.CardModel, states: frozenset[State], name: str
) -> frozenset[State]:
    """Return all cards with one more partition, at any place."""
    return frozenset(
        tuple(sorted((*state, (name, start))))
        for state in states
        for start in card.list_starts(state, name)
    )


def count_fitting(
    card: profile_cards.CardModel, state: State, name: str
) -> int:
    """Return how many more of a profile fit, in the best arrangement."""
    starts = card.list_starts(state, name)
    return max(
        (
            1
            + count_fitting(card, tuple(sorted((*state, (name, start)))), name)
            for start in starts
        ),
        default=0,
    )


class Optimum:
    """The fewest moves by CP-SAT."""

    def __init__(self) -> None:
        self._count = functools.cache(count_fitting)
        self._list_options = functools.cache(self._compute_options)

    def solve(self, cloud: SmallCloud) -> int | None:
        """Return the number of moves, None without any."""
        problem = cp_model.CpModel()
        flows: dict[str, list[cp_model.LinearExpr]] = collections.defaultdict(
            list
        )
        counts, moves = [], []
        names = tuple(
            sorted(
                {
                    p.profile
                    for d in cloud.devices.values()
                    for p in d.partitions
                }
            )
        )
        for at, device in cloud.devices.items():
            chosen = []
            for option in self._list_options(
                cloud.card, read_state(device), names, cloud.profile
            ):
                if len(option.added) - len(option.removed) > cloud.room[at]:
                    continue
                choice = problem.new_bool_var("")
                chosen.append(choice)
                counts.append(option.count * choice)
                moves.append(len(option.removed) * choice)
                for sign, each in ((1, option.removed), (-1, option.added)):
                    for name in each:
                        flows[name].append(sign * choice)
            problem.add_exactly_one(chosen)
        for flow in flows.values():
            problem.add(sum(flow) == 0)
        problem.add(sum(counts) >= cloud.count)
        problem.add(sum(moves) <= MOST_MOVES)
        problem.minimize(sum(moves))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        if solver.solve(problem) != cp_model.OPTIMAL:
            return None
        fewest: int = round(solver.objective_value)
        return fewest

    def _compute_options(
        self,
        card: profile_cards.CardModel,
        state: State,
        names: Names,
        profile: str,
    ) -> list[Option]:
        """Return the changes of a card, as good as the worst case of each."""
        present = collections.Counter(name for name, _ in state)
        options = []
        for removed in list_multisets(present):
            rests = [frozenset({r}) for r in list_rests(state, removed)]
            for added, arranged in list_additions(card, rests, names):
                count = min(
                    max(self._count(card, each, profile) for each in states)
                    for states in arranged
                )
                options.append(
                    Option(removed=removed, added=added, count=count)
                )
        return options


def list_multisets(most: Mapping[str, int]) -> Iterator[Names]:
    """Yield all sets of up to as many names as there may be moves."""
    for number in range(MOST_MOVES + 1):
        for each in itertools.combinations_with_replacement(most, number):
            if all(each.count(name) <= most[name] for name in each):
                yield each


def list_additions(
    card: profile_cards.CardModel,
    rests: Sequence[frozenset[State]],
    names: Names,
    added: Names = (),
) -> Iterator[tuple[Names, Sequence[frozenset[State]]]]:
    """Yield the profiles that can be added, and all cards with them.

    :param rests: what a card may be, each with all its arrangements.
    """
    yield added, rests
    if len(added) == MOST_MOVES:
        return
    for index, name in enumerate(names):
        arranged = [add_anywhere(card, states, name) for states in rests]
        if all(arranged):
            yield from list_additions(
                card, arranged, names[index:], (*added, name)
            )


# -- all sequences of moves ---------------------------------------------------


#: A card: its partitions, and those of servers that have arrived.
_Card = tuple[State, State]
_Cards = tuple[frozenset[_Card], ...]


def has_plan(cloud: SmallCloud, most: int = MOST_MOVES) -> bool:
    """Return whether any sequence of moves reaches the goal for certain.

    Each server moves once: a run can be continued only if the place of a
    server shows which moves are done. A card is the set of all cards that it
    may be.
    """
    card = cloud.card
    begin: _Cards = tuple(
        frozenset({(read_state(device), profile_cards.EMPTY)})
        for device in cloud.devices.values()
    )
    room = tuple(cloud.room[at] for at in cloud.devices)
    seen = {(begin, room)}
    states = [(begin, room)]
    for _ in range(most + 1):
        following = []
        for cards, free in states:
            fitting = sum(
                min(count_fitting(card, s, cloud.profile) for s, _ in each)
                for each in cards
            )
            if fitting >= cloud.count:
                return True
            for state in _list_next(card, cards, free):
                if state not in seen:
                    seen.add(state)
                    following.append(state)
        states = following
    return False


def _list_next(
    card: profile_cards.CardModel, cards: _Cards, room: Sequence[int]
) -> Iterator[tuple[_Cards, tuple[int, ...]]]:
    """Yield the cards and the room of hosts after one more move."""
    for source, target in itertools.permutations(range(len(cards)), 2):
        if room[target] < 1:
            continue
        state, arrived = next(iter(cards[source]))
        for name in {name for name, _ in _subtract(state, arrived)}:
            starts = {c: card.choose_start(c[0], name) for c in cards[target]}
            if None in starts.values():
                continue
            after = list(cards)
            after[source] = frozenset(
                (tuple(sorted((*rest, *arrived))), arrived)
                for state, arrived in cards[source]
                for rest in list_rests(_subtract(state, arrived), (name,))
            )
            after[target] = frozenset(
                (
                    tuple(sorted((*state, (name, start or 0)))),
                    tuple(sorted((*arrived, (name, start or 0)))),
                )
                for (state, arrived), start in starts.items()
            )
            free = list(room)
            free[source] += 1
            free[target] -= 1
            yield tuple(after), tuple(free)


def _subtract(state: State, arrived: State) -> State:
    """Return the partitions that a card had at first."""
    rest = collections.Counter(state)
    rest.subtract(arrived)
    return tuple(sorted(rest.elements()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clouds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311
    optimum = Optimum()
    moves, fewest, plans, longer, missed, lost = 0, 0, 0, 0, 0, 0
    seconds: list[float] = []
    needed: collections.Counter[int] = collections.Counter()
    for _ in range(arguments.clouds):
        cloud = draw(chance)
        begin = time.perf_counter()
        number = plan(cloud)
        seconds.append(time.perf_counter() - begin)
        least = optimum.solve(cloud)
        if number is not None:
            assert least is not None and least <= number, cloud
            moves, fewest, plans = moves + number, fewest + least, plans + 1
            needed[number] += 1
            longer += number > least and has_plan(cloud, number - 1)
        elif least is not None:
            missed += 1
            lost += has_plan(cloud)
    print(
        f"{arguments.clouds} clouds, {plans} with a plan; {moves} moves,"
        f" {fewest} at least: {moves / max(1, fewest):.3f}; longer {longer},"
        f" missed {missed}, lost {lost}"
    )
    print(f"plans by moves: {dict(sorted(needed.items()))}")
    print(
        f"seconds of a search: {sum(seconds) / len(seconds):.3f} on average,"
        f" {max(seconds):.2f} at most"
    )


if __name__ == "__main__":
    main()
