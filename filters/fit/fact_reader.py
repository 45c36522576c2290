# SPDX-License-Identifier: Apache-2.0
"""Providers of a request, each as it was last read.

The memory of a request has one value for each provider. It is read once for
all servers of the request, mostly from the cache of former requests. It is
read again, to be exact, when an earlier server has claimed of the provider
or when it would reject a candidate.
"""

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence

from filters import provider_facts
from filters.fit import candidate_fit
from filters.fit.rejection import Rejection
from filters.placement import queries
from filters.placement.provider_reader import ProviderReader
from filters.request import AcceleratorRequest
from nova_accel import errors
from nova_accel.geometry import card_state, vgpu_geometry
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records
from placement_sync.client.provider_cache import ProviderCache
from placement_sync.client.provider_records import Get

# Providers that one confirmation reads one by one, in three queries each.
# More are read in three queries for all.
_FEW_CONFIRMED = 1
# Resource classes of which a card may have enough units and yet no
# placement.
_PLACED_CLASSES = names.MEASURES | {names.GPU_CLASS}
# The allocation candidates of each host.
Hosts = Sequence[Sequence[provider_facts.Candidate]]
_Siblings = dict[str, dict[str, tuple[str, ...]]]


@dataclasses.dataclass(slots=True)
class FilteredServer:
    """A server of a request, once it was filtered.

    ``candidates`` are those that passed. ``claimed`` are the suffixes of
    its groups by provider, empty until it has allocations.
    """

    candidates: Sequence[provider_facts.Candidate] = ()
    claimed: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(slots=True)
class FilteredHost:
    """Candidates removed from a host, and the reasons so far.

    ``rejections`` are keyed as in candidate_fit.
    """

    pruned: Sequence[provider_facts.Candidate] = ()
    rejections: dict[tuple[str, str], Rejection] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestMemory:
    """State of one request, shared by the scheduling of all its servers.

    ``servers`` are those filtered so far, by uuid and in order, ``hosts``
    those filtered by uuid. ``facts`` are the candidates' providers as
    last read; ``is_read`` is set once all of them were.
    """

    request: AcceleratorRequest
    servers: dict[str, FilteredServer] = dataclasses.field(
        default_factory=dict
    )
    hosts: dict[str, FilteredHost] = dataclasses.field(default_factory=dict)
    facts: dict[str, providers.Provider] = dataclasses.field(
        default_factory=dict
    )
    is_read: bool = False

    def list_siblings(self) -> _Siblings:
        """Return ``Provider.siblings`` of each provider claimed so far."""
        siblings: _Siblings = {}
        for server, filtered in self.servers.items():
            for uuid, suffixes in filtered.claimed.items():
                siblings.setdefault(uuid, {})[server] = suffixes
        return siblings


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
    problems: tuple[errors.ServiceError, ...] = ()


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

    :param get: sends queries to Placement.
    :param cache: provider data of former requests; by default empty.
    """

    def __init__(self, get: Get, cache: ProviderCache | None = None) -> None:
        self._get = get
        self._providers = ProviderReader(
            get, ProviderCache() if cache is None else cache
        )

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
        problems: queries.Problems = []
        is_repeat = server in memory.servers
        self._read_claims(memory, problems)
        memory.servers.setdefault(server, FilteredServer())
        uuids = provider_facts.list_providers(
            memory.request.classes, itertools.chain.from_iterable(hosts)
        )
        if not memory.is_read and uuids and needs_facts(memory.request, hosts):
            is_one_host = sum(map(bool, hosts)) == 1
            facts = self._providers.read(
                memory.request,
                uuids,
                uuids[0] if is_one_host else "",
                problems,
                states.is_occupancy_known if states else _never,
            )
            memory.facts = {**facts, **memory.facts}
            memory.is_read = True
        self._read_claimed(memory, uuids, problems, states)
        return FactSnapshot(
            facts=dict(memory.facts),
            is_repeat=is_repeat,
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
            facts=dict(memory.facts),
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
        problems: queries.Problems = []
        unique = list(dict.fromkeys(uuids))
        facts = self._read_present(
            memory, unique, problems, states, memory.list_siblings()
        )
        return FactSnapshot(facts=facts, problems=tuple(problems))

    def _read_present(
        self,
        memory: RequestMemory,
        uuids: Sequence[str],
        problems: queries.Problems,
        states: card_state.CardStates | None,
        siblings: _Siblings,
        tree: str = "",
    ) -> dict[str, providers.Provider]:
        """Read providers again: one alone, or all of them together."""

        def is_placed(facts: providers.Provider) -> bool:
            return states is not None and states.is_occupancy_known(
                facts,
                states.list_pending(
                    memory.request.groups,
                    siblings.get(facts.uuid, {}).values(),
                ),
            )

        facts = (
            self._providers.fetch(uuids, memory.facts, problems)
            if len(uuids) <= _FEW_CONFIRMED
            else self._providers.confirm(
                memory.request, uuids, problems, is_placed, tree
            )
        )
        present = {
            uuid: dataclasses.replace(
                provider, siblings=siblings.get(uuid, {})
            )
            for uuid, provider in facts.items()
        }
        memory.facts.update(present)
        return present

    def _read_claimed(
        self,
        memory: RequestMemory,
        uuids: Iterable[str],
        problems: queries.Problems,
        states: card_state.CardStates | None,
    ) -> None:
        """Read providers that siblings claimed since they were read.

        The bulk read leaves out a host that is full now.
        """
        siblings = memory.list_siblings()
        changed: dict[str, list[str]] = {}
        for uuid in filter(siblings.__contains__, uuids):
            provider = self._providers.find(uuid, memory.facts)
            if provider.siblings != siblings[uuid]:
                if uuid in memory.facts:
                    memory.facts[uuid] = dataclasses.replace(
                        provider, is_exact=False
                    )
                changed.setdefault(provider.root, []).append(uuid)
        for root, of_tree in changed.items():
            tree = of_tree[0] if root else ""
            present = self._read_present(
                memory, of_tree, problems, states, siblings, tree
            )
            for uuid in of_tree if len(of_tree) > _FEW_CONFIRMED else ():
                if uuid not in present:
                    self._read_present(
                        memory, [uuid], problems, states, siblings
                    )

    def _read_claims(
        self, memory: RequestMemory, problems: queries.Problems
    ) -> None:
        """Read the allocations of earlier servers, each once."""

        def fetch(server: str) -> provider_records.Amounts:
            return provider_records.fetch_consumer(self._get, server)[0]

        unread = [s for s, f in memory.servers.items() if s and not f.claimed]
        for server, allocations in queries.fetch_each(unread, fetch, problems):
            filtered = memory.servers[server]
            suffixes = _find_suffixes(filtered.candidates, allocations)
            filtered.claimed = {
                uuid: suffixes.get(uuid, ())
                for uuid, resources in allocations.items()
                if memory.request.classes.intersection(resources)
            }


def _never(facts: providers.Provider) -> bool:
    return False


def _find_suffixes(
    candidates: Iterable[provider_facts.Candidate],
    allocations: provider_records.Amounts,
) -> dict[str, tuple[str, ...]]:
    """Return the suffixes of a server's groups on each provider.

    Allocations have no groups, so they are compared with the candidates
    that the server had: Nova claims the first one of a host.
    """
    claimed = next(
        (
            candidate
            for candidate in candidates
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
