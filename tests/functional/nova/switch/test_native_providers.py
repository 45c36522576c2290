# SPDX-License-Identifier: Apache-2.0
"""Hosts that had Nova's own vGPU support before, with servers kept."""

import json
from typing import Any

import fixtures
import nova.conf
import pytest
from nova import objects

from nova_accel import model
from nova_accel.model import names, pci
from tests.functional.nova.support import harness
from tests.functional.nova.switch import stock_driver

# Keeps a server of Nova's own flavor from the providers of this library.
NOT_OURS = {f"trait:{names.OWNER_TRAIT}": "forbidden"}
CLOSED = "is closed (reserved = total)"
OFF = json.dumps({"address": harness.T4_B, "use": "off"})


class NativeProviders(stock_driver.StockTestBase):
    def start_stock(self, cards: tuple[Any, ...], kind: str) -> None:
        self.use(stock_driver.STOCK, kind)
        self.start_host(*cards)

    def assert_has_vgpu(self, server: Any) -> None:
        self.assertEqual(1, len(self.mdevs_of(server)))

    def assert_takes_no_legacy_server(self) -> None:
        self.boot(
            stock_driver.NATIVE_FLAVOR | NOT_OURS, expected_state="ERROR"
        )

    def assert_closed(self, record: dict[str, Any]) -> None:
        (inventory,) = record["inventories"].values()
        self.assertEqual(inventory["total"], inventory["reserved"])

    @pytest.mark.oldest
    def test_unused_ones_are_removed_at_the_start(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        self.assertEqual(1, len(self.native_providers()))
        self.switch(stock_driver.ACCEL)
        self.assertEqual({}, self.native_providers())
        self.assertEqual([], self.errors_about(CLOSED))
        self.assert_takes_no_legacy_server()
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        self.assert_has_vgpu(server)

    @pytest.mark.each_release
    def test_used_one_is_closed_until_its_server_is_gone(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        ((_, before),) = self.native_providers().items()
        self._create_trait("CUSTOM_OPERATORS")
        self._set_provider_traits(
            before["uuid"], [*before["traits"], "CUSTOM_OPERATORS"]
        )
        for _ in range(2):
            self.switch(stock_driver.ACCEL)
            self.run_periodics()
            self.run_periodics()
        ((name, record),) = self.native_providers().items()
        self.assertEqual(pci.nodedev_name(harness.T4), name)
        self.assert_closed(record)
        self.assertEqual(
            before["traits"] | {"CUSTOM_OPERATORS"}, record["traits"]
        )
        line, _ = self.errors_about(CLOSED)  # one of each start
        self.assertIn(server["id"], line)
        self.assertIn(harness.T4, line)
        self.assert_takes_no_legacy_server()
        self._reboot_server(server, hard=True)
        self.assert_has_vgpu(server)
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual({}, self.native_providers())
        self.run_periodics()
        self.assertEqual(2, len(self.errors_about(CLOSED)))

    @pytest.mark.long
    def test_vfs_of_one_card_are_one_error(self) -> None:
        self.start_stock(stock_driver.ON_VFS, stock_driver.A40_TYPE)
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)]
        self.assertEqual(4, len(self.native_providers()))
        self.switch(stock_driver.ACCEL)
        used = self.native_providers()
        self.assertEqual(2, len(used))
        for record in used.values():
            self.assert_closed(record)
        (line,) = self.errors_about(CLOSED)
        for word in (stock_driver.A40, *(s["id"] for s in servers)):
            self.assertIn(word, line)
        self.assert_takes_no_legacy_server()

    @pytest.mark.long
    def test_a_card_that_nova_serves_stays_open(self) -> None:
        """Its type is enabled for one of two equal cards."""
        self.start_stock(harness.TWO_T4, stock_driver.T4_TYPE)
        self.assertEqual(2, len(self.native_providers()))
        self.use(stock_driver.ACCEL, stock_driver.T4_TYPE)
        nova.conf.devices.register_dynamic_opts(harness.CONF)
        self.flags(
            group=f"mdev_{stock_driver.T4_TYPE}",
            device_addresses=[harness.T4_B],
        )
        self.flags(group="nova_accel", device_spec=[OFF])
        self.restart()
        for _ in range(2):
            ((name, record),) = self.native_providers().items()
            self.assertEqual(pci.nodedev_name(harness.T4_B), name)
            self.assertEqual(0, record["inventories"]["VGPU"]["reserved"])
            self.run_periodics()
        server = self.boot(stock_driver.NATIVE_FLAVOR | NOT_OURS)
        self.assertEqual(harness.T4_B, self.card_of(server))
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        self.assertEqual(harness.T4, self.card_of(server))

    @pytest.mark.long
    def test_providers_of_others_stay(self) -> None:
        """Of Nova's cards, with other classes, other names."""
        self.use(stock_driver.ACCEL)
        self.start_host(*harness.TWO_T4, device_spec=[OFF])
        native, nova_s = map(pci.nodedev_name, (harness.T4, harness.T4_B))
        for name, resource_class in (
            (f"host1_{nova_s}", "VGPU"),
            (f"host1_{native}", "CUSTOM_FOO"),
            (f"host1_{native}", "PGPU"),
            (f"elsewhere_{native}", "VGPU"),
            (f"host1_{harness.T4}", "VGPU"),
        ):
            uuid = self.create_provider(name, resource_class)
            before = self.providers()[uuid]
            self.switch(stock_driver.ACCEL)
            self.run_periodics()
            self.assertEqual(before, self.providers().get(uuid), name)
            self.placement.delete(f"/resource_providers/{uuid}")
        self.assertEqual([], self.errors_about("vGPU providers"))

    def create_provider(self, name: str, resource_class: str) -> str:
        """Return the uuid of a new provider below host1."""
        body = {
            "name": name,
            "parent_provider_uuid": self.compute_rp_uuids["host1"],
        }
        answer = self.placement.post(
            "/resource_providers", body, version="1.20"
        )
        uuid: str = answer.body["uuid"]
        if resource_class.startswith("CUSTOM_"):
            self._create_resource_class(resource_class)
        self.placement.put(
            f"/resource_providers/{uuid}/inventories",
            {
                "resource_provider_generation": answer.body["generation"],
                "inventories": {resource_class: {"total": 4}},
            },
        )
        return uuid

    @pytest.mark.long
    def test_allocations_to_be_moved_are_not_missing(self) -> None:
        """A full card whose servers have slots, as after an adoption.

        A reshape that moves their allocations to our provider is refused
        if their amounts are reserved there.
        """
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        provider = self.provider(harness.T4)
        slots = names.slot_names(4)
        handles = [names.mdev_uuid(provider, slot) for slot in slots]
        connection = stock_driver.Connection
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{connection.__module__}.Connection.new_uuids", iter(handles)
            )
        )
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in slots]
        for server, slot in zip(servers, slots, strict=True):
            self.give_slot(server, provider, slot)
        # The second start finds the provider that the first one created.
        for _ in range(2):
            self.switch(stock_driver.ACCEL)
        driver = self.computes["host1"].driver
        states = {c.consumer: c.state for c in driver._accel.claims()}
        self.assertEqual(
            {s["id"]: model.ClaimState.MADE for s in servers}, states
        )
        self.assertEqual((4, 0), self.amounts(harness.T4)["VGPU"])
        self.move_allocations(servers, provider)
        self.run_periodics()
        self.assertEqual({}, self.native_providers())
        self.assertEqual((4, 0), self.amounts(harness.T4)["VGPU"])
        self.assertNotIn("are not allocated", self.messages())

    def give_slot(self, server: Any, provider: str, slot: str) -> None:
        """Store a slot, and a flavor with it, in Nova's database."""
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor", "resources"]
        )
        instance.resources = objects.ResourceList(
            objects=[
                objects.Resource(
                    provider_uuid=provider,
                    resource_class="VGPU",
                    identifier=slot,
                )
            ]
        )
        flavor = instance.flavor
        flavor.extra_specs = harness.vgpu_group("", "4Q")
        instance.flavor = flavor
        instance.save()

    def move_allocations(self, servers: Any, provider: str) -> None:
        """Move the vGPUs of servers to our provider, in one reshape."""
        ((_, native),) = self.native_providers().items()
        allocations = {}
        for server in servers:
            path = f"/allocations/{server['id']}"
            record = self.placement.get(path, version="1.37").body
            by_provider = record["allocations"]
            del by_provider[native["uuid"]]
            by_provider[provider] = {
                "resources": {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}
            }
            allocations[server["id"]] = record
        body = {
            "inventories": {
                uuid: {
                    "resource_provider_generation": record["generation"],
                    "inventories": inventories,
                }
                for uuid, record, inventories in (
                    (native["uuid"], native, {}),
                    (
                        provider,
                        self.providers()[provider],
                        self.providers()[provider]["inventories"],
                    ),
                )
            },
            "allocations": allocations,
        }
        answer = self.placement.post("/reshaper", body, version="1.37")
        self.assertEqual(204, answer.status, answer.body)
