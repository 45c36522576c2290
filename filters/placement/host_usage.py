# SPDX-License-Identifier: Apache-2.0
"""Hosts with accelerators and their use, read in bulk for the weigher.

Read in bulk, never host by host, and kept for a while.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping

from filters import provider_facts
from filters.placement import queries, responses, stale_cache
from nova_accel.model import flavors

# Hosts get accelerators by somebody's hand, not while servers are placed.
_HOMES_SECONDS = 300.0
_RETRY_SECONDS = 30.0
# A cloud of a thousand hosts is listed in less.
_PATIENCE_SECONDS = 3.0

# The cards of each host, by the uuid of its compute node.
Cards = Mapping[str, tuple[provider_facts.ProviderFacts, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorHosts:
    """The compute nodes that have accelerators: all, and by card; uuids."""

    nodes: frozenset[str] = frozenset()
    by_card: Mapping[str, str] = dataclasses.field(default_factory=dict)


class HostUsage:
    """The hosts' accelerators as Placement tells; threads may share it.

    What can't be read is None: nobody must wait for it, or fail by it.

    :param get: asks Placement with questions.MICROVERSION.
    :param seconds: for how long is kept how full cards are.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        get: queries.Get,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get = get
        self._homes: stale_cache.StaleCache[AcceleratorHosts] = (
            stale_cache.StaleCache(_times(_HOMES_SECONDS), clock=clock)
        )
        self._cards: stale_cache.StaleCache[Cards] = stale_cache.StaleCache(
            _times(seconds), clock=clock
        )

    def homes(self) -> AcceleratorHosts | None:
        """Return which compute nodes have accelerators."""
        return self._homes.get(
            "which hosts have accelerators", lambda: fetch_homes(self._get)
        )

    def cards(self) -> Cards | None:
        """Return the accelerators of each host where a server may run."""
        homes = self.homes()
        if homes is None or not homes.nodes:
            return None if homes is None else {}
        return self._cards.get(
            "how full accelerators are",
            lambda: _by_host(
                responses.fetch_everything(self._get), homes.by_card
            ),
        )


def fetch_homes(get: queries.Get) -> AcceleratorHosts:
    """Return the compute nodes of all our providers.

    :raises FactsError: Placement did not answer.
    """
    every = flavors.RequestGroup(suffix="", resources={})
    listed = responses.fetch_listing(get, (every,))
    by_card = {uuid: one.root for uuid, one in listed.items()}
    return AcceleratorHosts(nodes=frozenset(by_card.values()), by_card=by_card)


def _times(fresh: float) -> stale_cache.CacheTimes:
    return stale_cache.CacheTimes(
        fresh=fresh, retry=_RETRY_SECONDS, patience=_PATIENCE_SECONDS
    )


def _by_host(
    providers: provider_facts.Facts, homes: Mapping[str, str]
) -> Cards:
    found: dict[str, list[provider_facts.ProviderFacts]] = (
        collections.defaultdict(list)
    )
    for uuid, one in providers.items():
        if uuid in homes:
            found[homes[uuid]].append(one)
    return {host: tuple(cards) for host, cards in found.items()}
