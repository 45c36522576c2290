# SPDX-License-Identifier: Apache-2.0
"""Cache of resource providers, by provider generation.

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

import dataclasses
import time
from collections.abc import Callable, Container

from nova_accel.model import providers

# Seconds after which a provider is read again whatever its generation: for
# so long one that was deleted and created again may go unnoticed. Reading
# a cloud takes one query; reading a host of eight cards takes 17 requests,
# fewer than Nova makes for them (3 for each provider in 300 s, [compute]
# resource_provider_association_refresh).
FRESH_SECONDS = 600.0


class ProviderCache:
    """Providers by uuid, each at least as new as its generation.

    Not thread-safe.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, providers.Provider] = {}

    def get(self, uuid: str) -> providers.Provider | None:
        """Return the cached data of a provider, expired ones too."""
        return self._entries.get(uuid)

    def get_fresh(self, uuid: str) -> providers.Provider | None:
        """Return the cached data of a provider that have not expired."""
        entry = self._entries.get(uuid)
        is_fresh = (
            entry is not None
            and entry.read_at is not None
            and self._clock() - entry.read_at < FRESH_SECONDS
        )
        return entry if is_fresh else None

    def get_current(
        self, listed: providers.Provider
    ) -> providers.Provider | None:
        """Return fresh data of the generation that a listing has."""
        entry = self.get_fresh(listed.uuid)
        is_same = entry is not None and entry.identity == listed.identity
        return entry if is_same else None

    def store(self, provider: providers.Provider) -> None:
        """Cache a provider, at least as new as its generation.

        A provider without a generation is not cached. A change of a cached
        provider keeps its ``read_at``, and so its expiry.
        """
        if provider.generation is not None:
            self._entries[provider.uuid] = (
                dataclasses.replace(provider, read_at=self._clock())
                if provider.read_at is None
                else provider
            )

    def expire(self, uuid: str | None = None) -> None:
        """Have a provider read again, or all of them."""
        for each in [*self._entries] if uuid is None else [uuid]:
            if each in self._entries:
                self._entries[each] = dataclasses.replace(
                    self._entries[each], read_at=float("-inf")
                )

    def remove(self, uuid: str) -> None:
        """Remove a provider that does not exist any more."""
        self._entries.pop(uuid, None)

    def remove_unlisted(self, root: str, listed: Container[str]) -> None:
        """Remove the providers of a tree that its listing lacks."""
        for uuid, entry in [*self._entries.items()]:
            if entry.root == root and uuid not in listed:
                del self._entries[uuid]
