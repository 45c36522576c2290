# SPDX-License-Identifier: Apache-2.0
"""State of a request while its servers are scheduled.

The facts are those of Nova's own answer of allocation candidates. Of later
servers of the request they are computed: Nova claims the first candidate of
a host, and then counts the server in the host's state. Without a captured
answer (see candidate_capture) one query of each server replaces it.
"""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from filters import candidate_capture
from filters.fit import provider_facts, scores
from filters.fit.rejection import Rejection
from filters.placement import queries
from filters.placement.summaries import ProviderSummaries
from filters.request import AcceleratorRequest
from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client.provider_records import Get

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class FilteredHost:
    """Candidates removed from a host, and the reasons so far.

    ``rejections`` are keyed as in candidate_fit.
    """

    pruned: Sequence[provider_facts.Candidate] = ()
    rejections: dict[tuple[str, str], Rejection] = dataclasses.field(
        default_factory=dict
    )


class RequestState:
    """Providers of one request, and what its earlier servers have claimed.

    Used by the one thread that schedules the request.

    :param request: the accelerators of each server.
    :param captured: the providers of the candidates' trees, None if Nova's
        answer was not captured.
    """

    def __init__(
        self,
        request: AcceleratorRequest,
        captured: candidate_capture.Summaries | None = None,
    ) -> None:
        self.request = request
        self.captured = captured
        self.hosts: dict[str, FilteredHost] = {}
        #: Hosts on which no candidate is sure to fit, by uuid.
        self.doubtful: set[str] = set()
        #: Providers of the hosts' candidates, after the claims so far.
        self.facts: dict[str, providers.Provider] = {}
        #: Those with unknown partitions, by uuid.
        self.ambiguous: set[str] = set()
        #: Losses of the hosts, once they were weighed.
        self.losses: scores.RequestLosses | None = None
        self._summaries = ProviderSummaries(captured or {})
        self._changed: dict[str, providers.Provider] = {}
        self._servers: set[str] = set()
        self._server = ""
        #: Hosts that passed, and their numbers of servers at that time.
        self._offered: Sequence[Any] = ()
        self._servers_before: Sequence[int] = ()
        self._accelerators: (
            Mapping[str, Mapping[str, providers.Provider]] | None
        ) = None
        self._unchanged: dict[str, Sequence[provider_facts.Candidate]] = {}

    def find(self, uuid: str) -> providers.Provider | None:
        """Return a provider of this library, after the claims so far.

        None if it is another's, not known, or malformed.
        """
        provider = self._changed.get(uuid)
        if provider is None and uuid in self._summaries:
            try:
                provider = self._summaries[uuid]
            except errors.ServiceError:
                return None
        is_own = provider and names.OWNER_TRAIT in provider.traits
        return provider if is_own else None

    def find_all(self, uuids: Iterable[str]) -> dict[str, providers.Provider]:
        """Return the known ones of some providers."""
        return {
            uuid: provider
            for uuid in uuids
            if (provider := self.find(uuid)) is not None
        }

    def list_cards(self, host: str) -> tuple[providers.Provider, ...]:
        """Return the accelerators of a host, full ones too.

        :param host: uuid of its compute node.
        """
        return tuple(self.find_all(self._read_shapes(host)).values())

    def list_shapes(
        self, host: str, identified: Container[str]
    ) -> tuple[providers.Provider, ...]:
        """Return the accelerators of a host; equal ones are one object.

        :param identified: cards that are returned with their uuids, as
            those with claims of earlier servers are.
        """
        return tuple(
            (self.find(uuid) or shape)
            if uuid in identified or uuid in self._changed
            else shape
            for uuid, shape in self._read_shapes(host).items()
        )

    def _read_shapes(self, host: str) -> Mapping[str, providers.Provider]:
        if self._accelerators is None:
            self._accelerators = self._summaries.list_accelerators()
        return self._accelerators.get(host, {})

    def list_changed(self, hosts: Iterable[Any]) -> list[Any]:
        """Return the hosts that did not pass before, or changed since."""
        unchanged = self._unchanged
        return [
            host
            for host in hosts
            if (candidates := host.allocation_candidates) is None
            or candidates is not unchanged.get(host.uuid)
        ]

    def mark_changed(self, host: Any) -> None:
        """Let a host be filtered again."""
        self._unchanged.pop(host.uuid, None)

    # -- servers of the request -----------------------------------------------

    def begin(self, get: Get, server: str) -> bool:
        """Prepare the facts for a server.

        :param get: sends a query to Placement, if nothing was captured.
        :returns: whether the server was filtered before: Nova searches for
            alternates once all servers have their hosts.
        :raises ServiceError: that query failed.
        """
        if self.captured is not None:
            for host in [
                host
                for host, servers in zip(
                    self._offered, self._servers_before, strict=True
                )
                if host.num_instances > servers
            ]:
                if candidates := self._unchanged.get(host.uuid):
                    self._claim(self._server, candidates[0])
                    self.mark_changed(host)
        self._offered = self._servers_before = ()
        is_repeat = server in self._servers
        self._servers.add(server)
        self._server = server
        if self.captured is None:
            self._changed, self._unchanged, self.losses = {}, {}, None
            self._summaries = ProviderSummaries(
                queries.fetch_summaries(get, self.request.groups[0])
            )
            self._accelerators = None
        return is_repeat

    def offer(self, hosts: Sequence[Any]) -> None:
        """Record the hosts that passed, before Nova claims one of them."""
        self._offered = hosts
        self._servers_before = [host.num_instances for host in hosts]
        self._unchanged = {
            host.uuid: host.allocation_candidates for host in hosts
        }

    def replace(self, provider: providers.Provider) -> None:
        """Replace the facts of a provider."""
        self._changed[provider.uuid] = provider

    def _claim(self, server: str, candidate: provider_facts.Candidate) -> None:
        suffixes: dict[str, tuple[str, ...]] = {}
        for suffix, uuids in candidate.get("mappings", {}).items():
            for uuid in uuids:
                suffixes[uuid] = (*suffixes.get(uuid, ()), suffix)
        for uuid in provider_facts.list_providers(
            self.request.classes, (candidate,)
        ):
            provider = self.find(uuid)
            if provider is not None:
                units = candidate["allocations"][uuid]["resources"]
                self.replace(
                    _add_claim(provider, units, server, suffixes.get(uuid, ()))
                )


def _add_claim(
    provider: providers.Provider,
    units: Mapping[str, int],
    server: str,
    suffixes: tuple[str, ...],
) -> providers.Provider:
    """Return a provider with an allocation of a server of the request."""
    allocations = provider.allocations
    used = {name: c.used for name, c in provider.capacities.items()}
    return dataclasses.replace(
        provider.with_used(
            {n: used + units.get(n, 0) for n, used in used.items()}
        ),
        allocations=None if allocations is None else (*allocations, units),
        siblings={**provider.siblings, server: suffixes},
    )


class RequestStates:
    """One RequestState for each request that is being scheduled.

    Nova passes one RequestSpec object for all servers of a request, so the
    object is the key, and the state is freed with it. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_spec: weakref.WeakKeyDictionary[object, RequestState] = (
            weakref.WeakKeyDictionary()
        )
        self._is_logged = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_spec)

    def recall(
        self, spec: object, request: AcceleratorRequest
    ) -> RequestState:
        """Return the state of a request, a new one at its first server."""
        captured = candidate_capture.find_summaries(spec)
        with self._lock:
            state = self._by_spec.get(spec)
            if state is None or state.captured is not captured:
                state = RequestState(request, captured)
                self._by_spec[spec] = state
            must_log = captured is None and not self._is_logged
            self._is_logged |= must_log
        if must_log:
            LOG.info(
                "Nova's allocation candidates were not captured; accelerators"
                " are read from Placement with each request that needs one"
            )
        return state


@functools.cache
def shared() -> RequestStates:
    """Return the states that filter and weigher share."""
    return RequestStates()
