# SPDX-License-Identifier: Apache-2.0
"""Plan of capacity: servers that are placed one after another.

First the servers of hosts and cards that the plan empties get another place,
the largest first; then the requested ones do. The number that fits is that
of the real choice, not an upper limit.
"""

import collections
import dataclasses
import uuid
from collections.abc import Iterable, Mapping

from nova_accel.model import names
from placement_sync.client import nova_api
from placement_sync.fleet.explain import server_request, simulation
from placement_sync.planning import candidates, host_choice, snapshot

_NOT_REPLAYED = "Nova's other filters are not replayed"
# Namespace of the uuids of planned servers.
_PLANNED = uuid.UUID("4f3c0f0e-6a52-4d0c-9b61-6a0a35f4ab11")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Request for one server: the first of its choices that fits is taken.

    ``excluded`` are the reasons why hosts can't get it, by uuid. ``apart`` is
    the id of its group with anti-affinity, empty without one.
    """

    choices: tuple[simulation.SimulatedRequest, ...]
    excluded: Mapping[str, str] = dataclasses.field(default_factory=dict)
    apart: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """Servers of a flavor or profile; as many as fit without a ``count``."""

    name: str
    request: PlacementRequest
    count: int | None = None
    flavor: nova_api.ServerFlavor | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvictedServer:
    """Server whose host or card the plan empties.

    ``problem`` is why its request is not known, empty if it is.
    """

    server: nova_api.Server
    host: str
    size: int = 0
    request: PlacementRequest | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """Servers of a request that fit, by host; empty hosts are left out.

    ``blocked`` are the numbers of devices by the reason that excludes them
    for one more server, without a request that fits completely.
    """

    request: CapacityRequest
    by_host: Mapping[str, int]
    blocked: Mapping[str, int]

    @property
    def fits(self) -> int:
        return sum(self.by_host.values())

    @property
    def is_complete(self) -> bool:
        """Return whether all requested servers fit."""
        count = self.request.count
        return bool(self.fits) if count is None else self.fits >= count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MovedServer:
    """Evicted server with its new host."""

    evicted: EvictedServer
    target: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HomelessServer:
    """Evicted server without a place; ``blocked`` as in RequestResult.

    It is empty for a server with a ``problem``.
    """

    evicted: EvictedServer
    blocked: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """Result of a plan; ``notes`` are its limits."""

    results: tuple[RequestResult, ...]
    moved: tuple[MovedServer, ...] = ()
    homeless: tuple[HomelessServer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Return whether all servers have a place."""
        return not self.homeless and all(r.is_complete for r in self.results)


class CapacityPlanner:
    """Places servers on a snapshot, and changes it so.

    :param planned: the snapshot.
    :param drains: the reasons of drained devices, by uuid.
    """

    def __init__(
        self,
        planned: snapshot.CloudSnapshot,
        drains: Mapping[str, str] | None = None,
    ) -> None:
        self._snapshot = planned
        self._drains = drains or {}
        self._choice = host_choice.HostChoice(planned)
        self._choice.learn(planned.servers.values())
        self._queries: dict[object, candidates.CandidateQuery] = {}
        self._apart: dict[str, set[str]] = collections.defaultdict(set)
        self._notes: dict[str, None] = {}
        #: What each planned server was allocated, in order.
        self.placed: list[tuple[nova_api.Server, host_choice.ChosenHost]] = []

    def plan(
        self,
        requests: Iterable[CapacityRequest],
        evicted: Iterable[EvictedServer] = (),
    ) -> CapacityPlan:
        """Return where the servers go.

        :raises RejectedError: Placement would reject a request.
        :raises MalformedError: an extra spec has a value that is not
            allowed.
        """
        moved: list[MovedServer] = []
        homeless: list[HomelessServer] = []
        for each in sorted(evicted, key=_sort_evicted):
            request = each.request
            target = self._place(each.server, request) if request else ""
            if target:
                moved.append(MovedServer(evicted=each, target=target))
            else:
                blocked = self._explain(request) if request else {}
                homeless.append(HomelessServer(evicted=each, blocked=blocked))
        results = tuple(map(self._fill, requests))
        return CapacityPlan(
            results=results,
            moved=tuple(moved),
            homeless=tuple(homeless),
            notes=(*self._notes, *([_NOT_REPLAYED] if self._queries else [])),
        )

    def _fill(self, request: CapacityRequest) -> RequestResult:
        """Place servers of a request until one has no place."""
        by_host: collections.Counter[str] = collections.Counter()
        while request.count is None or by_host.total() < request.count:
            server = nova_api.Server(
                uuid=str(uuid.uuid5(_PLANNED, str(len(self.placed)))),
                name=f"{request.name} {by_host.total() + 1}",
                project="planned",
                flavor=request.flavor,
            )
            host = self._place(server, request.request)
            if not host:
                break
            by_host[host] += 1
        result = RequestResult(
            request=request, by_host=dict(sorted(by_host.items())), blocked={}
        )
        if request.count is not None and result.is_complete:
            return result
        return dataclasses.replace(
            result, blocked=self._explain(request.request)
        )

    def _place(
        self, server: nova_api.Server, request: PlacementRequest
    ) -> str:
        """Place a server; return its host's name, empty without a place."""
        excluded = self._list_excluded(request)
        for simulated in request.choices:
            query = self._find_query(simulated)
            choice = self._choice.choose(query, excluded)
            for note in simulation.list_limits(
                query.request, self._choice.is_limited
            ):
                self._notes[note] = None
            if choice is not None:
                self._snapshot.place(
                    server, choice.host, query.request, choice.candidate
                )
                self.placed.append((server, choice))
                if request.apart:
                    self._apart[request.apart].add(choice.host)
                return self._snapshot.hosts[choice.host].name
        return ""

    def _list_excluded(self, request: PlacementRequest) -> Mapping[str, str]:
        """Return the excluded hosts, with those that got its group."""
        return {
            **dict.fromkeys(
                self._apart[request.apart] if request.apart else (),
                server_request.SAME_GROUP,
            ),
            **request.excluded,
        }

    def _find_query(
        self, simulated: simulation.SimulatedRequest
    ) -> candidates.CandidateQuery:
        """Return the query of a request, the same one for equal requests."""
        key = (
            tuple(sorted(simulated.specs.items())),
            tuple(sorted(simulated.needs.items())),
        )
        if key not in self._queries:
            self._queries[key] = candidates.CandidateQuery.build(simulated)
        return self._queries[key]

    def _explain(self, request: PlacementRequest) -> dict[str, int]:
        """Return why no device serves one more, with numbers of devices.

        Of several choices the last one is explained.
        """
        simulated = request.choices[-1]
        query = self._find_query(simulated)
        planned = self._snapshot
        cloud = planned.build_fleet().cloud
        context = simulation.SimulationContext(
            cloud=cloud,
            disabled=cloud.disabled,
            excluded=self._list_excluded(request),
            drains=self._drains,
        )
        answer = simulation.CandidateAnswer(
            by_host={
                host.uuid: query.list_candidates(
                    host, simulation.MAX_CANDIDATES
                )
                for host in planned.hosts.values()
            },
            facts={d.uuid: d for d in cloud.devices},
        )
        verdicts = simulation.judge_hosts(
            simulated, context, answer, planned.types
        )
        reasons = collections.Counter(
            card.why for host in verdicts for card in host.cards if card.why
        )
        if not verdicts:
            reasons[simulation.NO_CARD] = 0
        return dict(reasons.most_common())


def _sort_evicted(evicted: EvictedServer) -> tuple[object, ...]:
    """Return a key by which the largest servers come first."""
    return -evicted.size, evicted.server.name, evicted.server.uuid


def measure_size(amounts: Iterable[Mapping[str, int]]) -> int:
    """Return how much of cards a server has: MiB, or units without any."""
    total: collections.Counter[str] = collections.Counter()
    for units in amounts:
        total.update(units)
    return total[names.GPU_MEMORY_CLASS] or total.total()
