# SPDX-License-Identifier: Apache-2.0
"""LRU cache of resource providers, by provider generation.

Placement (placement/objects, releases 14 to 16) raises a provider's
generation by one

- with each write of inventories: PUT (of the same records too), POST and
  DELETE, of all or of one class;
- with each change of its traits: PUT, if it changes something, and DELETE;
- with each write of its aggregates, from microversion 1.19 on;
- with each write of allocations from it (PUT, POST, and the reshaper).

It does not with a new name or parent, which each listing has; nor with
``DELETE /allocations/{consumer}``. So while the generation is the same,
traits and capacity are as cached, and used units are not higher: "has no
allocations" can be cached by generation, and "has allocations" can't.

A provider that is deleted and created again starts at 0 and may reach the
same generation, so all entries expire.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping

from nova_accel.model import providers

# Cached providers: those of 6,000 hosts with eight cards each, about 1 KB
# a provider.
MAX_PROVIDERS = 50_000
# Seconds after which a provider is read again whatever its generation: for
# so long one that was deleted and created again may go unnoticed. Reading
# a cloud takes one query; reading a host of eight cards takes 17 requests,
# fewer than Nova makes for them (3 for each provider in 300 s, [compute]
# resource_provider_association_refresh).
FRESH_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedProviders:
    """Cached providers by uuid, and the providers to read again.

    ``changed`` are uuids of providers whose cached data are out of date,
    and of providers that were never read.
    """

    providers: dict[str, providers.Provider]
    changed: tuple[str, ...]


class ProviderCache:
    """Providers by uuid, each at least as new as its generation.

    Thread-safe; a slow thread may replace newer data by older ones, whose
    generation then marks them as changed.

    :param max_size: number of cached providers; the least recently used one
        is evicted first.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        max_size: int = MAX_PROVIDERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_size = max_size
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[str, providers.Provider] = (
            collections.OrderedDict()
        )
        # Equal sets of traits share one object: a cloud has few of them.
        self._trait_sets: dict[frozenset[str], frozenset[str]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def find(self, uuids: Iterable[str]) -> dict[str, providers.Provider]:
        """Return the cached data of providers, expired ones too."""
        with self._lock:
            return {u: self._entries[u] for u in uuids if u in self._entries}

    def find_fresh(
        self, uuids: Iterable[str]
    ) -> dict[str, providers.Provider]:
        """Return the cached data of providers that have not expired."""
        return {
            uuid: entry
            for uuid, entry in self.find(uuids).items()
            if not self._is_expired(entry)
        }

    def compare(
        self, listed: Mapping[str, providers.Provider], uuids: Iterable[str]
    ) -> CachedProviders:
        """Return cached providers, and those that must be read.

        :param listed: providers of a listing, with their generations.
        :param uuids: providers to compare; those not listed have changed.
        """
        cached = {}
        changed = []
        with self._lock:
            for uuid in uuids:
                current = listed.get(uuid)
                entry = self._entries.get(uuid)
                if entry is not None:
                    self._entries.move_to_end(uuid)
                    cached[uuid] = entry
                if (
                    entry is None
                    or current is None
                    or entry.identity != current.identity
                    or self._is_expired(entry)
                ):
                    changed.append(uuid)
        return CachedProviders(providers=cached, changed=tuple(changed))

    def store(self, several: Iterable[providers.Provider]) -> None:
        """Cache providers that are at least as new as their generation.

        A provider without a generation is not cached. A change of a cached
        provider keeps its ``read_at``, and so its expiry.
        """
        with self._lock:
            for provider in several:
                if provider.generation is not None:
                    self._store(provider)

    def expire(self, uuid: str | None = None) -> None:
        """Have a provider read again, or all of them."""
        with self._lock:
            for each in [*self._entries] if uuid is None else [uuid]:
                if each in self._entries:
                    self._entries[each] = dataclasses.replace(
                        self._entries[each], read_at=float("-inf")
                    )

    def remove(self, uuid: str) -> None:
        """Remove a provider that does not exist any more."""
        with self._lock:
            self._entries.pop(uuid, None)

    def remove_unlisted(self, root: str, listed: Container[str]) -> None:
        """Remove the providers of a tree that its listing lacks."""
        with self._lock:
            for uuid, entry in [*self._entries.items()]:
                if entry.root == root and uuid not in listed:
                    del self._entries[uuid]

    def _is_expired(self, entry: providers.Provider) -> bool:
        now = self._clock()
        read_at = now if entry.read_at is None else entry.read_at
        return now - read_at >= FRESH_SECONDS

    def _store(self, provider: providers.Provider) -> None:
        self._entries[provider.uuid] = dataclasses.replace(
            provider,
            traits=self._trait_sets.setdefault(
                provider.traits, provider.traits
            ),
            read_at=(
                self._clock() if provider.read_at is None else provider.read_at
            ),
        )
        self._entries.move_to_end(provider.uuid)
        while len(self._entries) > self._max_size:
            self._entries.popitem(last=False)
        if len(self._trait_sets) > self._max_size:
            self._trait_sets.clear()
