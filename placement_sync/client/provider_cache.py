# SPDX-License-Identifier: Apache-2.0
"""Cache of a host's providers, by provider generation.

What is read is remembered with the generation of its provider, so a host
of which nothing has changed costs one request. That is right because
Placement (placement/objects, releases 14 to 16) raises a provider's
generation by one

- with each write of inventories: PUT (of the same records too), POST and
  DELETE, of all or of one class;
- with each change of its traits: PUT, if it changes something, and DELETE;
- with each write of its aggregates, from microversion 1.19 on;
- with each write of allocations from it (PUT, POST, and the reshaper).

It does not with a new name or parent, which the list of the tree tells
each time; nor with ``DELETE /allocations/{consumer}``, so that a provider
was free can be remembered, and that it was in use can't.

A provider that is deleted and created again begins at 0 and may reach the
same generation. The list of the tree tells by its ``Last-Modified`` header,
the time of the latest write to any of its providers: where that differs and
the list is the same, all is read again. That does not show it where another
provider of the host was written between the two lists too, or within one
second, the header's resolution; so all is read again after a while.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from nova_accel.model import names
from placement_sync.client import provider_records, rest

# Seconds for which a provider that was deleted and created again may be
# taken for the former one. Reading a host of eight cards is 17 requests,
# fewer than Nova makes for them (3 for each provider in 300 s, [compute]
# resource_provider_association_refresh).
REREAD_SECONDS = 600.0

T = TypeVar("T")


class ProviderCache:
    """The providers that were read; for one thread at a time."""

    def __init__(
        self,
        door: rest.RestClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nothing yet.

        :param clock: returns seconds.
        """
        self.records: dict[str, provider_records.ProviderRecord] = {}
        self.free: dict[str, int] = {}
        self._foreign: dict[str, str] = {}
        # The last list of each tree, and when that tree was modified.
        self._lists: dict[
            str, tuple[frozenset[provider_records.ListedProvider], str]
        ] = {}
        self._door = door
        self._clock = clock
        self._until = clock() + REREAD_SECONDS

    def read(self, path: str, parse_body: Callable[[Any], T]) -> T:
        """Return what Placement answers to a GET.

        :raises ServiceError: it did not answer, or not as it does.
        """
        return self._door.read(path, parse_body)

    def refresh(
        self, root: str, expected: frozenset[str]
    ) -> tuple[
        provider_records.ListedProvider | None,
        Mapping[str, provider_records.ListedProvider],
    ]:
        """Read what has changed below a compute node.

        :return: the compute node, and our providers by uuid, each of which
            has a record.
        :raises ServiceError: Placement did not answer, or not as it does.
        """
        if self._clock() >= self._until:
            self.forget()
            self._until = self._clock() + REREAD_SECONDS
        path = f"/resource_providers?in_tree={provider_records.checked(root)}"
        listed = self._list(root, path)
        top = listed.pop(root, None)
        self._drop(root, listed)
        root_name = top.name if top else ""
        proved = {
            p.uuid
            for p in listed.values()
            if p.uuid in expected
            or names.is_our_provider(root, root_name, p.name, p.uuid)
        }
        ours = self._ours(root, listed, proved)
        return top, {uuid: listed[uuid] for uuid in ours}

    def _list(
        self, root: str, path: str
    ) -> dict[str, provider_records.ListedProvider]:
        """Return the providers of a tree by uuid.

        Everything is forgotten if one of them was created again.
        """
        answer = self._door.get(path)
        listed = provider_records.parsed(
            "GET", path, answer.body, provider_records.parse_list
        )
        providers, modified = self._lists.get(root, (frozenset(), ""))
        if providers == frozenset(listed) and modified != answer.modified:
            self.forget()
        self._lists[root] = frozenset(listed), answer.modified
        return {p.uuid: p for p in listed}

    def forget(self, uuid: str | None = None) -> None:
        """Have a provider read anew, or all of them."""
        for each in [*self.records] if uuid is None else [uuid]:
            self.free.pop(each, None)
            if each in self.records:
                self.change(each, is_stale=True)
        if uuid is None:
            self._foreign.clear()

    def change(self, uuid: str, **changes: Any) -> None:
        """Remember what a provider has now."""
        self.records[uuid] = dataclasses.replace(self.records[uuid], **changes)

    def drop(self, uuid: str) -> None:
        """Forget a provider that doesn't exist any more."""
        self.records.pop(uuid, None)
        self.free.pop(uuid, None)

    def fetch(
        self, uuid: str, host: str
    ) -> provider_records.ProviderRecord | None:
        """Read a provider; None if it doesn't exist any more.

        Somebody may write it between the two requests: then the older
        generation makes a write with it a conflict.
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
            self.drop(uuid)
            return None
        self.records[uuid] = provider_records.ProviderRecord(
            generation=min(first[0], second[0]),
            inventories=first[1],
            traits=second[1],
            host=host,
        )
        return self.records[uuid]

    def _drop(
        self, root: str, listed: Mapping[str, provider_records.ListedProvider]
    ) -> None:
        """Forget the providers that are not below a host any more."""
        for uuid, record in [*self.records.items()]:
            if record.host == root and uuid not in listed:
                self.drop(uuid)

    def _ours(
        self,
        root: str,
        listed: Mapping[str, provider_records.ListedProvider],
        proved: set[str],
    ) -> set[str]:
        """Return which providers are ours, and have a record of each.

        Others, Nova's own, are never read: their generations change with
        each server. Which of them has our trait is asked once for all,
        when one appears or gets another name.
        """
        asked = {
            p.uuid
            for p in listed.values()
            if p.uuid not in proved
            and p.uuid not in self.records
            and self._foreign.get(p.uuid) != p.name
        }
        marked = self._marked(root) & asked if asked else set()
        self._foreign |= {u: listed[u].name for u in asked - marked}
        ours = set()
        for uuid in proved | marked | (self.records.keys() & listed.keys()):
            record = self._refreshed(root, listed[uuid])
            if record is None:
                continue
            self.change(uuid, host=root)
            if uuid in proved or names.OWNER_TRAIT in record.traits:
                ours.add(uuid)
            else:
                self._foreign[uuid] = listed[uuid].name
                self.drop(uuid)
        others = {u for u in ours - proved if is_of_another(u, listed)}
        return ours - others

    def _marked(self, root: str) -> set[str]:
        """Return the providers in a tree that have our owner's trait."""
        path = (
            f"/resource_providers?in_tree={provider_records.checked(root)}"
            f"&required={names.OWNER_TRAIT}"
        )
        found = self._door.read_with_trait(
            path, names.OWNER_TRAIT, provider_records.parse_list
        )
        return {p.uuid for p in found or ()}

    def _refreshed(
        self, root: str, listed: provider_records.ListedProvider
    ) -> provider_records.ProviderRecord | None:
        """Return a record of the generation that was listed, or newer."""
        record = self.records.get(listed.uuid)
        if record is None or record.is_stale:
            return self.fetch(listed.uuid, root)
        if record.generation != listed.generation:
            return self.fetch(listed.uuid, root)
        return record


class ProviderRow(Protocol):
    """A provider of a listing, with its place in the tree."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def parent(self) -> str:
        """Return the uuid of its parent, empty for a root."""


def is_of_another(uuid: str, listed: Mapping[str, ProviderRow]) -> bool:
    """Return whether a provider is named after another host that it is in.

    A tree may have more hosts than one, where somebody gave a compute node
    a parent.

    :param listed: the tree but for this host's own compute node.
    """
    name = listed[uuid].name
    above = listed.get(listed[uuid].parent)
    while above is not None:
        if name.startswith(names.provider_name(above.name, "")):
            return True
        above = listed.get(above.parent)
    return False
