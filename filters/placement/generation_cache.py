# SPDX-License-Identifier: Apache-2.0
"""LRU cache of provider data, by provider generation."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable

from filters import provider_facts
from nova_accel.model import names

# Providers that are remembered: those of 6,000 hosts with eight cards
# each, about 1 KB a provider.
MOST = 50_000
# Seconds after which facts are read again whatever the generation: one
# call for the whole cloud. It bounds how long a provider that was deleted
# and created again is taken for the former one.
FRESH_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedFacts:
    """What is remembered of some providers.

    ``facts`` are of all that are remembered; those that are in ``changed``
    too are out of date, the rest of ``changed`` was never read.
    """

    facts: dict[str, provider_facts.ProviderFacts]
    changed: tuple[str, ...]


class GenerationCache:
    """Providers' facts by uuid, each as new as its generation at least.

    Placement raises a provider's generation with every change but one:
    what a server gives back. So while the generation is the same, traits
    and capacity are as remembered, and what is used is not more. Safe for
    several threads; one that comes late may put older facts in place of
    newer ones, whose generation then tells that they are old.

    An entry expires FRESH_SECONDS after it was read: Placement counts the
    generations of a provider that was deleted and created again from 0.

    :param most: how many providers are remembered; the one that was not
        asked for longest goes first.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[
            str, provider_facts.ProviderFacts
        ] = collections.OrderedDict()
        # Providers that are not ours, or had no room when last read. None
        # is asked for again before a listing names it.
        self._others: collections.OrderedDict[str, None] = (
            collections.OrderedDict()
        )
        # Equal sets of traits are one object: a cloud has few.
        self._alike: dict[frozenset[str], frozenset[str]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def recall(
        self, uuids: Iterable[str]
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return what is remembered of providers, old or not."""
        with self._lock:
            return {u: self._entries[u] for u in uuids if u in self._entries}

    def recall_fresh(
        self, uuids: Iterable[str]
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return what is remembered of providers and has not expired."""
        return {
            uuid: entry
            for uuid, entry in self.recall(uuids).items()
            if not self._is_expired(entry)
        }

    def compare(
        self, listed: provider_facts.Facts, wanted: Iterable[str]
    ) -> CachedFacts:
        """Return what is known of providers, and which must be read.

        :param listed: providers as a listing names them.
        :param wanted: uuids; those that the listing lacks have changed.
        """
        facts = {}
        changed = []
        with self._lock:
            for uuid in wanted:
                now = listed.get(uuid)
                if now is None and uuid in self._others:
                    continue
                entry = self._entries.get(uuid)
                if entry is not None:
                    self._entries.move_to_end(uuid)
                    facts[uuid] = entry
                if entry is None or now is None or self._is_old(entry, now):
                    changed.append(uuid)
        return CachedFacts(facts=facts, changed=tuple(changed))

    def remember(self, facts: Iterable[provider_facts.ProviderFacts]) -> None:
        """Remember facts that are as new as their generation, or newer.

        Of a provider that is not ours only that is remembered.
        """
        with self._lock:
            for one in facts:
                if names.OWNER_TRAIT not in one.traits:
                    self._put_aside(one.uuid)
                elif one.generation is not None:
                    self._keep(one)

    def put_aside(self, uuids: Iterable[str]) -> None:
        """Have providers not read again until a listing names them."""
        with self._lock:
            for uuid in uuids:
                self._put_aside(uuid)

    def _is_old(
        self,
        entry: provider_facts.ProviderFacts,
        listed: provider_facts.ProviderFacts,
    ) -> bool:
        """Return whether a provider changed, or was read too long ago."""
        return entry.identity != listed.identity or self._is_expired(entry)

    def _is_expired(self, entry: provider_facts.ProviderFacts) -> bool:
        now = self._clock()
        read_at = now if entry.read_at is None else entry.read_at
        return now - read_at >= FRESH_SECONDS

    def _keep(self, one: provider_facts.ProviderFacts) -> None:
        self._others.pop(one.uuid, None)
        self._entries[one.uuid] = dataclasses.replace(
            one,
            traits=self._alike.setdefault(one.traits, one.traits),
            exact=False,
            taken_by=(),
            shares=(),
            read_at=self._clock() if one.read_at is None else one.read_at,
        )
        self._entries.move_to_end(one.uuid)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        if len(self._alike) > self._most:
            self._alike.clear()

    def _put_aside(self, uuid: str) -> None:
        self._entries.pop(uuid, None)
        self._others[uuid] = None
        while len(self._others) > self._most:
            self._others.popitem(last=False)
