# SPDX-License-Identifier: Apache-2.0
"""Reader of a host's providers: one listing, then only changed providers.

A host without changes costs one request. The ``Last-Modified`` header of
the list of the tree, the time of the latest write to any of its providers,
shows providers that were deleted and created again: if the header differs
and the list is the same, all cached data are stale. It does not show them
if another provider of the host was written between the two lists too, or
within one second, the header's resolution; the cache's expiry remains.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from nova_accel.model import names, providers
from placement_sync.client import provider_cache, provider_records, rest


class TreeReader:
    """Reads our providers below a compute node. Not thread-safe.

    :param client: of Placement.
    :param cache: the providers of former reads.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        client: rest.RestClient,
        cache: provider_cache.ProviderCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._clock = clock
        # Names of providers without our trait, by uuid, and their expiry.
        self._foreign: dict[str, str] = {}
        self._expiry = clock() + provider_cache.FRESH_SECONDS
        # The last list of each tree, and its Last-Modified header.
        self._lists: dict[str, tuple[dict[str, providers.Provider], str]] = {}

    def read(
        self, root: str, expected: frozenset[str]
    ) -> tuple[providers.Provider | None, dict[str, providers.Provider]]:
        """Return a compute node, and our providers below it by uuid.

        :param root: uuid of the compute node's provider.
        :param expected: uuids of own providers, whatever their traits.
        :raises ServiceError: Placement failed, or its response is malformed.
        """
        if self._clock() >= self._expiry:
            self.expire()
        listed = self._list(root)
        top = listed.pop(root, None)
        self._cache.remove_unlisted(top.root if top else root, listed)
        root_name = top.name if top else ""
        proved = {
            p.uuid
            for p in listed.values()
            if p.uuid in expected
            or names.is_own_provider(root, root_name, p.name, p.uuid)
        }
        return top, self._select_own(root, listed, proved)

    def expire(self) -> None:
        """Have all providers read again."""
        self._cache.expire()
        self._foreign.clear()
        self._expiry = self._clock() + provider_cache.FRESH_SECONDS

    def fetch(self, identity: providers.Provider) -> providers.Provider | None:
        """Read a provider; None if it does not exist any more.

        :param identity: the provider with its name, parent and root.
        """
        provider = provider_records.fetch_provider(
            self._client.fetch, identity, has_allocations=False
        )
        if provider is None:
            self._cache.remove(identity.uuid)
        else:
            self._cache.store([provider])
        return provider

    def _list(self, root: str) -> dict[str, providers.Provider]:
        """Return the providers of a tree by uuid.

        All cached data expire if one of them was created again.
        """
        uuid = provider_records.check_uuid(root)
        path = f"/resource_providers?in_tree={uuid}"
        response = self._client.get(path)
        rows = provider_records.parse_answer(
            "GET", path, response.body, provider_records.parse_list
        )
        listed = {p.uuid: p for p in rows}
        last_listed, modified = self._lists.get(root, ({}, ""))
        if last_listed == listed and modified != response.modified:
            self.expire()
        self._lists[root] = listed, response.modified
        return dict(listed)

    def _select_own(
        self,
        root: str,
        listed: Mapping[str, providers.Provider],
        proved: set[str],
    ) -> dict[str, providers.Provider]:
        """Return our providers, as they are now.

        Other providers, such as Nova's, are never read: their generations
        change with each server. One query lists those with our trait, when
        a provider appears or is renamed.
        """
        cached = self._cache.find(listed)
        unclassified = {
            p.uuid
            for p in listed.values()
            if p.uuid not in proved
            and p.uuid not in cached
            and self._foreign.get(p.uuid) != p.name
        }
        marked = set()
        if unclassified:
            rows = provider_records.list_with_trait(
                self._client.fetch, names.OWNER_TRAIT, root
            )
            marked = {p.uuid for p in rows} & unclassified
        self._foreign |= {u: listed[u].name for u in unclassified - marked}
        own = {}
        for provider in self._refresh(listed, proved | marked | cached.keys()):
            uuid = provider.uuid
            if uuid not in proved and names.OWNER_TRAIT not in provider.traits:
                self._foreign[uuid] = provider.name
                self._cache.remove(uuid)
            elif uuid in proved or not is_of_other_host(uuid, listed):
                own[uuid] = provider
        return own

    def _refresh(
        self, listed: Mapping[str, providers.Provider], uuids: set[str]
    ) -> Iterable[providers.Provider]:
        """Yield providers of the listed generation, or of a newer one."""
        cached = self._cache.compare(listed, uuids)
        for uuid in uuids:
            provider: providers.Provider | None = cached.providers.get(uuid)
            if uuid in cached.changed:
                provider = self.fetch(listed[uuid])
            if provider is not None:
                yield provider


def is_of_other_host(
    uuid: str, listed: Mapping[str, providers.Provider]
) -> bool:
    """Return whether a provider is named after another ancestor host.

    A tree has several hosts if an operator gave a compute node a parent.

    :param listed: the tree without this host's own compute node.
    """
    name = listed[uuid].name
    ancestor = listed.get(listed[uuid].parent)
    while ancestor is not None:
        if name.startswith(names.provider_name(ancestor.name, "")):
            return True
        ancestor = listed.get(ancestor.parent)
    return False
