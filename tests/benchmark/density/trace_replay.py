# SPDX-License-Identifier: Apache-2.0
"""Share of a cluster's GPUs that the requests of a trace get.

As the paper of FGD (USENIX ATC 2023) measures it: requests arrive in random
order and never leave; one that fits nowhere is dropped; at 130 % load the
allocated share of all GPUs counts.

The library's own code decides: ``scores`` ranks the hosts, beside Nova's
CPUWeigher and RAMWeigher as the installation guide has them, and
``candidate_fit`` ranks the cards of the chosen host. Only the rules of
Placement are repeated here, and a judge that knows no policy recounts each
placement.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import pathlib
import random
import statistics
import time
from collections.abc import Hashable, Iterator, Sequence

from nova import weights

from filters.fit import candidate_fit, provider_facts, request_mix, scores
from filters.request import AcceleratorRequest
from nova_accel.catalog import loader
from nova_accel.config import conf
from nova_accel.geometry.scheduling import usable_share, vgpu_geometry
from nova_accel.model import flavors, names, providers
from tests.benchmark.density import traces
from tests.benchmark.density.traces import GPU_MILLI, Node, Request

SHARE_CLASS = "CUSTOM_PCI_GPU_MILLI"
LOAD = 1.3
# A card to oneself is no choice of density.
POLICIES = tuple(
    packing
    for packing in flavors.Packing
    if packing is not flavors.Packing.EXCLUSIVE
)
# The first seed of the published results.
FIRST_SEED = 42


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A request, its node and its GPUs by number."""

    request: Request
    node: int
    gpus: tuple[int, ...]


@functools.cache
def build_request(
    request: Request, packing: flavors.Packing
) -> AcceleratorRequest:
    """Return the accelerator groups of a request: one for each GPU."""
    several = request.gpus > 1
    return AcceleratorRequest(
        groups=tuple(
            flavors.RequestGroup(
                suffix=f"_{number}",
                resources={SHARE_CLASS: request.gpu_milli},
                required=frozenset({names.OWNER_TRAIT}),
            )
            for number in range(request.gpus)
        ),
        policy=flavors.SelectionPolicy(
            numa=flavors.NumaPolicy.NONE,
            locality=flavors.Locality.DIFFERENT_CARD
            if several
            else flavors.Locality.ANY,
            packing=packing,
        ),
    )


class Cluster:
    """Free CPU, memory and GPUs of the nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.cpu_milli = [n.cpu_milli for n in nodes]
        self.memory_mib = [n.memory_mib for n in nodes]
        self.gpus = [[GPU_MILLI] * n.gpus for n in nodes]
        self.cards = [_build_cards(n) for n in nodes]
        self.capacity = sum(n.gpus for n in nodes) * GPU_MILLI
        self.largest = [GPU_MILLI if n.gpus else 0 for n in nodes]
        self.whole = [n.gpus for n in nodes]

    def list_nodes(self, request: Request) -> list[int]:
        """Return the nodes with room, by number."""
        cpu, memory = request.cpu_milli, request.memory_mib
        return [
            number
            for number, (free_cpu, free_memory, largest, whole) in enumerate(
                zip(
                    self.cpu_milli,
                    self.memory_mib,
                    self.largest,
                    self.whole,
                    strict=True,
                )
            )
            if free_cpu >= cpu
            and free_memory >= memory
            and largest >= request.gpu_milli
            and (request.gpus < 2 or whole >= request.gpus)
            and (
                not request.models
                or self.nodes[number].model in request.models
            )
        ]

    def take(self, placed: Placed) -> None:
        """Allocate a request's CPU, memory and GPUs."""
        request, node = placed.request, placed.node
        self.cpu_milli[node] -= request.cpu_milli
        self.memory_mib[node] -= request.memory_mib
        gpus, cards = self.gpus[node], list(self.cards[node])
        for number in placed.gpus:
            gpus[number] -= request.gpu_milli
            cards[number] = cards[number].with_used(
                {SHARE_CLASS: GPU_MILLI - gpus[number]}
            )
        self.cards[node] = tuple(cards)
        self.largest[node] = max(gpus, default=0)
        self.whole[node] = gpus.count(GPU_MILLI)


def _build_cards(node: Node) -> tuple[providers.Provider, ...]:
    return tuple(
        providers.Provider(
            uuid=f"{node.name}_{number:02}",
            name=f"{node.name}_{number}",
            traits=frozenset(
                {names.OWNER_TRAIT, names.MODEL_PREFIX + node.model}
            ),
            capacities={
                SHARE_CLASS: providers.ClassCapacity(capacity=GPU_MILLI)
            },
        )
        for number in range(node.gpus)
    )


class Installed:
    """The library's choice, as installed beside Nova's weighers."""

    def __init__(self, cluster: Cluster, packing: flavors.Packing) -> None:
        self._cluster = cluster
        self._packing = packing
        self._geometry = vgpu_geometry.VgpuGeometry(loader.load())
        multiplier = conf.WeigherSettings().packing
        is_spread = packing is flavors.Packing.SPREAD
        self._multiplier = -multiplier if is_spread else multiplier
        self._fullness: dict[int, float] = {}
        self._mix = request_mix.RequestMix()
        self._shares = usable_share.UsableShares(
            self._geometry, self._mix.list_usual
        )
        self._measured = self._shares.measure()
        self._usual: object = None
        self._chosen: dict[Hashable, tuple[int, ...]] = {}
        self._losses: list[dict[Request, usable_share.HostLoss]] = [
            {} for _ in cluster.nodes
        ]

    def choose(self, request: Request, nodes: Sequence[int]) -> Placed:
        """Return the choice among the nodes with room, the first of equals."""
        self._count(request)
        cpu = [float(self._cluster.cpu_milli[n]) for n in nodes]
        memory = [float(self._cluster.memory_mib[n]) for n in nodes]
        # Nova's weighers have a multiplier of 1.0 each.
        weighed = [
            multiplied + by_cpu + by_memory
            for multiplied, by_cpu, by_memory in zip(
                self._weigh(request, nodes),
                weights.normalize(cpu),
                weights.normalize(memory),
                strict=True,
            )
        ]
        node = nodes[weighed.index(max(weighed))]
        return Placed(request, node, self._choose_gpus(request, node))

    def update(self, placed: Placed) -> None:
        """Forget what was computed for the node of a new placement."""
        self._fullness.pop(placed.node, None)
        self._losses[placed.node].clear()

    def _count(self, request: Request) -> None:
        """Count a request as the filter does."""
        groups = build_request(request, self._packing).groups
        self._mix.add(
            usable_share.build_shape(
                request.cpu_milli, request.memory_mib, groups
            )
        )
        usual = self._mix.list_usual()
        if usual is not self._usual:
            self._usual = usual
            self._measured = self._shares.measure()
            self._chosen.clear()
            for losses in self._losses:
                losses.clear()

    def _weigh(self, request: Request, nodes: Sequence[int]) -> list[float]:
        if self._packing is flavors.Packing.BEST_REMAINING:
            shares = scores.rank([self._find_loss(request, n) for n in nodes])
        elif request.gpus:
            shares = [self._compute_fullness(request, node) for node in nodes]
        else:
            return [0.0] * len(nodes)
        return [self._multiplier * w for w in weights.normalize(shares)]

    def _find_loss(self, request: Request, node: int) -> usable_share.HostLoss:
        losses = self._losses[node]
        if request not in losses:
            losses[request] = self._compute_loss(request, node)
        return losses[request]

    def _compute_loss(
        self, request: Request, node: int
    ) -> usable_share.HostLoss:
        cluster = self._cluster
        cards = cluster.cards[node]
        cpu, memory = cluster.cpu_milli[node], cluster.memory_mib[node]
        groups = build_request(request, self._packing).groups
        gpus = self._choose_gpus(request, node)
        return self._measured.compute(
            cards,
            {
                cards[gpu].uuid: (group,)
                for gpu, group in zip(gpus, groups, strict=True)
            },
            usable_share.HostRoom(cpu, memory),
            usable_share.HostRoom(
                cpu - request.cpu_milli, memory - request.memory_mib
            ),
        )

    def _compute_fullness(self, request: Request, node: int) -> float:
        """Return the fullness of a node: it depends on its cards alone."""
        if node not in self._fullness:
            cards = self._cluster.cards[node]
            share = scores.fullness(
                build_request(request, self._packing),
                cards,
                {card.uuid for card in cards},
            )
            self._fullness[node] = float(share or 0)
        return self._fullness[node]

    def _choose_gpus(self, request: Request, node: int) -> tuple[int, ...]:
        """Return the GPUs of the first candidate: the same on equal nodes."""
        gpus = self._cluster.gpus[node]
        if request.gpu_milli == GPU_MILLI:
            # Whole cards are alike.
            whole = [n for n, free in enumerate(gpus) if free == GPU_MILLI]
            return tuple(whole[: request.gpus])
        if not request.gpus:
            return ()
        key = request.gpu_milli, self._cluster.nodes[node].model, *gpus
        if key not in self._chosen:
            self._chosen[key] = self._select_gpus(request, node)
        return self._chosen[key]

    def _select_gpus(self, request: Request, node: int) -> tuple[int, ...]:
        gpus = self._cluster.gpus[node]
        cards = {card.uuid: card for card in self._cluster.cards[node]}
        candidates: list[provider_facts.Candidate] = [
            {
                "allocations": {
                    key: {"resources": {SHARE_CLASS: request.gpu_milli}}
                },
                "mappings": {"_0": [key]},
            }
            for key, free in zip(cards, gpus, strict=True)
            if free >= request.gpu_milli
        ]
        fitting, _ = candidate_fit.select(
            build_request(request, self._packing),
            candidates,
            candidate_fit.HostFacts(
                facts=cards, geometry=self._geometry, shares=self._shares
            ),
        )
        return tuple(
            list(cards).index(key)
            for candidate in fitting[:1]
            for key in candidate["allocations"]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
    """Result of a replay.

    ``share`` is the allocated percentage of all GPUs, ``invalid`` the number
    of placements that the judge refuses, ``seconds`` processor time.
    """

    share: float
    placed: int
    refused: int
    invalid: int
    seconds: float = dataclasses.field(default=0.0, compare=False)


def replay(
    nodes: Sequence[Node],
    arrivals: Sequence[Request],
    packing: flavors.Packing,
) -> Replayed:
    """Place the arrivals one after another, and recount the placements."""
    began = time.process_time()
    cluster = Cluster(nodes)
    policy = Installed(cluster, packing)
    history: list[Placed] = []
    for request in arrivals:
        hosts = cluster.list_nodes(request)
        if hosts:
            placed = policy.choose(request, hosts)
            cluster.take(placed)
            policy.update(placed)
            history.append(placed)
    allocated = sum(placed.request.total for placed in history)
    return Replayed(
        share=100 * allocated / cluster.capacity,
        placed=len(history),
        refused=len(arrivals) - len(history),
        invalid=count_invalid(nodes, history),
        seconds=time.process_time() - began,
    )


def count_invalid(nodes: Sequence[Node], history: Sequence[Placed]) -> int:
    """Return how many placements exceed their node or break the request."""
    free = [
        {"cpu": n.cpu_milli, "memory": n.memory_mib}
        | {str(gpu): GPU_MILLI for gpu in range(n.gpus)}
        for n in nodes
    ]
    invalid = 0
    for placed in history:
        request, node = placed.request, free[placed.node]
        node["cpu"] -= request.cpu_milli
        node["memory"] -= request.memory_mib
        for gpu in placed.gpus:
            node[str(gpu)] -= request.gpu_milli
        model = nodes[placed.node].model
        invalid += not (
            min(node.values()) >= 0
            and len(set(placed.gpus)) == len(placed.gpus) == request.gpus
            and (not request.models or model in request.models)
        )
    return invalid


def measure(
    nodes: pathlib.Path,
    requests: pathlib.Path,
    expected: pathlib.Path | None,
    policies: Sequence[str],
    seeds: int,
    workers: int,
) -> Iterator[str]:
    """Yield the lines of the table: published policies, then the library's.

    :param expected: published results, None for none.
    :param policies: values of ``POLICIES``.
    """
    published = (
        traces.read_published(expected, requests.stem) if expected else {}
    )
    yield f"{requests.stem}: % of all GPUs allocated at {LOAD:.0%} load"
    for name, share in published.items():
        yield f"{name:20}{share:8.2f}"
    jobs = [
        (nodes, requests, policy, FIRST_SEED + seed)
        for policy in policies
        for seed in range(seeds)
    ]
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        results = pool.map(_replay_files, jobs)
        for policy in policies:
            of_policy = list(itertools.islice(results, seeds))
            shares = [result.share for result in of_policy]
            seconds = statistics.fmean(r.seconds for r in of_policy)
            yield (
                f"{policy:20}{statistics.fmean(shares):8.2f}"
                f"   {min(shares):.2f} to {max(shares):.2f},"
                f" {sum(r.invalid for r in of_policy)} invalid placements,"
                f" {seconds:.0f} s a seed"
            )


def _replay_files(
    job: tuple[pathlib.Path, pathlib.Path, str, int],
) -> Replayed:
    node_file, request_file, policy, seed = job
    nodes = traces.read_nodes(node_file)
    arrivals = traces.draw_arrivals(
        traces.read_requests(request_file),
        sum(n.gpus for n in nodes) * GPU_MILLI,
        LOAD,
        random.Random(seed),  # noqa: S311
    )
    return replay(nodes, arrivals, flavors.Packing(policy))
