# SPDX-License-Identifier: Apache-2.0
"""A host in Placement, its servers, and an operator with the REST API.

Everything here is done with plain requests, not with the library's code.
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
        found = self._session.request(method, self._url + path, json=body)
        assert found.ok, f"{method} {path}: {found.text}"
        return found.json() if found.content else None

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
        self._know("resource_classes", records)
        found = {name: record.as_dict() for name, record in records.items()}
        self.put(uuid, "inventories", found)

    def put_traits(self, uuid: str, traits: set[str]) -> None:
        """Replace a provider's traits."""
        self._know("traits", traits)
        self.put(uuid, "traits", sorted(traits))

    def _know(self, kind: str, wanted: Any) -> None:
        for name in wanted:
            if name.startswith(names.CUSTOM) and name not in self._names:
                self.call("PUT", f"/{kind}/{name}")
                self._names.add(name)

    def allocate(self, uuid: str, amounts: Mapping[str, int]) -> str:
        """Book some of a provider for a new server; return its uuid."""
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
    """One host, one neighbour, and what happens to them."""

    def __init__(
        self, server: servers.Server, tables: judge.Tables, seed: str
    ) -> None:
        """Register the hosts, with providers that are others'."""
        super().__init__(server, tables)
        self.dice = random.Random(seed)  # noqa: S311
        self.root = trees.new_root(f"node-{seed}")
        self.neighbour = trees.new_root(f"neighbour-{seed}")
        self.floors: dict[tuple[str, str], int] = {}
        self.wish = trees.Wish(
            tree=providers.ProviderTree(root=self.root),
            host=model.HostState(),
        )
        for root in (self.root, self.neighbour):
            self.create(root.uuid, root.name, None)
            self.put_inventories(root.uuid, {"VCPU": _plain(64)})
            self._add_strangers(root)

    def _add_strangers(self, root: providers.ProviderRoot) -> None:
        """Add providers of Nova's own, one of them in use."""
        name = f"{root.name}_pci_0000_82_00_0"
        self.stranger = trees.new_root(name).uuid
        self.create(self.stranger, name, root.uuid)
        self.put_inventories(self.stranger, {"VGPU": _plain(4)})
        self.put_traits(self.stranger, {"CUSTOM_GOLD"})
        self.allocate(self.stranger, {"VGPU": 1})

    def rows(self) -> judge.Rows:
        """Return all that Placement has of both hosts."""
        return self.tables.read(self.root, self.neighbour)

    def case(self) -> judge.Case:
        """Return how things stand, and what is wished."""
        return judge.Case(
            before=self.rows(), wish=self.wish, floors=dict(self.floors)
        )

    # -- servers ---------------------------------------------------------

    def come_and_go(self) -> None:
        """Have servers leave, and others come where there is room."""
        ours = trees.our_uuids(self.root)
        for row in self.rows().values():
            if row.uuid not in ours:
                continue
            for consumer in {c for c, _ in row.allocations}:
                if self.dice.random() < 0.3:
                    self.call("DELETE", f"/allocations/{consumer}")
            if self.dice.random() < 0.3:
                self._take_some(row)

    def _take_some(self, row: judge.Row) -> None:
        for name, record in row.inventories.items():
            used = sum(n for (_, c), n in row.allocations.items() if c == name)
            if record.total - record.reserved - used >= 1:
                self.allocate(row.uuid, {name: 1})
                return

    # -- the tree at the beginning ---------------------------------------

    def build(self) -> None:
        """Give the host what an earlier pass may have left."""
        addresses = trees.draw_addresses(self.dice)
        former = trees.draw_tree(self.dice, self.root, addresses)
        self.floors = trees.draw_floors(self.dice, former)
        order = trees.our_uuids(self.root)
        by_uuid = {node.uuid: node for node in former.nodes}
        for uuid in order:
            if uuid in by_uuid:
                self._build_node(by_uuid[uuid])

    def _build_node(self, node: providers.ProviderNode) -> None:
        self.create(node.uuid, node.name, node.parent)
        if self.dice.random() < 0.05 and not node.name.endswith("mtty"):
            # Who made it died before the next call.
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
        """Forget what the operator had reserved there."""
        for key in list(self.floors):
            if key[0] == uuid and (not classes or key[1] in classes):
                del self.floors[key]

    # -- the operator ----------------------------------------------------

    def damage(self, chance: float = 0.25) -> list[str]:
        """Do to some of our providers what wrong commands do."""
        done = []
        ours = trees.our_uuids(self.root)
        for row in self.rows().values():
            if row.uuid in ours and self.dice.random() < chance:
                how = self.dice.choice(DAMAGES)
                how(self, row)
                done.append(f"{how.__name__} {ours[row.uuid]}")
        return done

    def _is_wished(self, row: judge.Row) -> bool:
        return self.wish.tree.node(row.uuid) is not None

    def _is_proved(self, row: judge.Row) -> bool:
        """Return whether its name alone shows that a provider is ours."""
        root = self.root
        return self._is_wished(row) or names.is_own_provider(
            root.uuid, root.name, row.name, row.uuid
        )

    def rename(self, row: judge.Row) -> None:
        """``openstack resource provider set --name``."""
        if names.OWNER_TRAIT not in row.traits and not self._is_wished(row):
            return
        body = {"name": f"{row.name}-x", "parent_provider_uuid": row.parent}
        self.call("PUT", f"{PATH}/{row.uuid}", body)

    def move(self, row: judge.Row) -> None:
        """``openstack resource provider set --parent-provider``.

        What moved below another host is found again if it is wished for:
        of the others nobody asks.
        """
        places = [self.root.uuid, self.stranger_of(self.root)]
        if self._is_wished(row):
            places += [self.neighbour.uuid, self.stranger_of(self.neighbour)]
        body = {
            "name": row.name,
            "parent_provider_uuid": self.dice.choice(places),
        }
        self.call("PUT", f"{PATH}/{row.uuid}", body)

    def stranger_of(self, root: providers.ProviderRoot) -> str:
        """Return the uuid of a host's provider that is not ours."""
        return trees.new_root(f"{root.name}_pci_0000_82_00_0").uuid

    def wipe_traits(self, row: judge.Row) -> None:
        """``openstack resource provider trait delete``.

        With them goes what they remember.
        """
        if not self._is_proved(row):
            return
        for name, record in row.inventories.items():
            if record.reserved == record.own_reserved:
                self._forget(row.uuid, name)
        self.put_traits(row.uuid, set())

    def add_traits(self, row: judge.Row) -> None:
        """``openstack resource provider trait set``, of ours and others."""
        some = {t for t in trees.OUR_TRAITS if self.dice.random() < 0.4}
        self.put_traits(row.uuid, {*row.traits, *some, "CUSTOM_RACK_7"})

    def wipe_inventories(self, row: judge.Row) -> None:
        """``openstack resource provider inventory delete``.

        What a trait remembers is not lost with it.
        """
        used = {name for _, name in row.allocations}
        left = {k: v for k, v in row.inventories.items() if k in used}
        gone = row.inventories.keys() - used
        if gone:
            self._forget(
                row.uuid, *(n for n in gone if not self._is_kept(row, n))
            )
            self.put_inventories(row.uuid, left)

    def add_inventory(self, row: judge.Row) -> None:
        """``openstack resource provider inventory class set``."""
        absent = sorted({*trees.CLASSES} - row.inventories.keys())
        if absent:
            added = {absent[0]: _plain(4)}
            self.put_inventories(row.uuid, {**row.inventories, **added})

    def reserve(self, row: judge.Row) -> None:
        """``openstack resource provider inventory set``: reserved, ratio.

        What is set to just what the library reserves is no news to it.
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

    def delete(self, row: judge.Row) -> None:
        """``openstack resource provider delete``."""
        rows = self.rows()
        is_parent = any(r.parent == row.uuid for r in rows.values())
        if row.uuid in rows and not is_parent and not row.allocations:
            self.call("DELETE", f"{PATH}/{row.uuid}")
            self._forget(row.uuid)

    # -- what a pass does to the operator's settings ---------------------

    def settle(self) -> None:
        """Forget what was reserved in records that are gone."""
        rows = self.rows()
        for uuid, name in list(self.floors):
            row = rows.get(uuid)
            if row is None or (
                name not in row.inventories and not self._is_kept(row, name)
            ):
                del self.floors[uuid, name]

    def _is_kept(self, row: judge.Row, name: str) -> bool:
        """Return whether a trait remembers what was reserved of a class."""
        floor = self.floors.get((row.uuid, name), 0)
        return trees.memory(name, floor) in row.traits


def _plain(total: int) -> providers.Inventory:
    return providers.Inventory(total=total, max_unit=total)


Damage = Callable[[Life, judge.Row], None]
DAMAGES: tuple[Damage, ...] = (
    Life.rename,
    Life.move,
    Life.wipe_traits,
    Life.add_traits,
    Life.wipe_inventories,
    Life.add_inventory,
    Life.reserve,
    Life.delete,
)
