# SPDX-License-Identifier: Apache-2.0
"""LRU cache of provider data, by provider generation."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable

from filters import provider_facts
from nova_accel.model import names

# Cached providers: those of 6,000 hosts with eight cards each, about 1 KB
# a provider.
MAX_PROVIDERS = 50_000
# Seconds after which facts are read again whatever the generation: one
# query for the whole cloud. It bounds for how long a provider that was
# deleted and created again is mistaken for the former one.
FRESH_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedFacts:
    """Cached facts of some providers, and the providers to read again.

    ``changed`` are uuids of providers whose cached ``facts`` are out of
    date, and of providers that were never read.
    """

    facts: dict[str, provider_facts.ProviderFacts]
    changed: tuple[str, ...]


class GenerationCache:
    """Providers' facts by uuid, each at least as new as its generation.

    Placement raises a provider's generation with every change except the
    deletion of an allocation. So while the generation is the same, traits
    and capacity are as cached, and used units are not higher. Thread-safe;
    a slow thread may replace newer facts by older ones, whose generation
    then marks them as changed.

    An entry expires FRESH_SECONDS after it was read: Placement counts the
    generations of a provider that was deleted and created again from 0.

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
        self._entries: collections.OrderedDict[
            str, provider_facts.ProviderFacts
        ] = collections.OrderedDict()
        # Providers of other owners, or without room when last read. None
        # of them is read again before a listing includes it.
        self._excluded: collections.OrderedDict[str, None] = (
            collections.OrderedDict()
        )
        # Equal sets of traits share one object: a cloud has few of them.
        self._trait_sets: dict[frozenset[str], frozenset[str]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def find(
        self, uuids: Iterable[str]
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return the cached facts of providers, expired ones too."""
        with self._lock:
            return {u: self._entries[u] for u in uuids if u in self._entries}

    def find_fresh(
        self, uuids: Iterable[str]
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return the cached facts of providers that have not expired."""
        return {
            uuid: entry
            for uuid, entry in self.find(uuids).items()
            if not self._is_expired(entry)
        }

    def compare(
        self, listed: provider_facts.Facts, uuids: Iterable[str]
    ) -> CachedFacts:
        """Return cached facts, and the providers that must be read.

        :param listed: providers of a listing, with their generations.
        :param uuids: providers to compare; those not listed have changed.
        """
        facts = {}
        changed = []
        with self._lock:
            for uuid in uuids:
                current = listed.get(uuid)
                if current is None and uuid in self._excluded:
                    continue
                entry = self._entries.get(uuid)
                if entry is not None:
                    self._entries.move_to_end(uuid)
                    facts[uuid] = entry
                if (
                    entry is None
                    or current is None
                    or self._is_outdated(entry, current)
                ):
                    changed.append(uuid)
        return CachedFacts(facts=facts, changed=tuple(changed))

    def store(self, several: Iterable[provider_facts.ProviderFacts]) -> None:
        """Cache facts that are at least as new as their generation.

        Providers of other owners are excluded instead.
        """
        with self._lock:
            for facts in several:
                if names.OWNER_TRAIT not in facts.traits:
                    self._exclude(facts.uuid)
                elif facts.generation is not None:
                    self._store(facts)

    def exclude(self, uuids: Iterable[str]) -> None:
        """Don't report providers as changed until a listing includes them."""
        with self._lock:
            for uuid in uuids:
                self._exclude(uuid)

    def _is_outdated(
        self,
        entry: provider_facts.ProviderFacts,
        listed: provider_facts.ProviderFacts,
    ) -> bool:
        return entry.identity != listed.identity or self._is_expired(entry)

    def _is_expired(self, entry: provider_facts.ProviderFacts) -> bool:
        now = self._clock()
        read_at = now if entry.read_at is None else entry.read_at
        return now - read_at >= FRESH_SECONDS

    def _store(self, facts: provider_facts.ProviderFacts) -> None:
        self._excluded.pop(facts.uuid, None)
        self._entries[facts.uuid] = dataclasses.replace(
            facts,
            traits=self._trait_sets.setdefault(facts.traits, facts.traits),
            is_exact=False,
            sibling_servers=(),
            sibling_groups=(),
            read_at=(
                self._clock() if facts.read_at is None else facts.read_at
            ),
        )
        self._entries.move_to_end(facts.uuid)
        while len(self._entries) > self._max_size:
            self._entries.popitem(last=False)
        if len(self._trait_sets) > self._max_size:
            self._trait_sets.clear()

    def _exclude(self, uuid: str) -> None:
        self._entries.pop(uuid, None)
        self._excluded[uuid] = None
        while len(self._excluded) > self._max_size:
            self._excluded.popitem(last=False)
