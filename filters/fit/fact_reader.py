# SPDX-License-Identifier: Apache-2.0
"""Provider data of a request: what is cached, and what is read again.

What was read is remembered for the next request. One listing per request
tells by the providers' generations what has changed since, and only that
is read again; never one call per host.
"""

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from filters import provider_facts, request
from filters.fit import candidate_fit, vgpu_geometry
from filters.placement.generation_cache import GenerationCache
from filters.placement.provider_reader import ProviderReader
from filters.placement.queries import (
    MICROVERSION,
    Get,
    Problems,
    QueryError,
    each,
)
from filters.placement.responses import fetch_provider, fetch_taken, fetch_who
from nova_accel.model import flavors, names

__all__ = [
    "MICROVERSION",
    "FactReader",
    "FactSnapshot",
    "Get",
    "QueryError",
    "RequestMemories",
    "RequestMemory",
    "fetch_provider",
]

# Providers that one confirmation reads one by one, in three calls each.
# More are read in three calls for all.
_FEW_CONFIRMED = 1
# Classes of which a card may have enough left and yet no place.
_SHAPED = names.MEASURES | {names.GPU_CLASS}
Hosts = Sequence[Sequence[provider_facts.Candidate]]


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestMemory:
    """What was learned while one request's servers were placed.

    ``seen`` are the servers for which hosts were filtered already, in
    order, ``read`` those of which is known what they hold; ``taken`` tells
    which of them hold which provider, ``shares`` the suffixes of the groups
    that each has of it; ``offers`` is what is known of the candidates'
    providers, None until it was asked for, and ``exact`` what was read
    after the latest of these servers took its share. ``passed`` are the
    candidates that each server was left with, ``pruned`` those that each
    host, by uuid, lost, and ``lacks`` is why.
    """

    wanted: request.AcceleratorRequest
    seen: list[str] = dataclasses.field(default_factory=list)
    read: set[str] = dataclasses.field(default_factory=set)
    taken: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    shares: dict[str, tuple[tuple[str, ...], ...]] = dataclasses.field(
        default_factory=dict
    )
    offers: dict[str, provider_facts.ProviderFacts] | None = None
    exact: dict[str, provider_facts.ProviderFacts] = dataclasses.field(
        default_factory=dict
    )
    passed: dict[str, list[provider_facts.Candidate]] = dataclasses.field(
        default_factory=dict
    )
    pruned: dict[str, list[provider_facts.Candidate]] = dataclasses.field(
        default_factory=dict
    )
    lacks: dict[str, dict[tuple[str, str], str]] = dataclasses.field(
        default_factory=dict
    )


class RequestMemories:
    """One Memory for each request that is being scheduled.

    Nova passes one RequestSpec object for all servers of a request, so
    the object is the key, and what was learned goes when it goes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_spec: weakref.WeakKeyDictionary[object, RequestMemory] = (
            weakref.WeakKeyDictionary()
        )

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_spec)

    def recall(
        self, spec: object, wanted: request.AcceleratorRequest
    ) -> RequestMemory:
        """Return the memory of a request, a new one at its first server."""
        with self._lock:
            return self._by_spec.setdefault(spec, RequestMemory(wanted=wanted))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FactSnapshot:
    """Facts for one pass of the filter, and which reads failed.

    ``again`` tells that the server had its pass already: Nova looks for
    alternates of a request whose servers all have their hosts.
    """

    facts: provider_facts.Facts
    again: bool = False
    problems: tuple[QueryError, ...] = ()


def needs_facts(wanted: request.AcceleratorRequest, hosts: Hosts) -> bool:
    """Return whether anything has to be known of the hosts' providers.

    It has where there is a choice, where a policy may refuse by traits
    that Placement was not asked about, and where vGPUs are asked for: a
    card may have no place for one though its counters have room.
    """
    return (
        any(len(host) > 1 for host in hosts)
        or wanted.placing.numa is flavors.NumaPolicy.REQUIRED
        or wanted.placing.locality is not flavors.Locality.ANY
        or not _SHAPED.isdisjoint(wanted.classes)
    )


class FactReader:
    """Reads facts for the filter; a failed read leaves them out.

    One may serve several threads.

    :param get: asks Placement with MICROVERSION.
    :param cache: what is remembered; by default nothing yet.
    """

    def __init__(self, get: Get, cache: GenerationCache | None = None) -> None:
        self._get = get
        self._cache = GenerationCache() if cache is None else cache
        self._offers = ProviderReader(get, self._cache)

    def look(
        self,
        memory: RequestMemory,
        server: str,
        hosts: Hosts,
        known: vgpu_geometry.VgpuGeometry | None = None,
    ) -> FactSnapshot:
        """Return what is known of the hosts' candidates for a server.

        With all remembered that is one call per request, whatever the
        number of hosts, and none where nothing has to be known. For later
        servers of the request what earlier ones hold is read once, and
        the providers they hold are read anew, if any candidate still
        names them: these are exact.

        :param hosts: the allocation candidates of each host.
        :param known: says which cards' traits tell what is on them; of
            these the consumers are not read.
        """
        siblings = tuple(memory.seen)
        if server not in memory.seen:
            memory.seen.append(server)
        problems: Problems = []
        wanted = provider_facts.named(
            memory.wanted.classes, itertools.chain.from_iterable(hosts)
        )
        if (
            memory.offers is None
            and wanted
            and needs_facts(memory.wanted, hosts)
        ):
            is_one = sum(map(bool, hosts)) == 1
            memory.offers = self._offers.read(
                memory.wanted,
                wanted,
                wanted[0] if is_one else "",
                problems,
                known.is_occupancy_known if known else _never,
            )
        self._remember(memory, siblings, problems)
        self._read_taken(memory, wanted, problems, known)
        return FactSnapshot(
            facts={**(memory.offers or {}), **memory.exact},
            again=server in siblings,
            problems=tuple(problems),
        )

    def look_twice(
        self,
        memory: RequestMemory,
        server: str,
        hosts: Hosts,
        known: vgpu_geometry.VgpuGeometry,
    ) -> FactSnapshot:
        """Return the same; what speaks against a card is read anew first.

        :param known: reckons with what cards hold.
        """
        look = self.look(memory, server, hosts, known)
        doubtful = candidate_fit.doubts(
            memory.wanted,
            hosts,
            candidate_fit.HostFacts(facts=look.facts, cards=known),
        )
        if not doubtful:
            return look
        again = self.confirm(memory, doubtful, known)
        return dataclasses.replace(
            look,
            facts={**look.facts, **again.facts},
            problems=(*look.problems, *again.problems),
        )

    def confirm(
        self,
        memory: RequestMemory,
        uuids: Iterable[str],
        known: vgpu_geometry.VgpuGeometry | None = None,
    ) -> FactSnapshot:
        """Return some providers as they are at this moment.

        However many there are, that is a bounded number of calls: three
        for one provider, three for all and one each for some dozens of them
        whose places their traits do not tell. Those that changed while
        they were read, and what could not be read, are not exact and do
        not refuse. Later looks of the request know what was read.
        """
        problems: Problems = []
        chosen = list(dict.fromkeys(uuids))
        found = (
            self._exact(memory, chosen, problems)
            if len(chosen) <= _FEW_CONFIRMED
            else self._confirm_many(memory, chosen, problems, known)
        )
        memory.exact.update(found)
        return FactSnapshot(facts=found, problems=tuple(problems))

    def _confirm_many(
        self,
        memory: RequestMemory,
        uuids: Sequence[str],
        problems: Problems,
        known: vgpu_geometry.VgpuGeometry | None,
        tree: str = "",
    ) -> dict[str, provider_facts.ProviderFacts]:
        def is_placed(facts: provider_facts.ProviderFacts) -> bool:
            return known is not None and known.is_occupancy_known(
                facts,
                known.siblings(
                    memory.wanted.groups, memory.shares.get(facts.uuid, ())
                ),
            )

        found = self._offers.confirm(
            memory.wanted, uuids, problems, is_placed, tree
        )
        return {
            uuid: dataclasses.replace(
                one,
                taken_by=memory.taken.get(uuid, ()),
                shares=memory.shares.get(uuid, ()),
            )
            for uuid, one in found.items()
        }

    def _read_taken(
        self,
        memory: RequestMemory,
        named: Iterable[str],
        problems: Problems,
        known: vgpu_geometry.VgpuGeometry | None,
    ) -> None:
        """Read the providers that servers took from since they were read.

        The bulk read leaves out a host that is full now.
        """
        changed: dict[str, list[str]] = {}
        for uuid in named:
            if uuid in memory.taken and (
                uuid not in memory.exact
                or memory.exact[uuid].taken_by != memory.taken[uuid]
            ):
                memory.exact.pop(uuid, None)
                root = self._cached(memory, uuid).root
                changed.setdefault(root, []).append(uuid)
        for root, uuids in changed.items():
            if len(uuids) > _FEW_CONFIRMED:
                tree = uuids[0] if root else ""
                memory.exact |= self._confirm_many(
                    memory, uuids, problems, known, tree
                )
            rest = [uuid for uuid in uuids if uuid not in memory.exact]
            memory.exact |= self._exact(memory, rest, problems)

    def _exact(
        self, memory: RequestMemory, uuids: Iterable[str], problems: Problems
    ) -> dict[str, provider_facts.ProviderFacts]:
        def fetch(uuid: str) -> provider_facts.ProviderFacts:
            who = self._who(memory, uuid, problems)
            return dataclasses.replace(
                fetch_provider(self._get, who),
                taken_by=memory.taken.get(uuid, ()),
                shares=memory.shares.get(uuid, ()),
            )

        found = dict(each(uuids, fetch, problems))
        self._cache.remember(found.values())
        return found

    def _who(
        self, memory: RequestMemory, uuid: str, problems: Problems
    ) -> provider_facts.ProviderFacts:
        """Return whose facts are to be read, by uuid alone if need be."""
        cached = self._cached(memory, uuid)
        if cached.name:
            return cached
        try:
            return fetch_who(self._get, uuid)
        except QueryError as error:
            problems.append(error)
        return provider_facts.ProviderFacts(uuid=uuid, stock={})

    def _cached(
        self, memory: RequestMemory, uuid: str
    ) -> provider_facts.ProviderFacts:
        """Return what was read of a provider before, or its uuid alone."""
        return (
            (memory.offers or {}).get(uuid)
            or self._cache.recall([uuid]).get(uuid)
            or provider_facts.ProviderFacts(uuid=uuid, stock={})
        )

    def _remember(
        self,
        memory: RequestMemory,
        siblings: Iterable[str],
        problems: Problems,
    ) -> None:
        def fetch(server: str) -> Mapping[str, Mapping[str, int]]:
            return fetch_taken(self._get, server)

        unread = [one for one in siblings if one not in memory.read]
        for sibling, taken in each(unread, fetch, problems):
            if taken:
                memory.read.add(sibling)
            suffixes = _suffixes(memory, sibling, taken)
            for uuid, resources in taken.items():
                if memory.wanted.classes.intersection(resources):
                    before = memory.taken.get(uuid, ())
                    memory.taken[uuid] = (*before, sibling)
                    shares = memory.shares.get(uuid, ())
                    memory.shares[uuid] = (*shares, suffixes.get(uuid, ()))


def _never(facts: provider_facts.ProviderFacts) -> bool:
    return False


def _suffixes(
    memory: RequestMemory, server: str, taken: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[str, ...]]:
    """Return the suffixes of the groups that a server has of each provider.

    Nova claims the first candidate of a host; allocations name no groups,
    so that candidate is looked up by what it allocates.
    """
    claimed = next(
        (
            one
            for one in memory.passed.get(server, ())
            if {
                uuid: part["resources"]
                for uuid, part in one["allocations"].items()
            }
            == taken
        ),
        None,
    )
    found: dict[str, tuple[str, ...]] = {}
    for suffix, providers in (claimed or {}).get("mappings", {}).items():
        for uuid in providers:
            found[uuid] = (*found.get(uuid, ()), suffix)
    return found
