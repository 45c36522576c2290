# SPDX-License-Identifier: Apache-2.0
"""Hosts with accelerators and their usage, for the weigher.

Read in bulk, never host by host, and cached.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping

from filters import provider_facts
from filters.placement import queries, stale_cache
from nova_accel.model import flavors, providers
from placement_sync.client.provider_records import Get

# Operators add accelerators to hosts, so which hosts have some changes
# seldom.
_HOSTS_SECONDS = 300.0
_RETRY_SECONDS = 30.0
# A cloud of a thousand hosts is listed in less.
_PATIENCE_SECONDS = 3.0

# The cards of each host, by the uuid of its compute node.
Cards = Mapping[str, tuple[providers.Provider, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorHosts:
    """Uuids of the compute nodes with accelerators: all, and by card."""

    nodes: frozenset[str] = frozenset()
    by_card: Mapping[str, str] = dataclasses.field(default_factory=dict)


class HostUsage:
    """Accelerators of all hosts as stored in Placement; thread-safe.

    A method returns None if Placement did not respond in time: the weigher
    then has no preference.

    :param get: sends queries to Placement.
    :param seconds: time to live of the cards' usage.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        get: Get,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get = get
        self._hosts: stale_cache.StaleCache[AcceleratorHosts] = (
            stale_cache.StaleCache(_times(_HOSTS_SECONDS), clock=clock)
        )
        self._cards: stale_cache.StaleCache[Cards] = stale_cache.StaleCache(
            _times(seconds), clock=clock
        )

    def find_hosts(self) -> AcceleratorHosts | None:
        """Return the compute nodes that have accelerators."""
        return self._hosts.get(
            "which hosts have accelerators", lambda: fetch_hosts(self._get)
        )

    def find_cards(self) -> Cards | None:
        """Return the accelerators of each host with free memory."""
        hosts = self.find_hosts()
        if hosts is None or not hosts.nodes:
            return None if hosts is None else {}
        return self._cards.get(
            "how full accelerators are",
            lambda: _group_by_host(
                queries.fetch_all_summaries(self._get), hosts.by_card
            ),
        )


def fetch_hosts(get: Get) -> AcceleratorHosts:
    """Return the compute nodes of all accelerators.

    :raises ServiceError: Placement did not respond.
    """
    any_group = flavors.RequestGroup(suffix="", resources={})
    listed = queries.fetch_listing(get, (any_group,))
    by_card = {uuid: provider.root for uuid, provider in listed.items()}
    return AcceleratorHosts(nodes=frozenset(by_card.values()), by_card=by_card)


def _times(fresh: float) -> stale_cache.CacheTimes:
    return stale_cache.CacheTimes(
        fresh=fresh, retry=_RETRY_SECONDS, patience=_PATIENCE_SECONDS
    )


def _group_by_host(
    summaries: provider_facts.Facts, hosts: Mapping[str, str]
) -> Cards:
    cards: dict[str, list[providers.Provider]] = collections.defaultdict(list)
    for uuid, provider in summaries.items():
        if uuid in hosts:
            cards[hosts[uuid]].append(provider)
    return {host: tuple(of_host) for host, of_host in cards.items()}
