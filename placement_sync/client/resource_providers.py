# SPDX-License-Identifier: Apache-2.0
"""Client of Placement: fetch a provider tree, apply one change.

A host without changes costs one request. The ``Last-Modified`` header of
the list of the tree, the time of the latest write to any of its providers,
shows providers that were deleted and created again: if the header differs
and the list is the same, all cached data are stale. It does not show them
if another provider of the host was written between the two lists too, or
within one second, the header's resolution; the cache's expiry remains.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import (
    calls,
    provider_cache,
    provider_records,
    service_client,
)

# Characters. uWSGI accepts 4096 bytes of request line and headers together
# ("buffer-size"), the token included.
_MAX_QUERY = 2000
_NOT_FOUND = 404


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementState:
    """Provider tree of a host, as Placement stores it.

    ``root`` is None if the compute node is not registered. ``tree`` has
    our providers only.
    """

    root: providers.ProviderRoot | None
    tree: providers.ProviderTree


class PlacementClient:
    """Client of Placement's resource providers. Thread-safe.

    Every method raises ServiceError if Placement refuses or does not
    answer. ``client`` counts the requests.
    """

    def __init__(
        self,
        client: service_client.ServiceClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet."""
        self.client = client
        self._lock = threading.RLock()
        self._cache = provider_cache.ProviderCache(clock=clock)
        self._reader = TreeReader(client, self._cache, clock)
        self._existing_names: set[str] = set()

    # -- reads -------------------------------------------------------------

    def fetch(
        self, root: str, expected: frozenset[str] = frozenset()
    ) -> PlacementState:
        """Return our providers below a compute node.

        Our providers have our owner trait, a uuid that is the uuid5 of the
        device's address, or are expected. Without a change since the last
        call, this is one request.

        :param root: uuid of the compute node's provider.
        :param expected: uuids of providers that the host should have.
        """
        with self._lock:
            top, own = self._reader.read(root, expected)
            node = providers.ProviderRoot(
                name=top.name if top else "", uuid=root
            )
            nodes = sorted(map(_build_node, own.values()), key=_by_name)
            return PlacementState(
                root=node if top else None,
                tree=providers.ProviderTree(root=node, nodes=tuple(nodes)),
            )

    def find_root(self, name: str) -> providers.ProviderRoot | None:
        """Return the provider of that name, or None; names are unique."""
        with self._lock:
            listed = provider_records.list_providers(
                self.client.fetch, {"name": name}
            )
        return next(
            (providers.ProviderRoot(name=p.name, uuid=p.uuid) for p in listed),
            None,
        )

    def fetch_allocations(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """Return the allocations from a provider.

        :return: amounts by resource class, by consumer; empty for a
            provider that does not exist.
        """
        with self._lock:
            answer = provider_records.fetch_allocations(
                self.client.fetch, provider_records.check_uuid(uuid)
            )
            generation, by_consumer = answer or (None, {})
            cached = self._cache.get(uuid)
            if cached is not None and cached.generation == generation:
                allocations = tuple(by_consumer.values())
                self._update(cached, allocations=allocations)
            return by_consumer

    def has_allocations(self, uuid: str) -> bool:
        """Return whether a provider has allocations.

        "No" is cached until its generation changes.
        """
        with self._lock:
            cached = self._cache.get_fresh(uuid)
            if cached is not None and cached.allocations == ():
                return False
            return bool(self.fetch_allocations(uuid))

    def filter_existing(self, requested: frozenset[str]) -> frozenset[str]:
        """Return those of some classes and traits that Placement has.

        Names that exist are cached.
        """
        with self._lock:
            missing = sorted(requested - self._existing_names)
            if missing:
                listed = provider_records.quote_name(",".join(missing))
                query = f"?name=in:{listed}"
                if len(query) > _MAX_QUERY:
                    query = ""
                self._existing_names |= self.client.read(
                    f"/traits{query}", provider_records.parse_traits
                )
            if requested - self._existing_names:
                self._existing_names |= self.client.read(
                    "/resource_classes", provider_records.parse_classes
                )
            return requested & self._existing_names

    def invalidate(self, uuid: str | None = None) -> None:
        """Mark a cached provider as stale, or all of them and all names."""
        with self._lock:
            if uuid is None:
                self._reader.expire()
                self._existing_names.clear()
            else:
                self._cache.expire(uuid)

    # -- one change --------------------------------------------------------

    def apply(self, call: calls.Call) -> None:
        """Make one change; idempotent.

        Creating a provider that exists with this uuid, name and parent
        succeeds, and so does deleting one that does not exist. A conflict
        means that another client changed the provider since it was fetched.
        """
        with self._lock:
            try:
                self._apply(call)
            except errors.ServiceError:
                if not isinstance(call, calls.Name):
                    self.invalidate(call.uuid)
                raise

    def _apply(self, call: calls.Call) -> None:
        match call:
            case calls.CreateClass(name=name):
                self.client.put(
                    f"/resource_classes/{provider_records.quote_name(name)}"
                )
                self._existing_names.add(name)
            case calls.CreateTrait(name=name):
                self.client.put(f"/traits/{provider_records.quote_name(name)}")
                self._existing_names.add(name)
            case calls.CreateProvider():
                self._create(call)
            case calls.SetInventories():
                self._set_inventories(call)
            case calls.ChangeTraits():
                self._change_traits(call)
            case calls.DeleteProvider(uuid=uuid):
                self._delete(uuid)

    def _create(self, call: calls.CreateProvider) -> None:
        path = "/resource_providers"
        body = {
            "uuid": provider_records.check_uuid(call.uuid),
            "name": call.name,
        }
        if call.parent:
            body["parent_provider_uuid"] = call.parent
        try:
            answer = self.client.post(path, body)
        except errors.ServiceError as error:
            stored = self._find_equal(call) if error.is_conflict else None
            if stored is None:
                raise
            self._reader.fetch(stored)
            return
        created = provider_records.parse_answer(
            "POST", path, answer.body, provider_records.parse_provider
        )
        self._cache.store(created)

    def _find_equal(
        self, call: calls.CreateProvider
    ) -> providers.Provider | None:
        """Return the provider if it exists with this name and parent."""
        provider = provider_records.fetch_identity(
            self.client.fetch, call.uuid
        )
        if provider and (provider.name, provider.parent) == (
            call.name,
            call.parent,
        ):
            return provider
        return None

    def _set_inventories(self, call: calls.SetInventories) -> None:
        path = provider_records.provider_path(call.uuid, "inventories")
        provider = self._get_provider(call)
        answer = self.client.put(
            path,
            {
                "resource_provider_generation": provider.generation,
                "inventories": providers.as_dicts(call.inventories),
            },
        )
        generation, inventories = provider_records.parse_answer(
            "PUT", path, answer.body, provider_records.parse_inventories
        )
        self._update(provider, generation=generation, inventories=inventories)

    def _change_traits(self, call: calls.ChangeTraits) -> None:
        path = provider_records.provider_path(call.uuid, "traits")
        provider = self._get_provider(call)
        changed = (provider.traits - call.removed) | call.added
        answer = self.client.put(
            path,
            {
                "resource_provider_generation": provider.generation,
                "traits": sorted(changed),
            },
        )
        generation, traits = provider_records.parse_answer(
            "PUT", path, answer.body, provider_records.parse_provider_traits
        )
        self._update(provider, generation=generation, traits=traits)

    def _update(self, provider: providers.Provider, **changes: Any) -> None:
        self._cache.store(dataclasses.replace(provider, **changes))

    def _delete(self, uuid: str) -> None:
        try:
            self.client.delete(provider_records.provider_path(uuid))
        except errors.ServiceError as error:
            if error.status != _NOT_FOUND:
                raise
        self._cache.remove(uuid)

    def _get_provider(self, call: calls.ProviderCall) -> providers.Provider:
        provider = self._cache.get(call.uuid)
        provider = provider or self._reader.fetch(
            providers.Provider(uuid=call.uuid, name=call.name)
        )
        if provider is None:
            raise errors.ServiceError(
                "GET",
                provider_records.provider_path(call.uuid),
                _NOT_FOUND,
                f"the provider {call.name} is gone",
            )
        return provider


def _build_node(provider: providers.Provider) -> providers.ProviderNode:
    return providers.ProviderNode(
        name=provider.name,
        uuid=provider.uuid,
        parent=provider.parent,
        inventories=provider.inventories,
        traits=provider.traits,
    )


def _by_name(node: providers.ProviderNode) -> str:
    return node.name


class TreeReader:
    """Reads our providers below a compute node. Not thread-safe.

    :param client: of Placement.
    :param cache: the providers of former reads.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        client: service_client.ServiceClient,
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
        return top, self._select_own(root, root_name, listed, proved)

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
            self._client.fetch, identity
        )
        if provider is None:
            self._cache.remove(identity.uuid)
        else:
            self._cache.store(provider)
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
        root_name: str,
        listed: Mapping[str, providers.Provider],
        proved: set[str],
    ) -> dict[str, providers.Provider]:
        """Return our providers, as they are now.

        Other providers, such as Nova's, are never read: their generations
        change with each server. One query lists those with our trait, when
        a provider appears or is renamed.
        """
        cached = {uuid for uuid in listed if self._cache.get(uuid)}
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
        for provider in self._refresh(listed, proved | marked | cached):
            uuid = provider.uuid
            if uuid not in proved and names.OWNER_TRAIT not in provider.traits:
                self._foreign[uuid] = provider.name
                self._cache.remove(uuid)
            elif uuid in proved or not names.is_of_other_host(
                root_name, provider.name
            ):
                own[uuid] = provider
        return own

    def _refresh(
        self, listed: Mapping[str, providers.Provider], uuids: set[str]
    ) -> Iterable[providers.Provider]:
        """Yield providers of the listed generation, or of a newer one."""
        for each in map(listed.__getitem__, uuids):
            if provider := self._cache.get_current(each) or self.fetch(each):
                yield provider
