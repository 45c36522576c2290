# SPDX-License-Identifier: Apache-2.0
"""Fetch a provider tree from Placement, and apply one change."""

import dataclasses
import threading
import time
import types
from collections.abc import Callable, Mapping

from nova_accel import errors
from nova_accel.model import providers
from placement_sync.client import calls, provider_cache, provider_records, rest

# Characters. uWSGI takes 4096 bytes of request line and headers together
# ("buffer-size"), and the token is one of them.
_MAX_QUERY = 2000
_NOT_FOUND = 404


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementState:
    """A host as Placement has it.

    ``root`` is None where the compute node is not registered. ``tree`` has
    our providers only; ``generations`` are theirs.
    """

    root: providers.ProviderRoot | None
    tree: providers.ProviderTree
    generations: Mapping[str, int]


class PlacementClient:
    """Placement's resource providers; threads may share it.

    Every method raises ServiceError where Placement refuses or doesn't
    answer.
    """

    def __init__(
        self,
        door: rest.RestClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nothing yet.

        :param clock: returns seconds.
        """
        self.door = door
        self._lock = threading.RLock()
        self._memory = provider_cache.ProviderCache(door, clock)
        self._known: set[str] = set()

    # -- what is -----------------------------------------------------------

    def fetch(
        self, root: str, expected: frozenset[str] = frozenset()
    ) -> PlacementState:
        """Return our providers below a compute node.

        Ours is what has our owner's trait, whose uuid is the one we give
        to its name, or what is expected. If nothing has changed since the
        last time, this is one request.

        :param root: uuid of the compute node's provider.
        :param expected: uuids of providers that the host should have.
        """
        with self._lock:
            top, ours = self._memory.refresh(root, expected)
            found = providers.ProviderRoot(
                name=top.name if top else "", uuid=root
            )
            nodes = sorted(map(self._node, ours.values()), key=_by_name)
            return PlacementState(
                root=found if top else None,
                tree=providers.ProviderTree(root=found, nodes=tuple(nodes)),
                generations=types.MappingProxyType(
                    {u: self._memory.records[u].generation for u in ours}
                ),
            )

    def _node(
        self, listed: provider_records.ListedProvider
    ) -> providers.ProviderNode:
        record = self._memory.records[listed.uuid]
        return providers.ProviderNode(
            name=listed.name,
            uuid=listed.uuid,
            parent=listed.parent,
            inventories=record.inventories,
            traits=record.traits,
        )

    def find_root(self, name: str) -> providers.ProviderRoot | None:
        """Return the provider of that name, which no other one has."""
        path = f"/resource_providers?name={provider_records.quoted(name)}"
        with self._lock:
            found = self._memory.read(path, provider_records.parse_list)
        return next(
            (providers.ProviderRoot(name=p.name, uuid=p.uuid) for p in found),
            None,
        )

    def allocations(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """Return what is allocated from a provider.

        :return: amounts by resource class, by consumer; none of a provider
            that does not exist.
        """
        path = provider_records.provider_path(uuid, "allocations")
        with self._lock:
            self._memory.free.pop(uuid, None)
            answer = self._memory.read(
                path, provider_records.parse_allocations
            )
            generation, found = answer or (None, {})
            if generation is not None and not found:
                self._memory.free[uuid] = generation
            return found

    def is_allocated(self, uuid: str) -> bool:
        """Return whether something is allocated from a provider.

        That nothing is stays true while the generation does.
        """
        with self._lock:
            record = self._memory.records.get(uuid)
            if record and self._memory.free.get(uuid) == record.generation:
                return False
            return bool(self.allocations(uuid))

    def known(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return which resource classes and traits Placement knows.

        Those that it knew once are not asked for again.
        """
        with self._lock:
            missing = sorted(wanted - self._known)
            if missing:
                query = (
                    f"?name=in:{provider_records.quoted(','.join(missing))}"
                )
                if len(query) > _MAX_QUERY:
                    query = ""
                self._known |= self._memory.read(
                    f"/traits{query}", provider_records.parse_traits
                )
            if wanted - self._known:
                self._known |= self._memory.read(
                    "/resource_classes", provider_records.parse_classes
                )
            return wanted & self._known

    def forget(self, uuid: str | None = None) -> None:
        """Have a provider read anew, or all of them and all names."""
        with self._lock:
            self._memory.forget(uuid)
            if uuid is None:
                self._known.clear()

    # -- one change --------------------------------------------------------

    def apply(self, call: calls.Call) -> None:
        """Make one change.

        What is done already counts as done: a provider that exists with
        this uuid, name and parent is created, one that doesn't is deleted.
        With a conflict, somebody changed the provider since it was
        fetched.
        """
        with self._lock:
            try:
                self._apply(call)
            except errors.ServiceError:
                if not isinstance(call, calls.Name):
                    self.forget(call.uuid)
                raise

    def _apply(self, call: calls.Call) -> None:
        match call:
            case calls.CreateClass(name=name):
                self.door.put(
                    f"/resource_classes/{provider_records.quoted(name)}"
                )
                self._known.add(name)
            case calls.CreateTrait(name=name):
                self.door.put(f"/traits/{provider_records.quoted(name)}")
                self._known.add(name)
            case calls.CreateProvider():
                self._create(call)
            case calls.UpdateProvider(uuid=uuid, name=name, parent=parent):
                self.door.put(
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
        body = {"uuid": provider_records.checked(call.uuid), "name": call.name}
        if call.parent:
            body["parent_provider_uuid"] = call.parent
        try:
            answer = self.door.post(path, body)
        except errors.ServiceError as error:
            if not error.is_conflict or not self._is_there(call):
                raise
            self._memory.fetch(call.uuid, call.parent)
            return
        made = provider_records.parsed(
            "POST", path, answer.body, provider_records.parse_provider
        )
        if made is not None:
            self._memory.records[call.uuid] = provider_records.ProviderRecord(
                generation=made.generation, host=call.parent
            )

    def _is_there(self, call: calls.CreateProvider) -> bool:
        """Return whether a provider is as it is to be created."""
        found = self._memory.read(
            provider_records.provider_path(call.uuid),
            provider_records.parse_provider,
        )
        return found is not None and (found.name, found.parent) == (
            call.name,
            call.parent,
        )

    def _set_inventories(self, call: calls.SetInventories) -> None:
        path = provider_records.provider_path(call.uuid, "inventories")
        answer = self.door.put(
            path,
            {
                "resource_provider_generation": self._record(call).generation,
                "inventories": {
                    name: inventory.as_dict()
                    for name, inventory in call.inventories.items()
                },
            },
        )
        found = provider_records.parsed(
            "PUT", path, answer.body, provider_records.parse_inventories
        )
        if found is not None:
            self._memory.change(
                call.uuid, generation=found[0], inventories=found[1]
            )

    def _change_traits(self, call: calls.ChangeTraits) -> None:
        path = provider_records.provider_path(call.uuid, "traits")
        record = self._record(call)
        answer = self.door.put(
            path,
            {
                "resource_provider_generation": record.generation,
                "traits": sorted((record.traits - call.removed) | call.added),
            },
        )
        found = provider_records.parsed(
            "PUT", path, answer.body, provider_records.parse_provider_traits
        )
        if found is not None:
            self._memory.change(
                call.uuid, generation=found[0], traits=found[1]
            )

    def _delete(self, uuid: str) -> None:
        try:
            self.door.delete(provider_records.provider_path(uuid))
        except errors.ServiceError as error:
            if error.status != _NOT_FOUND:
                raise
        self._memory.drop(uuid)

    def _record(
        self, call: calls.ProviderCall
    ) -> provider_records.ProviderRecord:
        """Return what a provider is known to have, for a change of it."""
        record = self._memory.records.get(call.uuid)
        record = record or self._memory.fetch(call.uuid, "")
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
