# SPDX-License-Identifier: Apache-2.0
"""ChosenHost of nova-scheduler on a snapshot: host and allocation candidate.

AcceleratorFilter's own code orders the candidates of each host, and the
scores of AcceleratorWeigher, beside Nova's weighers of CPU and memory as the
installation guide has them, order the hosts. Ties go to the first name.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from filters.fit import candidate_fit, provider_facts, request_mix, scores
from filters.request import AcceleratorRequest
from nova_accel import errors
from nova_accel.config import conf
from nova_accel.geometry.scheduling import usable_share
from placement_sync.client import nova_api
from placement_sync.fleet.explain import simulation
from placement_sync.planning import candidates, snapshot

# Malus of a host on which no card is sure to have room: the weigher's.
_DOUBT = -1000.0


class ChosenHost(NamedTuple):
    """Host, by uuid, and the candidate that Nova claims there."""

    host: str
    candidate: provider_facts.Candidate


@dataclasses.dataclass(slots=True)
class _Evaluation:
    """A host for a request: its first candidate, None if none fits.

    ``host`` and ``usual`` are what it was computed from.
    """

    host: snapshot.PlannedHost
    usual: usable_share.Usual
    candidate: provider_facts.Candidate | None
    score: usable_share.HostLoss | float | None = None
    is_doubtful: bool = False


class HostChoice:
    """Choices for requests, one after another.

    :param planned: the snapshot; its changes are noticed.
    """

    def __init__(self, planned: snapshot.CloudSnapshot) -> None:
        self._snapshot = planned
        self._geometry = planned.types.geometry
        self._mix = request_mix.RequestMix()
        self._shares = usable_share.UsableShares(
            self._geometry, self._mix.list_usual
        )
        self._evaluations: dict[
            candidates.CandidateQuery, dict[str, _Evaluation]
        ] = collections.defaultdict(dict)
        #: Whether a request had more candidates than Nova asks for.
        self.is_limited = False

    def learn(self, servers: Iterable[nova_api.Server]) -> None:
        """Count the requests of existing servers, as the scheduler did."""
        for server in servers:
            flavor = server.flavor
            if flavor is None:
                continue
            simulated = simulation.SimulatedRequest(specs=flavor.extra_specs)
            try:
                request = simulated.accelerators
            except errors.MalformedError:
                continue
            self._count(request, flavor.vcpus, flavor.memory_mb)

    def _count(
        self, request: AcceleratorRequest, vcpus: int, memory_mb: int
    ) -> None:
        self._mix.add(
            usable_share.build_shape(vcpus, memory_mb, request.groups)
        )

    def choose(
        self,
        query: candidates.CandidateQuery,
        excluded: Collection[str] = (),
    ) -> ChosenHost | None:
        """Return the choice for one server, None if no host can serve it.

        :param excluded: uuids of hosts that can't get the server.
        """
        self._count(
            query.request,
            query.needs.get("VCPU", 0),
            query.needs.get("MEMORY_MB", 0),
        )
        evaluated = [
            (each, each.candidate)
            for each in self._evaluate(query)
            if each.candidate is not None and each.host.uuid not in excluded
        ]
        if not evaluated:
            return None
        weights = _weigh([each for each, _ in evaluated])
        best, candidate = evaluated[weights.index(max(weights))]
        return ChosenHost(best.host.uuid, candidate)

    def _evaluate(self, query: candidates.CandidateQuery) -> list[_Evaluation]:
        """Return the evaluations of all hosts, by name."""
        usual = self._mix.list_usual()
        stored = self._evaluations[query]
        # Of cards in equal states the rank is computed once; its keys are
        # valid while the hosts are.
        ranks: dict[object, object] = {}
        losses = self._shares.measure()
        total = 0
        hosts = sorted(
            self._snapshot.hosts.values(), key=lambda host: host.name
        )
        evaluations = []
        for host in hosts:
            each = stored.get(host.uuid)
            if (
                each is None
                or each.host is not host
                or each.usual is not usual
            ):
                listed = query.list_candidates(host, simulation.MAX_CANDIDATES)
                total += len(listed)
                each = self._compute(query, host, listed, ranks, losses)
                each.usual = usual
                stored[host.uuid] = each
            evaluations.append(each)
        self.is_limited |= total >= simulation.MAX_CANDIDATES
        return evaluations

    def _compute(
        self,
        query: candidates.CandidateQuery,
        host: snapshot.PlannedHost,
        listed: Sequence[provider_facts.Candidate],
        ranks: dict[object, object],
        losses: usable_share.HostLosses,
    ) -> _Evaluation:
        request = query.request
        fitting, is_doubtful = self._select(request, host, listed, ranks)
        if not fitting:
            return _Evaluation(host, (), None)
        score: usable_share.HostLoss | float | None
        if request.policy.packing.is_by_loss:
            score = self._compute_loss(query, host, fitting[0], losses)
        else:
            uuids = provider_facts.list_providers(request.classes, fitting)
            share = scores.fullness(request, host.devices.values(), {*uuids})
            score = None if share is None else float(share)
        return _Evaluation(host, (), fitting[0], score, is_doubtful)

    def _select(
        self,
        request: AcceleratorRequest,
        host: snapshot.PlannedHost,
        listed: Sequence[provider_facts.Candidate],
        ranks: dict[object, object],
    ) -> tuple[Sequence[provider_facts.Candidate], bool]:
        """Return the fitting candidates, and whether the first is doubtful.

        Cards whose partitions only their allocations show get these one by
        one, as long as the first candidate has such a card.
        """
        ambiguous = self._snapshot.find_ambiguous(request, host)
        facts = {
            uuid: dataclasses.replace(device, allocations=None)
            if uuid in ambiguous
            else device
            for uuid, device in host.devices.items()
        }
        is_doubtful = False
        while True:
            fitting, _ = candidate_fit.select(
                request,
                listed,
                candidate_fit.HostFacts(
                    facts=facts,
                    geometry=self._geometry,
                    shares=self._shares,
                    ranks=ranks if not ambiguous else {},  # type: ignore[arg-type]
                ),
            )
            unread = [
                uuid
                for candidate in fitting[:1]
                for uuid in candidate["allocations"]
                if uuid in ambiguous and facts[uuid].allocations is None
            ]
            if not unread:
                return fitting, is_doubtful
            is_doubtful = True
            for uuid in unread:
                facts[uuid] = host.devices[uuid]

    def _compute_loss(
        self,
        query: candidates.CandidateQuery,
        host: snapshot.PlannedHost,
        candidate: provider_facts.Candidate,
        losses: usable_share.HostLosses,
    ) -> usable_share.HostLoss:
        room = usable_share.HostRoom(
            vcpus=_read_free(host, "VCPU"),
            memory_mb=_read_free(host, "MEMORY_MB"),
        )
        return losses.compute(
            tuple(host.devices.values()),
            provider_facts.list_added(query.request.groups, candidate),
            room,
            usable_share.HostRoom(
                room.vcpus - query.needs.get("VCPU", 0),
                room.memory_mb - query.needs.get("MEMORY_MB", 0),
            ),
        )


def _weigh(evaluated: Sequence[_Evaluation]) -> list[float]:
    """Return the weight of each host that can serve a server."""
    values = _score(evaluated)
    packing = conf.WeigherSettings().packing
    columns = [
        [packing * value for value in _normalize(values)],
        _normalize([_read_known(each.host, "VCPU") for each in evaluated]),
        _normalize(
            [_read_known(each.host, "MEMORY_MB") for each in evaluated]
        ),
        [_DOUBT * each.is_doubtful for each in evaluated],
    ]
    return [sum(each) for each in zip(*columns, strict=True)]


def _score(evaluated: Sequence[_Evaluation]) -> list[float]:
    """Return the score of each host: by its loss, or by its fullness."""
    losses = [
        each.score
        for each in evaluated
        if isinstance(each.score, usable_share.HostLoss)
    ]
    if len(losses) == len(evaluated):
        return scores.rank(losses)
    shares = [
        each.score for each in evaluated if isinstance(each.score, float)
    ]
    middle = (min(shares) + max(shares)) / 2 if shares else 0.0
    return [
        each.score if isinstance(each.score, float) else middle
        for each in evaluated
    ]


def _normalize(values: Sequence[float]) -> list[float]:
    """Return values from 0 to 1, as nova.weights.normalize does."""
    least, most = min(values), max(values)
    if least == most:
        return [0.0] * len(values)
    return [(value - least) / (most - least) for value in values]


def _read_free(host: snapshot.PlannedHost, name: str) -> float:
    capacity = host.capacities.get(name)
    return usable_share.PLENTY if capacity is None else capacity.free


def _read_known(host: snapshot.PlannedHost, name: str) -> float:
    """Return the free units that Nova's weighers see, 0 if unknown."""
    capacity = host.capacities.get(name)
    return 0.0 if capacity is None else float(capacity.free)
