# SPDX-License-Identifier: Apache-2.0
"""Provider data of a request: cached data, and providers read again.

Provider data are cached between requests. One listing per request has the
providers' generations; only providers with another generation are read
again. There is never a query per host.
"""

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from filters import provider_facts
from filters.fit import candidate_fit, card_state, vgpu_geometry
from filters.fit.rejection import Rejection
from filters.placement.provider_reader import ProviderReader
from filters.placement.queries import (
    MICROVERSION,
    Get,
    Problems,
    QueryError,
    fetch_each,
    fetch_identity,
    fetch_provider,
    fetch_server_allocations,
)
from filters.request import AcceleratorRequest
from nova_accel.model import flavors, names, providers
from placement_sync.client.provider_cache import ProviderCache

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

# Providers that one confirmation reads one by one, in three queries each.
# More are read in three queries for all.
_FEW_CONFIRMED = 1
# Resource classes of which a card may have enough units and yet no
# placement.
_PLACED_CLASSES = names.MEASURES | {names.GPU_CLASS}
# The allocation candidates of each host.
Hosts = Sequence[Sequence[provider_facts.Candidate]]


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestMemory:
    """State of one request, shared by the scheduling of all its servers.

    Servers:

    - ``servers``: filtered so far, in order
    - ``read_servers``: those whose allocations were read

    By provider uuid:

    - ``sibling_servers``, ``sibling_groups``: as in ProviderFacts
    - ``facts``: the candidates' providers, None until they are read
    - ``exact_facts``: providers read after the latest sibling server

    Candidates:

    - ``passed``: those that each server had after the filter
    - ``pruned``: those removed from each host, by its uuid
    - ``rejections``: the reasons, by host and then as in candidate_fit
    """

    request: AcceleratorRequest
    servers: list[str] = dataclasses.field(default_factory=list)
    read_servers: set[str] = dataclasses.field(default_factory=set)
    sibling_servers: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    sibling_groups: dict[str, tuple[tuple[str, ...], ...]] = dataclasses.field(
        default_factory=dict
    )
    facts: dict[str, providers.Provider] | None = None
    exact_facts: dict[str, providers.Provider] = dataclasses.field(
        default_factory=dict
    )
    passed: dict[str, list[provider_facts.Candidate]] = dataclasses.field(
        default_factory=dict
    )
    pruned: dict[str, list[provider_facts.Candidate]] = dataclasses.field(
        default_factory=dict
    )
    rejections: dict[str, dict[tuple[str, str], Rejection]] = (
        dataclasses.field(default_factory=dict)
    )


class RequestMemories:
    """One RequestMemory for each request that is being scheduled.

    Nova passes one RequestSpec object for all servers of a request, so
    the object is the key, and the memory is freed with it.
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
        self, spec: object, request: AcceleratorRequest
    ) -> RequestMemory:
        """Return the memory of a request, a new one at its first server."""
        with self._lock:
            return self._by_spec.setdefault(
                spec, RequestMemory(request=request)
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FactSnapshot:
    """Facts for one pass of the filter, and the failed queries.

    ``is_repeat`` is True if the server was filtered before: Nova searches
    for alternates of a request whose servers all have their hosts.
    """

    facts: provider_facts.Facts
    is_repeat: bool = False
    problems: tuple[QueryError, ...] = ()


def needs_facts(request: AcceleratorRequest, hosts: Hosts) -> bool:
    """Return whether provider data are needed to filter the hosts.

    They are if a host has several candidates, if a policy may reject by
    traits that are not in Nova's query, and for vGPUs: a card may have no
    placement for one though its inventories have room.
    """
    return (
        any(len(candidates) > 1 for candidates in hosts)
        or request.policy.numa is flavors.NumaPolicy.REQUIRED
        or request.policy.locality is not flavors.Locality.ANY
        or not _PLACED_CLASSES.isdisjoint(request.classes)
    )


class FactReader:
    """Reader of facts for the filter; thread-safe.

    Providers whose queries fail are missing in the result.

    :param get: sends queries with MICROVERSION.
    :param cache: provider data of former requests; by default empty.
    """

    def __init__(self, get: Get, cache: ProviderCache | None = None) -> None:
        self._get = get
        self._cache = ProviderCache() if cache is None else cache
        self._providers = ProviderReader(get, self._cache)

    def read(
        self,
        memory: RequestMemory,
        server: str,
        hosts: Hosts,
        states: card_state.CardStates | None = None,
    ) -> FactSnapshot:
        """Return the facts of the hosts' candidates for a server.

        If all are cached that is one query per request for any number of
        hosts, and none if no facts are needed. For later servers of the
        request the allocations of earlier ones are read once, and their
        providers are read again if any candidate still names them; those
        facts are exact.

        :param hosts: the allocation candidates of each host.
        :param states: if given, allocations of a card are not read if its
            traits list all its partitions.
        """
        siblings = tuple(memory.servers)
        if server not in memory.servers:
            memory.servers.append(server)
        problems: Problems = []
        uuids = provider_facts.list_providers(
            memory.request.classes, itertools.chain.from_iterable(hosts)
        )
        if (
            memory.facts is None
            and uuids
            and needs_facts(memory.request, hosts)
        ):
            is_one_host = sum(map(bool, hosts)) == 1
            memory.facts = self._providers.read(
                memory.request,
                uuids,
                uuids[0] if is_one_host else "",
                problems,
                states.is_occupancy_known if states else _never,
            )
        self._read_siblings(memory, siblings, problems)
        self._read_claimed(memory, uuids, problems, states)
        return FactSnapshot(
            facts={**(memory.facts or {}), **memory.exact_facts},
            is_repeat=server in siblings,
            problems=tuple(problems),
        )

    def read_confirmed(
        self,
        memory: RequestMemory,
        server: str,
        hosts: Hosts,
        geometry: vgpu_geometry.VgpuGeometry,
    ) -> FactSnapshot:
        """Return the same facts; providers that would reject are read again.

        :param geometry: computes whether vGPUs fit on a card.
        """
        snapshot = self.read(memory, server, hosts, geometry.states)
        doubtful = candidate_fit.find_doubtful(
            memory.request,
            hosts,
            candidate_fit.HostFacts(facts=snapshot.facts, geometry=geometry),
        )
        if not doubtful:
            return snapshot
        confirmed = self.confirm(memory, doubtful, geometry.states)
        return dataclasses.replace(
            snapshot,
            facts={**snapshot.facts, **confirmed.facts},
            problems=(*snapshot.problems, *confirmed.problems),
        )

    def confirm(
        self,
        memory: RequestMemory,
        uuids: Iterable[str],
        states: card_state.CardStates | None = None,
    ) -> FactSnapshot:
        """Return the present state of some providers.

        The number of queries is bounded: three for one provider; for more,
        three for all and one each for some dozens of those whose traits do
        not list their partitions. Providers that changed between the
        queries are not exact, and those that could not be read are missing,
        so neither are rejected. Later reads of the request use the result.
        """
        problems: Problems = []
        unique = list(dict.fromkeys(uuids))
        facts = (
            self._read_exact(memory, unique, problems)
            if len(unique) <= _FEW_CONFIRMED
            else self._confirm_many(memory, unique, problems, states)
        )
        memory.exact_facts.update(facts)
        return FactSnapshot(facts=facts, problems=tuple(problems))

    def _confirm_many(
        self,
        memory: RequestMemory,
        uuids: Sequence[str],
        problems: Problems,
        states: card_state.CardStates | None,
        tree: str = "",
    ) -> dict[str, providers.Provider]:
        def is_placed(facts: providers.Provider) -> bool:
            return states is not None and states.is_occupancy_known(
                facts,
                states.list_pending(
                    memory.request.groups,
                    memory.sibling_groups.get(facts.uuid, ()),
                ),
            )

        confirmed = self._providers.confirm(
            memory.request, uuids, problems, is_placed, tree
        )
        return {
            uuid: _with_siblings(memory, facts)
            for uuid, facts in confirmed.items()
        }

    def _read_claimed(
        self,
        memory: RequestMemory,
        uuids: Iterable[str],
        problems: Problems,
        states: card_state.CardStates | None,
    ) -> None:
        """Read providers that siblings claimed since they were read.

        The bulk read leaves out a host that is full now.
        """
        changed: dict[str, list[str]] = {}
        for uuid in uuids:
            if uuid in memory.sibling_servers and (
                uuid not in memory.exact_facts
                or memory.exact_facts[uuid].sibling_servers
                != memory.sibling_servers[uuid]
            ):
                memory.exact_facts.pop(uuid, None)
                root = self._find_cached(memory, uuid).root
                changed.setdefault(root, []).append(uuid)
        for root, of_tree in changed.items():
            if len(of_tree) > _FEW_CONFIRMED:
                tree = of_tree[0] if root else ""
                memory.exact_facts |= self._confirm_many(
                    memory, of_tree, problems, states, tree
                )
            missing = [u for u in of_tree if u not in memory.exact_facts]
            memory.exact_facts |= self._read_exact(memory, missing, problems)

    def _read_exact(
        self, memory: RequestMemory, uuids: Iterable[str], problems: Problems
    ) -> dict[str, providers.Provider]:
        def fetch(uuid: str) -> providers.Provider:
            identity = self._find_identity(memory, uuid, problems)
            return _with_siblings(memory, fetch_provider(self._get, identity))

        facts = dict(fetch_each(uuids, fetch, problems))
        self._providers.store(facts.values())
        return facts

    def _find_identity(
        self, memory: RequestMemory, uuid: str, problems: Problems
    ) -> providers.Provider:
        """Return a provider with its name, or only its uuid if unreadable."""
        cached = self._find_cached(memory, uuid)
        if cached.name:
            return cached
        try:
            return fetch_identity(self._get, uuid)
        except QueryError as error:
            problems.append(error)
        return providers.Provider(uuid=uuid)

    def _find_cached(
        self, memory: RequestMemory, uuid: str
    ) -> providers.Provider:
        """Return the facts of an earlier read, or only the uuid."""
        return (
            (memory.facts or {}).get(uuid)
            or self._cache.find([uuid]).get(uuid)
            or providers.Provider(uuid=uuid)
        )

    def _read_siblings(
        self,
        memory: RequestMemory,
        siblings: Iterable[str],
        problems: Problems,
    ) -> None:
        """Read the allocations of earlier servers, each once."""

        def fetch(server: str) -> Mapping[str, Mapping[str, int]]:
            return fetch_server_allocations(self._get, server)

        unread = [s for s in siblings if s not in memory.read_servers]
        for sibling, allocations in fetch_each(unread, fetch, problems):
            if allocations:
                memory.read_servers.add(sibling)
            suffixes = _find_suffixes(memory, sibling, allocations)
            for uuid, resources in allocations.items():
                if memory.request.classes.intersection(resources):
                    servers = memory.sibling_servers.get(uuid, ())
                    memory.sibling_servers[uuid] = (*servers, sibling)
                    groups = memory.sibling_groups.get(uuid, ())
                    memory.sibling_groups[uuid] = (
                        *groups,
                        suffixes.get(uuid, ()),
                    )


def _never(facts: providers.Provider) -> bool:
    return False


def _with_siblings(
    memory: RequestMemory, facts: providers.Provider
) -> providers.Provider:
    """Return facts with the earlier servers that have allocations."""
    return dataclasses.replace(
        facts,
        sibling_servers=memory.sibling_servers.get(facts.uuid, ()),
        sibling_groups=memory.sibling_groups.get(facts.uuid, ()),
    )


def _find_suffixes(
    memory: RequestMemory,
    server: str,
    allocations: Mapping[str, Mapping[str, int]],
) -> dict[str, tuple[str, ...]]:
    """Return the suffixes of a server's groups on each provider.

    Allocations have no groups, so they are compared with the candidates
    that the server had: Nova claims the first one of a host.
    """
    claimed = next(
        (
            candidate
            for candidate in memory.passed.get(server, ())
            if {
                uuid: part["resources"]
                for uuid, part in candidate["allocations"].items()
            }
            == allocations
        ),
        None,
    )
    suffixes: dict[str, tuple[str, ...]] = {}
    for suffix, uuids in (claimed or {}).get("mappings", {}).items():
        for uuid in uuids:
            suffixes[uuid] = (*suffixes.get(uuid, ()), suffix)
    return suffixes
