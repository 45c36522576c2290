# SPDX-License-Identifier: Apache-2.0
"""Cloud of fragmented cards in a real Placement, with servers that move.

Nova's part of a migration is done as nova-conductor does it: candidates of
Placement for the named host, allocations of both hosts while it runs, those
of the source released at its end. The hosts' part is a card of each, whose
provider is written as its nova-compute writes it. A migration ends with the
third reading of its server.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records
from tests.functional.sync.support import nova_standin, servers
from tests.support.placement import clouds, fragmented

GPU, LAYOUT = "L40S", "mixed"
#: Amounts of each compute node.
NODE = {"VCPU": 64, "MEMORY_MB": 262144, "DISK_GB": 4000}
_READINGS = 3
_ACCEPTED, _REFUSED = 202, 400


class MovingCloud:
    """Hosts with one card each; servers are named by numbers.

    ``requests`` are the actions that Nova was asked for. Servers of ``stuck``
    come back from their migration, and Nova refuses to migrate those of
    ``refused``, with the reason.
    """

    def __init__(
        self,
        placement: servers.Server,
        nova: nova_standin.Nova,
        cards: Mapping[str, model.Device],
    ) -> None:
        """Write the cards to Placement.

        :param cards: by host and address.
        """
        self._placement, self._nova = placement, nova
        self.requests: list[tuple[str, Any]] = []
        self.stuck: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.devices = dict(cards)
        self._running: dict[str, tuple[str, str, int]] = {}
        nova.act, nova.before = self._act, self._advance
        world = fragmented.make_world(cards, GPU, LAYOUT)
        self._at = {
            d.uuid: at
            for d, at in zip(world.fleet.devices, cards, strict=True)
        }
        for device in world.fleet.devices:
            self._add_provider(device.root, device.host)
            self._set_inventories(device.root, NODE)
            self._add_provider(device.uuid, device.name, device.root)
            self.publish(device.uuid)
            nova.add_host(device.root, device.host)
        for holding in world.fleet.holdings:
            server = world.fleet.servers[holding.consumer]
            assert server.flavor is not None
            host = self.host_of(holding.provider)
            nova.add_server(
                server.uuid, host, server.name, **server.flavor.extra_specs
            )
            self._allocate(server.uuid, holding.provider)

    def host_of(self, card: str) -> str:
        return self._at[card].partition("/")[0]

    def find_card(self, host: str) -> str:
        """Return the uuid of a host's card."""
        return next(u for u in self._at if self.host_of(u) == host)

    # -- Placement ------------------------------------------------------------

    def publish(self, card: str) -> None:
        """Write a card as its host does."""
        at = self._at[card]
        world = fragmented.make_world({at: self.devices[at]}, GPU, LAYOUT)
        (device,) = world.fleet.devices
        self._set_inventories(
            card, {n: c.capacity for n, c in device.capacities.items()}
        )
        self.set_traits(card, device.traits)

    def set_traits(self, card: str, traits: frozenset[str]) -> None:
        path = f"/resource_providers/{card}"
        for trait in sorted(traits):
            if trait.startswith(names.CUSTOM):
                self._placement.call("PUT", f"/traits/{trait}")
        generation = self._placement.call("GET", path)["generation"]
        self._placement.call(
            "PUT",
            f"{path}/traits",
            {
                "resource_provider_generation": generation,
                "traits": sorted(traits),
            },
        )

    def read_traits(self, card: str) -> frozenset[str]:
        path = f"/resource_providers/{card}/traits"
        return frozenset(self._placement.call("GET", path)["traits"])

    def _add_provider(self, own: str, name: str, parent: str = "") -> None:
        body = {"uuid": own, "name": name}
        if parent:
            body["parent_provider_uuid"] = parent
        self._placement.call("POST", "/resource_providers", body)

    def _set_inventories(self, own: str, totals: Mapping[str, int]) -> None:
        for name in totals:
            if name.startswith(names.CUSTOM):
                self._placement.call("PUT", f"/resource_classes/{name}")
        path = f"/resource_providers/{own}"
        generation = self._placement.call("GET", path)["generation"]
        self._placement.call(
            "PUT",
            f"{path}/inventories",
            {
                "resource_provider_generation": generation,
                "inventories": {
                    name: providers.Inventory(
                        total=total, max_unit=total
                    ).as_dict()
                    for name, total in totals.items()
                },
            },
        )

    def list_cards(self, server: str) -> set[str]:
        """Return the hosts of the cards that a consumer has units of."""
        path = f"/allocations/{server}"
        units = self._placement.call("GET", path)["allocations"]
        return {self.host_of(u) for u in units if u in self._at}

    def _allocate(self, server: str, card: str, migration: str = "") -> None:
        """Allocate a card to a server, and what it had to a migration."""
        path = f"/allocations/{server}"
        before = self._placement.call("GET", path)
        flavor = self._nova.servers[server]["flavor"]
        (group,) = flavors.parse_groups(flavor["extra_specs"])
        node = {
            "VCPU": flavor["vcpus"],
            "MEMORY_MB": flavor["ram"],
            "DISK_GB": flavor["disk"] + flavor["ephemeral"] + 2,
        }
        root = clouds.root(self.host_of(card))
        allocations = {
            root: {"resources": node},
            card: {"resources": dict(group.resources)},
        }
        body = {
            server: {
                "allocations": allocations,
                "consumer_generation": before.get("consumer_generation"),
            }
        }
        if migration:
            body[migration] = {
                "allocations": {
                    own: {"resources": units["resources"]}
                    for own, units in before["allocations"].items()
                },
                "consumer_generation": None,
            }
        for each in body.values():
            each |= {
                "project_id": "p",
                "user_id": "u",
                "consumer_type": "INSTANCE",
            }
        self._placement.call("POST", "/allocations", body)

    def release(self, consumer: str) -> None:
        self._placement.call("DELETE", f"/allocations/{consumer}")

    # -- Nova -----------------------------------------------------------------

    def _act(self, server: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append((server, body))
        if server in self.refused:
            message = self.refused[server]
            return _REFUSED, {"badRequest": {"code": 400, "message": message}}
        record = self._nova.servers[server]
        if "confirmResize" in body:
            record["status"] = "SHUTOFF"
            return _ACCEPTED, None
        target = body.get("os-migrateLive") or body["migrate"]
        card = self._choose(server, target["host"])
        if not card:
            message = "No valid host was found."
            return _REFUSED, {"badRequest": {"code": 400, "message": message}}
        migration = str(uuid.uuid4())
        if server not in self.stuck:
            self._allocate(server, card, migration)
        record["OS-EXT-STS:task_state"] = "migrating"
        self._running[server] = card, migration, _READINGS
        return _ACCEPTED, None

    def _choose(self, server: str, host: str) -> str:
        """Return the card of a host that Placement offers, "" for none."""
        specs = self._nova.servers[server]["flavor"]["extra_specs"]
        (group,) = flavors.parse_groups(specs)
        query = provider_records.group_query(group)
        query[f"in_tree{group.suffix}"] = clouds.root(f"{host}")
        body = self._placement.call(
            "GET", provider_records.build_path("/allocation_candidates", query)
        )
        return next(
            (
                own
                for candidate in body["allocation_requests"]
                for own in candidate["allocations"]
            ),
            "",
        )

    def _advance(self, path: str) -> None:
        """Let a migration go on when its server is read."""
        server = path.rpartition("/")[2]
        if server not in self._running:
            return
        card, migration, rest = self._running.pop(server)
        if rest:
            self._running[server] = card, migration, rest - 1
            return
        record = self._nova.servers[server]
        record["OS-EXT-STS:task_state"] = None
        if server in self.stuck:
            self._nova.failures[server] = self.stuck[server]
            return
        self._finish(server, card, migration)

    def _finish(self, server: str, card: str, migration: str) -> None:
        record = self._nova.servers[server]
        source = self.find_card(record["OS-EXT-SRV-ATTR:hypervisor_hostname"])
        host = self.host_of(card)
        (partition,) = (
            p
            for p in self.devices[self._at[source]].partitions
            if p.handle == server
        )
        for own, device in (
            (
                source,
                device_capacity.remove_partitions(
                    self.devices[self._at[source]], [server]
                ),
            ),
            (
                card,
                fragmented.add(
                    self.devices[self._at[card]], partition.profile, server
                ),
            ),
        ):
            self.devices[self._at[own]] = device
        self.release(migration)
        for own in (source, card):
            self.publish(own)
        record |= {
            "OS-EXT-SRV-ATTR:host": host,
            "OS-EXT-SRV-ATTR:hypervisor_hostname": host,
        }
        if record["status"] == "SHUTOFF":
            record["status"] = "VERIFY_RESIZE"
