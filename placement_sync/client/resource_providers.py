# SPDX-License-Identifier: Apache-2.0
"""Client of Placement: fetch a provider tree, apply one change."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping

from nova_accel import errors
from nova_accel.model import providers
from placement_sync.client import calls, provider_cache, provider_records, rest

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
        client: rest.RestClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet.

        :param clock: returns seconds.
        """
        self.client = client
        self._lock = threading.RLock()
        self._cache = provider_cache.ProviderCache(client, clock)
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
            top, own = self._cache.refresh(root, expected)
            node = providers.ProviderRoot(
                name=top.name if top else "", uuid=root
            )
            nodes = sorted(map(self._build_node, own.values()), key=_by_name)
            return PlacementState(
                root=node if top else None,
                tree=providers.ProviderTree(root=node, nodes=tuple(nodes)),
            )

    def _build_node(
        self, listed: providers.Provider
    ) -> providers.ProviderNode:
        record = self._cache.records[listed.uuid]
        return providers.ProviderNode(
            name=listed.name,
            uuid=listed.uuid,
            parent=listed.parent,
            inventories=record.inventories,
            traits=record.traits,
        )

    def find_root(self, name: str) -> providers.ProviderRoot | None:
        """Return the provider of that name, or None; names are unique."""
        path = f"/resource_providers?name={provider_records.quote_name(name)}"
        with self._lock:
            listed = self._cache.read(path, provider_records.parse_list)
        return next(
            (providers.ProviderRoot(name=p.name, uuid=p.uuid) for p in listed),
            None,
        )

    def fetch_allocations(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """Return the allocations from a provider.

        :return: amounts by resource class, by consumer; empty for a
            provider that does not exist.
        """
        path = provider_records.provider_path(uuid, "allocations")
        with self._lock:
            self._cache.unallocated.pop(uuid, None)
            answer = self._cache.read(path, provider_records.parse_allocations)
            generation, by_consumer = answer or (None, {})
            if generation is not None and not by_consumer:
                self._cache.unallocated[uuid] = generation
            return by_consumer

    def has_allocations(self, uuid: str) -> bool:
        """Return whether a provider has allocations.

        "No" is cached until its generation changes.
        """
        with self._lock:
            record = self._cache.records.get(uuid)
            if (
                record
                and self._cache.unallocated.get(uuid) == record.generation
            ):
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
                self._existing_names |= self._cache.read(
                    f"/traits{query}", provider_records.parse_traits
                )
            if requested - self._existing_names:
                self._existing_names |= self._cache.read(
                    "/resource_classes", provider_records.parse_classes
                )
            return requested & self._existing_names

    def invalidate(self, uuid: str | None = None) -> None:
        """Mark a cached provider as stale, or all of them and all names."""
        with self._lock:
            self._cache.invalidate(uuid)
            if uuid is None:
                self._existing_names.clear()

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
            case calls.UpdateProvider(uuid=uuid, name=name, parent=parent):
                self.client.put(
                    provider_records.provider_path(uuid),
                    {"name": name, "parent_provider_uuid": parent or None},
                )
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
            if not error.is_conflict or not self._exists(call):
                raise
            self._cache.fetch(call.uuid, call.parent)
            return
        created = provider_records.parse_answer(
            "POST", path, answer.body, provider_records.parse_provider
        )
        if created is not None:
            self._cache.records[call.uuid] = provider_records.ProviderRecord(
                generation=created.generation, host=call.parent
            )

    def _exists(self, call: calls.CreateProvider) -> bool:
        """Return whether the provider exists with this name and parent."""
        provider = self._cache.read(
            provider_records.provider_path(call.uuid),
            provider_records.parse_provider,
        )
        return provider is not None and (provider.name, provider.parent) == (
            call.name,
            call.parent,
        )

    def _set_inventories(self, call: calls.SetInventories) -> None:
        path = provider_records.provider_path(call.uuid, "inventories")
        answer = self.client.put(
            path,
            {
                "resource_provider_generation": self._get_record(
                    call
                ).generation,
                "inventories": {
                    name: inventory.as_dict()
                    for name, inventory in call.inventories.items()
                },
            },
        )
        stored = provider_records.parse_answer(
            "PUT", path, answer.body, provider_records.parse_inventories
        )
        if stored is not None:
            self._cache.update(
                call.uuid, generation=stored[0], inventories=stored[1]
            )

    def _change_traits(self, call: calls.ChangeTraits) -> None:
        path = provider_records.provider_path(call.uuid, "traits")
        record = self._get_record(call)
        answer = self.client.put(
            path,
            {
                "resource_provider_generation": record.generation,
                "traits": sorted((record.traits - call.removed) | call.added),
            },
        )
        stored = provider_records.parse_answer(
            "PUT", path, answer.body, provider_records.parse_provider_traits
        )
        if stored is not None:
            self._cache.update(
                call.uuid, generation=stored[0], traits=stored[1]
            )

    def _delete(self, uuid: str) -> None:
        try:
            self.client.delete(provider_records.provider_path(uuid))
        except errors.ServiceError as error:
            if error.status != _NOT_FOUND:
                raise
        self._cache.remove(uuid)

    def _get_record(
        self, call: calls.ProviderCall
    ) -> provider_records.ProviderRecord:
        """Return the cached record of a provider, or fetch it."""
        record = self._cache.records.get(call.uuid)
        record = record or self._cache.fetch(call.uuid, "")
        if record is None:
            raise errors.ServiceError(
                "GET",
                provider_records.provider_path(call.uuid),
                _NOT_FOUND,
                f"the provider {call.name} is gone",
            )
        return record


def _by_name(node: providers.ProviderNode) -> str:
    return node.name
