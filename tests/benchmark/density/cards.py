# SPDX-License-Identifier: Apache-2.0
"""Share of requested memory that is refused, with four policies.

    python -m tests.benchmark.density [--requests 20000 --seeds 5 --hosts 1]
    python -m tests.benchmark.density --trace NODES REQUESTS
        [--expected FILE --seeds 10 --policy best_remaining]

The second form replays a trace of a cluster: see ``trace_replay``. The rest is
about the first.

Servers are created and deleted on 16 equal cards, all of one host or divided
among ``--hosts``. Each requests
a vGPU, all sizes of the card with the same probability; they are created at
random (a Poisson process) and exist for an exponentially distributed time, so
many that four fifths of all memory would be in use if none were refused. The
first tenth of the requests fills the cards and is not counted. The output is
the refused share of the requested memory, in percent. The last column is for
comparison: all cards as one pool without places, of which a vGPU takes the
same share as on a card full of its type, with mixed sizes.

The library's own code decides: the vendor driver describes the cards,
``device_capacity`` chooses the place on the card and returns the remaining
profiles, ``tree_builder`` builds the provider with its traits, and
``candidate_fit`` orders the cards. Only the rules of Placement are repeated
here: a provider is a candidate if it has the trait and enough capacity.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import heapq
import itertools
import operator
import os
import pathlib
import random
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from filters import request
from filters.fit import candidate_fit, provider_facts, request_mix, scores
from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.geometry import device_capacity
from nova_accel.geometry.scheduling import usable_share, vgpu_geometry
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from tests.benchmark.density import trace_replay
from tests.hosts import build, vgpu_cards

ROOT = providers.ProviderRoot(name="node", uuid=str(uuid.UUID(int=1)))
CARDS = 16
LOAD = 0.8
WARM_UP = 0.1
_PLENTY = 1 << 16


GPUS = {gpu.key: gpu for gpu in (vgpu_cards.L40S, vgpu_cards.A100)}


class Way(NamedTuple):
    """A mode of the cards, and the flavors' policy."""

    title: str
    is_mixed: bool
    packing: flavors.Packing


WAYS = (
    Way("equal+spread", False, flavors.Packing.SPREAD),
    Way("equal+pack", False, flavors.Packing.PACK),
    Way("mixed+pack", True, flavors.Packing.PACK),
    Way("best_remaining", True, flavors.Packing.BEST_REMAINING),
)
POOL = "one pool"
TITLES = (*(way.title for way in WAYS), POOL)


def describe_card(gpu: vgpu_cards.Gpu, is_mixed: bool) -> model.Device:
    """Return one card of a model as its vendor driver describes it."""
    description = vgpu_cards.describe(gpu, "0000:41:00.0")
    sizes = policy.MIXED if is_mixed else policy.EQUAL
    rules = policy.parse_rules([f'{{"address": "*", "sizes": "{sizes}"}}'])
    with tempfile.TemporaryDirectory() as root:
        build.build(description, pathlib.Path(root))
        host = host_reader.HostReader(
            source=fs.DiskSource(root), gpus=nvml_gpus.NvmlGpus({})
        )
        state = scan.read(host, plugin.load(), rules)
    (device,) = state.devices
    # Counts of the driver: as many as there is room for.
    made = device.profiles
    made = tuple(dataclasses.replace(p, available=_PLENTY) for p in made)
    return dataclasses.replace(device, profiles=made)


# State of a card: its profiles and their places.
State = tuple[tuple[str, int | None], ...]


class Kind:
    """Cards of one model in one mode; caches results for each state."""

    def __init__(self, gpu: vgpu_cards.Gpu, way: Way) -> None:
        self.blank = describe_card(gpu, way.is_mixed)
        self.device_of = functools.lru_cache(1 << 16)(self._build_device)
        self.published = functools.lru_cache(1 << 16)(self._publish)
        self.choice = functools.lru_cache(1 << 18)(self._choose)

    def _build_device(self, state: State) -> model.Device:
        partitions = tuple(
            model.Partition(
                profile=profile,
                parent=self.blank.slots[number],
                handle=f"made-{number}",
                start=start,
            )
            for number, (profile, start) in enumerate(state)
        )
        return device_capacity.recalculate(
            dataclasses.replace(self.blank, partitions=partitions)
        )

    def _choose(
        self, state: State, profile: str
    ) -> device_capacity.PartitionPlace | None:
        return device_capacity.choose_place(self.device_of(state), profile)

    def _publish(self, state: State) -> providers.Provider:
        """Return Placement's facts of a card in this state."""
        device = self.device_of(state)
        claims = [
            model.Claim(
                consumer=partition.handle,
                provider=ROOT.uuid,
                device=device.address,
                profile=partition.profile,
                slot=partition.parent,
                parent=partition.parent,
                handle=partition.handle,
                technology=device.technology,
            )
            for partition in device.partitions
        ]
        (node,) = tree_builder.build_tree(
            ROOT,
            model.HostState(devices=(device,)),
            policy.DeviceRules(),
            claims,
        ).nodes
        charges = tuple(self.charges(profile) for profile, _ in state)
        layout = names.layout_trait(device.geometry.layout.value)
        return providers.Provider(
            uuid=node.uuid,
            name=node.name,
            traits=node.traits | {layout},
            capacities={
                name: providers.ClassCapacity(
                    capacity=record.total - record.reserved,
                    used=sum(c.get(name, 0) for c in charges),
                )
                for name, record in node.inventories.items()
            },
            allocations=charges,
        )

    def share(self, profile: model.Profile) -> Fraction:
        """Return the share of a card that a profile takes."""
        state: State = ()
        while choice := self.choice(state, profile.name):
            state = (*state, (profile.name, choice.start))
        return Fraction(1, len(state))

    def charges(self, profile: str) -> Mapping[str, int]:
        """Return the charges of a profile."""
        card_profile = self.blank.profile(profile)
        assert card_profile is not None
        return card_profile.charges


class Card:
    """One card and its partitions by consumer."""

    def __init__(self, kind: Kind, number: int) -> None:
        self.kind = kind
        address = f"0000:{0x10 + number:02x}:00.0"
        self.uuid = names.provider_uuid(ROOT.uuid, address)
        self.allocations: dict[str, tuple[str, int | None]] = {}
        self.update()

    def update(self) -> None:
        """Set the card's facts from its partitions."""
        self.state: State = tuple(
            sorted(self.allocations.values(), key=lambda p: (p[0], p[1] or 0))
        )
        self.facts = dataclasses.replace(
            self.kind.published(self.state), uuid=self.uuid
        )

    def make(self, consumer: str, profile: str) -> None:
        """Make a partition at the place that the library chooses."""
        choice = self.kind.choice(self.state, profile)
        assert choice is not None, (self.state, profile)
        self.allocations[consumer] = profile, choice.start
        self.update()

    def remove(self, consumer: str) -> None:
        """Remove a consumer's partition."""
        del self.allocations[consumer]
        self.update()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One server: times of creation and deletion, and its profile."""

    consumer: str
    begin: float
    end: float
    profile: model.Profile


def trace(blank: model.Device, seed: int, count: int) -> Iterator[Request]:
    """Yield servers in the order of their creation."""
    chance = random.Random(seed)  # noqa: S311
    kinds = sorted(blank.profiles, key=lambda p: p.name)
    mean = statistics.fmean(p.size for p in kinds)
    whole = blank.counters[names.GPU_MEMORY_CLASS] * CARDS
    rate = LOAD * whole / mean
    now = 0.0
    for number in range(count):
        now += chance.expovariate(rate)
        yield Request(
            consumer=f"server-{number}",
            begin=now,
            end=now + chance.expovariate(1.0),
            profile=chance.choice(kinds),
        )


def make_request(
    profile: model.Profile, way: Way
) -> request.AcceleratorRequest:
    """Return the request of a flavor that names a profile."""
    specs = {f"resources_A:{n}": str(a) for n, a in profile.charges.items()}
    specs[f"trait_A:{profile.trait}"] = "required"
    specs["accelerator:packing"] = way.packing.value
    return request.parse_request(specs)


def candidates_of(
    cards: Mapping[str, Card], profile: model.Profile
) -> list[provider_facts.Candidate]:
    """Return the allocation candidates of Placement."""
    return [
        {
            "allocations": {card.uuid: {"resources": dict(profile.charges)}},
            "mappings": {"_A": [card.uuid]},
        }
        for card in cards.values()
        if profile.trait in card.facts.traits
        and all(
            amount <= card.facts.capacities[name].free
            for name, amount in profile.charges.items()
        )
    ]


class Hosts:
    """The cards of equal hosts, and the card of each server."""

    def __init__(self, kind: Kind, way: Way, count: int) -> None:
        self._way = way
        self._geometry = vgpu_geometry.VgpuGeometry(loader.load())
        self._mix = request_mix.RequestMix()
        self._shares = usable_share.UsableShares(
            self._geometry, self._mix.list_usual
        )
        cards = [Card(kind, number) for number in range(CARDS)]
        self._cards = {card.uuid: card for card in cards}
        self._hosts = [
            {card.uuid: card for card in cards[number::count]}
            for number in range(count)
        ]
        self._requests = {
            p.name: make_request(p, way) for p in kind.blank.profiles
        }
        self._places: dict[str, Card] = {}

    def add(self, server: Request) -> bool:
        """Place a server as the library does; return whether there is room."""
        wish = self._requests[server.profile.name]
        self._mix.add(usable_share.build_shape(0, 0, wish.groups))
        losses = self._shares.measure()
        choices = [
            (self._weigh(losses, wish, host, fits[0]), number, fits[0])
            for number, host in enumerate(self._hosts)
            if (fits := self._select(wish, host, server.profile))
        ]
        if not choices:
            return False
        *_, candidate = min(choices, key=operator.itemgetter(0, 1))
        (chosen,) = candidate["mappings"]["_A"]
        self._places[server.consumer] = self._cards[chosen]
        self._cards[chosen].make(server.consumer, server.profile.name)
        return True

    def _select(
        self,
        wish: request.AcceleratorRequest,
        host: Mapping[str, Card],
        profile: model.Profile,
    ) -> list[provider_facts.Candidate]:
        """Return the candidates of a host, the best first."""
        view = candidate_fit.HostFacts(
            facts={uuid: card.facts for uuid, card in host.items()},
            geometry=self._geometry,
            shares=self._shares,
        )
        fits, _ = candidate_fit.select(
            wish, candidates_of(host, profile), view
        )
        return fits

    def _weigh(
        self,
        losses: usable_share.HostLosses,
        wish: request.AcceleratorRequest,
        host: Mapping[str, Card],
        candidate: provider_facts.Candidate,
    ) -> tuple[float, ...]:
        """Return the weigher's measure of a host; the lowest is best."""
        cards = [card.facts for card in host.values()]
        if self._way.packing is flavors.Packing.BEST_REMAINING:
            added = provider_facts.list_added(wish.groups, candidate)
            return losses.compute(cards, added)
        fullness = scores.fullness(wish, cards, host.keys())
        return (-float(fullness or 0),)

    def remove(self, server: Request) -> None:
        """Remove a server."""
        self._places.pop(server.consumer).remove(server.consumer)


class Pool:
    """All cards as one pool of memory, without places."""

    def __init__(self, kind: Kind) -> None:
        self._free = Fraction(CARDS)
        self._shares = {p.name: kind.share(p) for p in kind.blank.profiles}

    def add(self, server: Request) -> bool:
        """Take the share of a server; return whether the pool had it."""
        share = self._shares[server.profile.name]
        if share > self._free:
            return False
        self._free -= share
        return True

    def remove(self, server: Request) -> None:
        """Give back the share of a server."""
        self._free += self._shares[server.profile.name]


def run(
    gpu: vgpu_cards.Gpu, way: Way | None, seed: int, count: int, hosts: int
) -> float:
    """Return the refused percentage of the requested memory.

    :param way: None for one pool of memory.
    """
    kind = Kind(gpu, way or WAYS[-1])
    host = Hosts(kind, way, hosts) if way else Pool(kind)
    departures: list[tuple[float, str, Request]] = []
    requested = refused = 0
    for number, server in enumerate(trace(kind.blank, seed, count)):
        while departures and departures[0][0] <= server.begin:
            host.remove(heapq.heappop(departures)[-1])
        fits = host.add(server)
        if fits:
            heapq.heappush(departures, (server.end, server.consumer, server))
        if number >= WARM_UP * count:
            requested += server.profile.size
            refused += server.profile.size * (not fits)
    return 100 * refused / requested


def _cell(job: tuple[str, str, int, int, int]) -> float:
    key, title, seed, count, hosts = job
    ways = {way.title: way for way in WAYS}
    return run(GPUS[key], ways.get(title), seed, count, hosts)


def measure(
    keys: list[str],
    seeds: int,
    count: int,
    workers: int,
    hosts: int = 1,
    report: Callable[[str], None] = print,
) -> dict[tuple[str, str], list[float]]:
    """Return the percentages by model and way, one for each seed."""
    jobs = [
        (key, title, seed, count, hosts)
        for key, title, seed in itertools.product(
            keys, TITLES, range(1, seeds + 1)
        )
    ]
    shares: dict[tuple[str, str], list[float]] = {}
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for job, share in zip(jobs, pool.map(_cell, jobs), strict=True):
            key, title, seed, *_ = job
            shares.setdefault((key, title), []).append(share)
            report(f"{key} {title} seed {seed}: {share:.2f} %")
    return shares


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--gpu", action="append", choices=list(GPUS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--trace",
        nargs=2,
        type=pathlib.Path,
        metavar=("NODES", "REQUESTS"),
        help="CSV files to replay",
    )
    parser.add_argument(
        "--expected",
        type=pathlib.Path,
        metavar="FILE",
        help="CSV file with published results of the trace",
    )
    policies = [packing.value for packing in trace_replay.POLICIES]
    parser.add_argument(
        "--policy",
        action="append",
        choices=policies,
        help="policy to replay the trace with, may be repeated; default: all",
    )
    options = parser.parse_args(words)
    if options.trace:
        nodes, requests = options.trace
        for line in trace_replay.measure(
            nodes,
            requests,
            options.expected,
            options.policy or policies,
            options.seeds,
            options.workers,
        ):
            print(line, flush=True)
        return
    keys = options.gpu or list(GPUS)
    report = functools.partial(print, file=sys.stderr, flush=True)
    shares = measure(
        keys,
        options.seeds,
        options.requests,
        options.workers,
        options.hosts,
        report,
    )
    print("refused, % of the GB asked for".ljust(32), *TITLES, sep="  ")
    for key in keys:
        cells = [
            f"{statistics.fmean(shares[key, title]):.2f}".rjust(len(title))
            for title in TITLES
        ]
        print(f"{CARDS} x {key}".ljust(32), *cells, sep="  ")
