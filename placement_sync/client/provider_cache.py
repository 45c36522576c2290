# SPDX-License-Identifier: Apache-2.0
"""Cache of a host's providers, by provider generation.

A record is valid as long as the generation of its provider, so a host
without changes costs one request. Placement (placement/objects, releases
14 to 16) raises a provider's generation by one

- with each write of inventories: PUT (of the same records too), POST and
  DELETE, of all or of one class;
- with each change of its traits: PUT, if it changes something, and DELETE;
- with each write of its aggregates, from microversion 1.19 on;
- with each write of allocations from it (PUT, POST, and the reshaper).

It does not with a new name or parent, which each list of the tree has; nor
with ``DELETE /allocations/{consumer}``. So "has no allocations" can be
cached by generation, and "has allocations" can't.

A provider that is deleted and created again starts at 0 and may reach the
same generation. The ``Last-Modified`` header of the list of the tree, the
time of the latest write to any of its providers, shows that: if the header
differs and the list is the same, all records are stale. It is not shown if
another provider of the host was written between the two lists too, or
within one second, the header's resolution; so all records expire after
REREAD_SECONDS.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nova_accel.model import names, providers
from placement_sync.client import provider_records, rest

# Seconds for which a provider that was deleted and created again may go
# unnoticed. Reading a host of eight cards takes 17 requests, fewer than
# Nova makes for them (3 for each provider in 300 s, [compute]
# resource_provider_association_refresh).
REREAD_SECONDS = 600.0

T = TypeVar("T")


class ProviderCache:
    """Records of providers, by uuid. Not thread-safe.

    ``records`` are the cached providers; ``unallocated`` is the generation
    at which a provider had no allocations.
    """

    def __init__(
        self,
        client: rest.RestClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        :param clock: returns seconds.
        """
        self.records: dict[str, provider_records.ProviderRecord] = {}
        self.unallocated: dict[str, int] = {}
        # Names of providers without our trait, by uuid.
        self._foreign: dict[str, str] = {}
        # The last list of each tree, and its Last-Modified header.
        self._lists: dict[str, tuple[frozenset[providers.Provider], str]] = {}
        self._client = client
        self._clock = clock
        self._expiry = clock() + REREAD_SECONDS

    def read(self, path: str, parse_body: Callable[[Any], T]) -> T:
        """Return the parsed response to a GET.

        :raises ServiceError: Placement failed, or its response is malformed.
        """
        return self._client.read(path, parse_body)

    def refresh(
        self, root: str, expected: frozenset[str]
    ) -> tuple[
        providers.Provider | None,
        Mapping[str, providers.Provider],
    ]:
        """Read the providers below a compute node that have changed.

        :param root: uuid of the compute node's provider.
        :param expected: uuids of own providers, whatever their traits.
        :return: the compute node, and our providers by uuid, each of which
            has a record.
        :raises ServiceError: Placement failed, or its response is malformed.
        """
        if self._clock() >= self._expiry:
            self.invalidate()
            self._expiry = self._clock() + REREAD_SECONDS
        listed = self._list(root)
        top = listed.pop(root, None)
        self._remove_unlisted(root, listed)
        root_name = top.name if top else ""
        proved = {
            p.uuid
            for p in listed.values()
            if p.uuid in expected
            or names.is_own_provider(root, root_name, p.name, p.uuid)
        }
        own = self._select_own(root, listed, proved)
        return top, {uuid: listed[uuid] for uuid in own}

    def _list(self, root: str) -> dict[str, providers.Provider]:
        """Return the providers of a tree by uuid.

        Invalidates the cache if one of them was created again.
        """
        uuid = provider_records.check_uuid(root)
        path = f"/resource_providers?in_tree={uuid}"
        response = self._client.get(path)
        listed = provider_records.parse_answer(
            "GET", path, response.body, provider_records.parse_list
        )
        last_listed, modified = self._lists.get(root, (frozenset(), ""))
        if last_listed == frozenset(listed) and modified != response.modified:
            self.invalidate()
        self._lists[root] = frozenset(listed), response.modified
        return {p.uuid: p for p in listed}

    def invalidate(self, uuid: str | None = None) -> None:
        """Mark a provider as stale, or all of them."""
        for provider in [*self.records] if uuid is None else [uuid]:
            self.unallocated.pop(provider, None)
            if provider in self.records:
                self.update(provider, is_stale=True)
        if uuid is None:
            self._foreign.clear()

    def update(self, uuid: str, **changes: Any) -> None:
        self.records[uuid] = dataclasses.replace(self.records[uuid], **changes)

    def remove(self, uuid: str) -> None:
        """Remove a provider that does not exist any more."""
        self.records.pop(uuid, None)
        self.unallocated.pop(uuid, None)

    def fetch(
        self, uuid: str, host: str
    ) -> provider_records.ProviderRecord | None:
        """Read a provider; None if it does not exist any more.

        Another client may write it between the two requests: the record
        gets the older generation, so that a write with it is a conflict.
        """
        first = self.read(
            provider_records.provider_path(uuid, "inventories"),
            provider_records.parse_inventories,
        )
        second = self.read(
            provider_records.provider_path(uuid, "traits"),
            provider_records.parse_provider_traits,
        )
        if first is None or second is None:
            self.remove(uuid)
            return None
        self.records[uuid] = provider_records.ProviderRecord(
            generation=min(first[0], second[0]),
            inventories=first[1],
            traits=second[1],
            host=host,
        )
        return self.records[uuid]

    def _remove_unlisted(
        self, root: str, listed: Mapping[str, providers.Provider]
    ) -> None:
        for uuid, record in [*self.records.items()]:
            if record.host == root and uuid not in listed:
                self.remove(uuid)

    def _select_own(
        self,
        root: str,
        listed: Mapping[str, providers.Provider],
        proved: set[str],
    ) -> set[str]:
        """Return the uuids of our providers; each then has a record.

        Other providers, such as Nova's, are never read: their generations
        change with each server. One query lists those with our trait, when
        a provider appears or is renamed.
        """
        unclassified = {
            p.uuid
            for p in listed.values()
            if p.uuid not in proved
            and p.uuid not in self.records
            and self._foreign.get(p.uuid) != p.name
        }
        marked = set()
        if unclassified:
            marked = self._list_marked(root) & unclassified
        self._foreign |= {u: listed[u].name for u in unclassified - marked}
        own = set()
        for uuid in proved | marked | (self.records.keys() & listed.keys()):
            record = self._refresh_record(root, listed[uuid])
            if record is None:
                continue
            self.update(uuid, host=root)
            if uuid in proved or names.OWNER_TRAIT in record.traits:
                own.add(uuid)
            else:
                self._foreign[uuid] = listed[uuid].name
                self.remove(uuid)
        others = {u for u in own - proved if is_of_other_host(u, listed)}
        return own - others

    def _list_marked(self, root: str) -> set[str]:
        """Return the providers in a tree that have our owner trait."""
        path = (
            f"/resource_providers?in_tree={provider_records.check_uuid(root)}"
            f"&required={names.OWNER_TRAIT}"
        )
        listed = self._client.read_with_trait(
            path, names.OWNER_TRAIT, provider_records.parse_list
        )
        return {p.uuid for p in listed or ()}

    def _refresh_record(
        self, root: str, listed: providers.Provider
    ) -> provider_records.ProviderRecord | None:
        """Return a record of the listed generation, or of a newer one."""
        record = self.records.get(listed.uuid)
        if record is None or record.is_stale:
            return self.fetch(listed.uuid, root)
        if record.generation != listed.generation:
            return self.fetch(listed.uuid, root)
        return record


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
