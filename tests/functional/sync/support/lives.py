# SPDX-License-Identifier: Apache-2.0
"""A host in Placement, its servers, and an operator with the REST API.

It sends plain requests, not those of the library's client.
"""

import dataclasses
import random
import uuid as uuids
from collections.abc import Callable, Mapping
from typing import Any

import requests

from nova_accel import model
from nova_accel.model import names, providers
from tests.functional.sync.support import judge, servers, trees

PATH = "/resource_providers"
#: Of max_unit, if a client sends none.
_MOST = 0x7FFFFFFF
HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.39",
}


class Client:
    """An operator's client, and Nova's where servers are concerned."""

    def __init__(self, server: servers.Server, tables: judge.Tables) -> None:
        self.tables = tables
        self._url = server.url
        self._session = requests.Session()
        self._session.headers.update(HEADERS)
        self._names: set[str] = set()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return Placement's answer, as an operator's client asks."""
        answer = self._session.request(method, self._url + path, json=body)
        assert answer.ok, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def create(self, uuid: str, name: str, parent: str | None) -> None:
        """Create a provider."""
        body = {"uuid": uuid, "name": name, "parent_provider_uuid": parent}
        self.call("POST", PATH, body)

    def put(self, uuid: str, part: str, value: object) -> None:
        """Replace a part of a provider."""
        generation = self.tables.generation(uuid)
        body = {part: value, "resource_provider_generation": generation}
        self.call("PUT", f"{PATH}/{uuid}/{part}", body)

    def put_inventories(
        self, uuid: str, records: Mapping[str, providers.Inventory]
    ) -> None:
        """Replace a provider's inventories."""
        self._create_names("resource_classes", records)
        bodies = {name: record.as_dict() for name, record in records.items()}
        self.put(uuid, "inventories", bodies)

    def put_traits(self, uuid: str, traits: set[str]) -> None:
        """Replace a provider's traits."""
        self._create_names("traits", traits)
        self.put(uuid, "traits", sorted(traits))

    def _create_names(self, kind: str, custom_names: Any) -> None:
        for name in custom_names:
            if name.startswith(names.CUSTOM) and name not in self._names:
                self.call("PUT", f"/{kind}/{name}")
                self._names.add(name)

    def allocate(self, uuid: str, amounts: Mapping[str, int]) -> str:
        """Allocate amounts of a provider to a new server; return its uuid."""
        consumer = str(uuids.uuid4())
        self.call(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": {uuid: {"resources": dict(amounts)}},
                "consumer_generation": None,
                "project_id": "project",
                "user_id": "user",
                "consumer_type": "INSTANCE",
            },
        )
        return consumer


class Life(Client):
    """A host and its neighbour, with servers and an operator."""

    def __init__(
        self, server: servers.Server, tables: judge.Tables, seed: str
    ) -> None:
        """Register the hosts, with foreign providers."""
        super().__init__(server, tables)
        self.dice = random.Random(seed)  # noqa: S311
        self.root = trees.new_root(f"node-{seed}")
        self.neighbour = trees.new_root(f"neighbour-{seed}")
        self.floors: dict[tuple[str, str], int] = {}
        self.desired = trees.DesiredState(
            tree=providers.ProviderTree(root=self.root),
            host=model.HostState(),
        )
        for root in (self.root, self.neighbour):
            self.create(root.uuid, root.name, None)
            self.put_inventories(root.uuid, {"VCPU": _plain(64)})
            self._add_foreign(root)

    def _add_foreign(self, root: providers.ProviderRoot) -> None:
        """Add providers of Nova's own, one of them in use."""
        name = f"{root.name}_pci_0000_82_00_0"
        self.foreign = trees.new_root(name).uuid
        self.create(self.foreign, name, root.uuid)
        self.put_inventories(self.foreign, {"VGPU": _plain(4)})
        self.put_traits(self.foreign, {"CUSTOM_GOLD"})
        self.allocate(self.foreign, {"VGPU": 1})

    def rows(self) -> judge.Rows:
        """Return all providers of both hosts."""
        return self.tables.read(self.root, self.neighbour)

    def case(self) -> judge.Case:
        """Return the current and the desired state."""
        return judge.Case(
            before=self.rows(), desired=self.desired, floors=dict(self.floors)
        )

    # -- servers ---------------------------------------------------------

    def change_servers(self) -> None:
        """Delete some servers, and create others on free devices."""
        own = trees.own_uuids(self.root)
        for row in self.rows().values():
            if row.uuid not in own:
                continue
            for consumer in {c for c, _ in row.allocations}:
                if self.dice.random() < 0.3:
                    self.call("DELETE", f"/allocations/{consumer}")
            if self.dice.random() < 0.3:
                self._allocate_free(row)

    def _allocate_free(self, row: judge.Row) -> None:
        for name, record in row.inventories.items():
            used = sum(n for (_, c), n in row.allocations.items() if c == name)
            if record.total - record.reserved - used >= 1:
                self.allocate(row.uuid, {name: 1})
                return

    # -- the tree at the beginning ---------------------------------------

    def build(self) -> None:
        """Create the providers of an earlier pass."""
        addresses = trees.draw_addresses(self.dice)
        former = trees.draw_tree(self.dice, self.root, addresses)
        self.floors = trees.draw_floors(self.dice, former)
        order = trees.own_uuids(self.root)
        by_uuid = {node.uuid: node for node in former.nodes}
        for uuid in order:
            if uuid in by_uuid:
                self._build_node(by_uuid[uuid])

    def _build_node(self, node: providers.ProviderNode) -> None:
        self.create(node.uuid, node.name, node.parent)
        if self.dice.random() < 0.05 and not node.name.endswith("mtty"):
            # The service died before the next call.
            self._forget(node.uuid)
            return
        records, traits = trees.recorded(node, self.floors, self.dice)
        if node.inventories and self.dice.random() < 0.4:
            free = {n: _plain(r.total) for n, r in records.items()}
            self.put_inventories(node.uuid, free)
            self.allocate(
                node.uuid,
                {
                    name: self.dice.randint(1, record.total)
                    for name, record in records.items()
                    if self.dice.random() < 0.7
                }
                or {next(iter(records)): 1},
            )
        if records:
            self.put_inventories(node.uuid, records)
        self.put_traits(node.uuid, set(traits))

    def _forget(self, uuid: str, *classes: str) -> None:
        """Forget the operator's reserved amounts."""
        for key in list(self.floors):
            if key[0] == uuid and (not classes or key[1] in classes):
                del self.floors[key]

    # -- the operator ----------------------------------------------------

    def damage(self, chance: float = 0.25) -> list[str]:
        """Damage some of the library's providers with wrong commands."""
        changes = []
        own = trees.own_uuids(self.root)
        for row in self.rows().values():
            if row.uuid in own and self.dice.random() < chance:
                how = self.dice.choice(DAMAGES)
                how(self, row)
                changes.append(f"{how.__name__} {own[row.uuid]}")
        return changes

    def _is_desired(self, row: judge.Row) -> bool:
        return self.desired.tree.node(row.uuid) is not None

    def _is_proved(self, row: judge.Row) -> bool:
        """Return whether name and uuid alone prove the library's provider."""
        root = self.root
        return self._is_desired(row) or names.is_own_provider(
            root.uuid, root.name, row.name, row.uuid
        )

    def wipe_traits(self, row: judge.Row) -> None:
        """``openstack resource provider trait delete``.

        The amounts in traits are lost, too.
        """
        if not self._is_proved(row):
            return
        for name, record in row.inventories.items():
            if record.reserved == record.own_reserved:
                self._forget(row.uuid, name)
        self.put_traits(row.uuid, set())

    def add_traits(self, row: judge.Row) -> None:
        """``openstack resource provider trait set``, own traits and others."""
        some = {t for t in trees.OWN_TRAITS if self.dice.random() < 0.4}
        self.put_traits(row.uuid, {*row.traits, *some, "CUSTOM_RACK_7"})

    def wipe_inventories(self, row: judge.Row) -> None:
        """``openstack resource provider inventory delete``.

        An amount in a trait is not lost.
        """
        used = {name for _, name in row.allocations}
        remaining = {k: v for k, v in row.inventories.items() if k in used}
        gone = row.inventories.keys() - used
        if gone:
            self._forget(
                row.uuid, *(n for n in gone if not self._is_remembered(row, n))
            )
            self.put_inventories(row.uuid, remaining)

    def add_inventory(self, row: judge.Row) -> None:
        """``openstack resource provider inventory class set``."""
        absent = sorted({*trees.CLASSES} - row.inventories.keys())
        if absent:
            added = {absent[0]: _plain(4)}
            self.put_inventories(row.uuid, {**row.inventories, **added})

    def reserve(self, row: judge.Row) -> None:
        """``openstack resource provider inventory set``: reserved, ratio.

        A value that equals the library's own is not an operator's.
        """
        records = dict(row.inventories)
        for name, record in row.inventories.items():
            floor = self.dice.randint(0, 2)
            if floor != record.own_reserved:
                records[name] = dataclasses.replace(
                    record, reserved=floor, allocation_ratio=1.5
                )
                self.floors[row.uuid, name] = floor
        if records:
            self.put_inventories(row.uuid, records)

    def set_total(self, row: judge.Row) -> None:
        """``openstack resource provider inventory class set --total``.

        Its other fields get their defaults; no amount of an operator is lost.
        """
        records = {
            name: record
            if (row.uuid, name) in self.floors
            else providers.Inventory(total=9, max_unit=_MOST)
            for name, record in row.inventories.items()
        }
        if records:
            self.put_inventories(row.uuid, records)

    def delete(self, row: judge.Row) -> None:
        """``openstack resource provider delete``."""
        rows = self.rows()
        is_parent = any(r.parent == row.uuid for r in rows.values())
        if row.uuid in rows and not is_parent and not row.allocations:
            self.call("DELETE", f"{PATH}/{row.uuid}")
            self._forget(row.uuid)

    # -- effects of a pass on the operator's settings --------------------

    def forget_deleted(self) -> None:
        """Forget reserved amounts of deleted records."""
        rows = self.rows()
        for uuid, name in list(self.floors):
            row = rows.get(uuid)
            if row is None or (
                name not in row.inventories
                and not self._is_remembered(row, name)
            ):
                del self.floors[uuid, name]

    def _is_remembered(self, row: judge.Row, name: str) -> bool:
        """Return whether a trait contains the reserved amount of a class."""
        floor = self.floors.get((row.uuid, name), 0)
        return trees.memory(name, floor) in row.traits


def _plain(total: int) -> providers.Inventory:
    return providers.Inventory(total=total, max_unit=total)


Damage = Callable[[Life, judge.Row], None]
DAMAGES: tuple[Damage, ...] = (
    Life.wipe_traits,
    Life.add_traits,
    Life.wipe_inventories,
    Life.add_inventory,
    Life.reserve,
    Life.set_total,
    Life.delete,
)
