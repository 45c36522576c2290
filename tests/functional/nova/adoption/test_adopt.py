# SPDX-License-Identifier: Apache-2.0
"""Running servers of Nova's own vGPUs, and `nova-accel adopt`."""

import json
import re
from typing import Any

import pytest
from nova import exception, objects

from nova_accel.config.lines import native_flavors
from tests.functional.nova.adoption import adopting
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.nova.switch import stock_driver

A40_SMALL = {
    "resources_A:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_A:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}


class Adopt(adopting.AdoptionTestBase):
    """An undo restores Placement, Nova's database and the definitions."""

    @pytest.mark.each_release
    def test_running_and_stopped_servers_of_a_card(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)]
        self.stop(servers[1])
        self.add_operators_data(servers[0])
        self.run_periodics()
        before = self.snapshot(*servers)
        self.adopt()
        self.assertEqual({}, self.native_providers())
        provider = self.provider(harness.T4)
        for server, old in zip(servers, before["servers"], strict=True):
            (mdev,) = self.mdevs_of(server)
            self.assertEqual([mdev], old["mdevs"])
            self.assertEqual(
                old["definition"], self.domain(server).definition_xml
            )
            self.assertEqual([(provider, "VGPU", mdev)], self.slots(server))
            self.assertEqual(
                {provider: {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}},
                self.allocations(server),
            )
        self.assertIn(adopting.TRAIT, self.traits(harness.T4))
        self.assertEqual([adopting.AGGREGATE], self.aggregates(provider))
        self.assertEqual((4, 0), self.amounts(harness.T4)["VGPU"])
        self.assertEqual({False}, {*self.snapshot()["defined"].values()})
        self.assert_no_findings()
        self.undo()
        self.assertEqual(before, self.snapshot(*servers))

    @pytest.mark.each_release
    @pytest.mark.long
    def test_servers_on_vfs(self) -> None:
        self.start_stock(stock_driver.ON_VFS, stock_driver.A40_TYPE)
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)]
        before = self.snapshot(*servers)
        self.adopt()
        provider = self.provider(stock_driver.A40)
        mdevs = self.hosts["host1"].mdevs()
        for server in servers:
            (mdev,) = self.mdevs_of(server)
            self.assertEqual(
                [(provider, "VGPU", mdevs[mdev]["parent"])],
                self.slots(server),
            )
        self.assertEqual({}, self.native_providers())
        self.assert_no_findings()
        self.undo()
        self.assertEqual(before, self.snapshot(*servers))

    @pytest.mark.long
    def test_a_full_card_and_a_server_with_two_vgpus(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        servers = [
            self.boot({"resources:VGPU": "2"}),
            self.boot(stock_driver.NATIVE_FLAVOR),
            self.boot(stock_driver.NATIVE_FLAVOR),
        ]
        before = self.snapshot(*servers)
        self.adopt()
        self.assertEqual(
            {"VGPU": 4, "CUSTOM_GPU_MEMORY_MB": 16384},
            self.usages(harness.T4),
        )
        self.assertEqual(2, len(self.slots(servers[0])))
        self.boot(harness.vgpu_group("_A", "4Q"), expected_state="ERROR")
        self.undo()
        self.assertEqual(before, self.snapshot(*servers))

    @pytest.mark.long
    def test_nova_goes_on_after_an_undo(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        self.adopt()
        self.undo()
        (mdev,) = self.mdevs_of(server)
        self._reboot_server(server, hard=True)
        self.assertEqual([mdev], self.mdevs_of(server))
        other = self.boot(stock_driver.NATIVE_FLAVOR)
        self.assertEqual(1, len(self.mdevs_of(other)))
        for each in (server, other):
            self._delete_server(each)
        self.assertNotIn("KeyError", self.messages())

    @pytest.mark.oldest
    @pytest.mark.long
    def test_a_node_with_too_much_memory_is_adopted(self) -> None:
        """Placement 13 refuses a reshape of a node without room."""
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)]
        root = self.compute_rp_uuids["host1"]
        total = self._get_provider_inventory(root)["MEMORY_MB"]["total"]
        self.flags(ram_allocation_ratio=500 / total, reserved_host_memory_mb=0)
        self.run_periodics()
        self.adopt()
        self.assertEqual({}, self.native_providers())
        inventory = self._get_provider_inventory(root)["MEMORY_MB"]
        self.assertEqual(total, inventory["total"])
        self.assertEqual(512, self._get_provider_usages(root)["MEMORY_MB"])
        self.assertEqual(2, self.usages(harness.T4)["VGPU"])
        del servers


class Life(adopting.AdoptionTestBase):
    """Operations on adopted servers."""

    def adopt_two(self, cards: Any, kind: str) -> list[Any]:
        self.start_stock(cards, kind)
        servers = [self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)]
        self.adopt()
        return servers

    def check(self, servers: list[Any], flavor: dict[str, str]) -> None:
        first, second = servers
        before = self.mdevs_of(first)
        self._reboot_server(first, hard=True)
        self.assertEqual(before, self.mdevs_of(first))
        new = self.boot(flavor)
        self.assertEqual(1, len(self.mdevs_of(new)))
        self.restart()
        self.run_periodics()
        self.stop(second)
        self.start_again(second)
        self.assertEqual(1, len(self.mdevs_of(second)))
        for server in (first, second, new):
            self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
        self.assertEqual({}, self.snapshot()["defined"])

    def test_reboot_restart_stop_and_delete_on_a_card(self) -> None:
        servers = self.adopt_two(
            stock_driver.ON_FUNCTION, stock_driver.T4_TYPE
        )
        self.check(servers, harness.vgpu_group("_A", "4Q"))

    @pytest.mark.long
    def test_reboot_restart_stop_and_delete_on_vfs(self) -> None:
        servers = self.adopt_two(stock_driver.ON_VFS, stock_driver.A40_TYPE)
        self.check(servers, A40_SMALL)

    def reboot_host(self) -> None:
        """Reboot the host: no guest and no mdev survives."""
        compute = self.computes["host1"]
        self._end_guests(compute)
        for domain in compute.driver._host.get_connection()._vms.values():
            domain._state = 5
        self.hosts["host1"].reboot()
        self.restart()

    @pytest.mark.long
    def test_a_reboot_of_the_host(self) -> None:
        first, second = self.adopt_two(
            stock_driver.ON_FUNCTION, stock_driver.T4_TYPE
        )
        before = self.mdevs_of(first)
        self.reboot_host()
        self._reboot_server(first, hard=True)
        self._reboot_server(second, hard=True)
        self.assertEqual(before, self.mdevs_of(first))
        self.assertEqual(2, len(self.hosts["host1"].mdevs()))

    @pytest.mark.long
    def test_a_reboot_of_a_host_with_vfs(self) -> None:
        first, second = self.adopt_two(
            stock_driver.ON_VFS, stock_driver.A40_TYPE
        )
        slots = self.slots(first)
        self.reboot_host()
        for server in (first, second):
            self._reboot_server(server, hard=True)
            self.assertEqual(1, len(self.mdevs_of(server)))
        self.assertEqual(slots, self.slots(first))
        self.assertEqual(2, len(self.hosts["host1"].mdevs()))
        self._delete_server(first)
        self._delete_server(second)
        self.run_periodics()
        self.assert_nothing_left()
        self.assertEqual({}, self.snapshot()["defined"])

    @pytest.mark.long
    def test_a_cold_migration(self) -> None:
        first, _ = self.adopt_two(
            stock_driver.ON_FUNCTION, stock_driver.T4_TYPE
        )
        self.start_host(*stock_driver.ON_FUNCTION, name="host2")
        self.be_on("host1")
        self.power_off_to_move()
        self._migrate_server(first)
        self.assertEqual(1, len(self.mdevs_of(first, "host2")))
        self.be_on("host1")
        self._confirm_resize(first)
        self.run_periodics()
        self.assertEqual(1, len(self.hosts["host1"].mdevs()))
        self.assertEqual(1, self.usages(harness.T4)["VGPU"])


class Scheduled(scheduled.ScheduledTestBase, adopting.AdoptionTestBase):
    """With nova-scheduler as the manual configures it."""

    @pytest.mark.long
    def test_shelve_and_unshelve(self) -> None:
        """Nova keeps the flavor of the first request."""
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        first, second = (
            self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)
        )
        self.adopt()
        allocations = self.allocations(first)
        self.flags(shelved_offload_time=0)
        self.api.post_server_action(first["id"], {"shelve": {}})
        self._wait_for_state_change(first, "SHELVED_OFFLOADED")
        self.run_periodics()
        self.assertEqual(self.mdevs_of(second), [*self.hosts["host1"].mdevs()])
        self.assertEqual({}, self.allocations(first))
        self.api.post_server_action(first["id"], {"unshelve": None})
        self._wait_for_state_change(first, "ACTIVE")
        self.assertEqual(allocations, self.allocations(first))
        self.assertEqual(1, len(self.mdevs_of(first)))


class Undo(adopting.AdoptionTestBase):
    @pytest.mark.long
    def test_new_servers_of_novas_type_go_back_too(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        self.adopt()
        new = self.boot(harness.vgpu_group("_A", "4Q"))
        mdevs = self.mdevs_of(new)
        self.undo()
        ((_, native),) = self.native_providers().items()
        self.assertEqual({native["uuid"]: {"VGPU": 1}}, self.allocations(new))
        self.assertEqual([], self.slots(new))
        self.assertEqual(
            dict.fromkeys((*mdevs, *self.mdevs_of(server)), True),
            self.snapshot()["defined"],
        )
        self._reboot_server(new, hard=True)
        self.assertEqual(mdevs, self.mdevs_of(new))
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_a_server_of_another_type_is_named(self) -> None:
        self.start_stock(harness.TWO_T4, stock_driver.T4_TYPE)
        self.boot(stock_driver.NATIVE_FLAVOR)
        self.adopt()
        new = self.boot(harness.vgpu_group("_A", "8Q"))
        text = self.run_command("undo", status=1)
        self.assertIn(f"no-native-form: {new['id']}", text)
        self.assertIn("8Q", text)
        self.assertEqual("adopted", self.state())
        self._delete_server(new)
        self.run_command("undo")
        self.assertEqual("undoing", self.state())

    @pytest.mark.long
    def test_a_host_that_was_handed_back_does_not_start(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        self.boot(stock_driver.NATIVE_FLAVOR)
        self.adopt()
        self.undo()
        self.assertRaises(SystemExit, self.switch, stock_driver.ACCEL)
        self.assertIn("handed back to Nova's own driver", self.messages())


class Refusals(adopting.AdoptionTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        self.server = self.boot(stock_driver.NATIVE_FLAVOR)

    def test_a_plan_changes_nothing(self) -> None:
        before = self.snapshot(self.server)
        text = self.run_command("plan")
        self.assertEqual(before, self.snapshot(self.server))
        (mdev,) = self.mdevs_of(self.server)
        for word in (self.server["id"], mdev, harness.T4, "T4-4Q", "Next: "):
            self.assertIn(word, text)
        (line,) = re.findall("native_flavors = (.*)", text)
        (flavor,) = native_flavors.parse_lines([line])
        self.assertEqual(
            self.read_plan().servers[0].specs_after,
            flavor.apply(stock_driver.NATIVE_FLAVOR),
        )
        report = json.loads(self.run_command("status", "-f", "json"))
        self.assertEqual("planned", report["state"])

    @pytest.mark.long
    def test_an_enabled_host_is_not_adopted(self) -> None:
        self.run_command("plan")
        self.assertIn("--disable host1", self.run_command("apply", status=2))
        self.assertEqual("planned", self.state())

    def test_a_host_that_has_changed_is_planned_again(self) -> None:
        self.disable()
        self.run_command("plan")
        self._delete_server(self.server)
        self.assertIn("have changed", self.run_command("apply", status=2))

    @pytest.mark.long
    def test_an_mdev_that_a_deleted_server_left_is_named(self) -> None:
        (mdev,) = self.mdevs_of(self.server)
        self._delete_server(self.server)
        self.assertEqual({"mdev-without-server": mdev}, self.blockers())
        self.disable()
        text = self.run_command("apply", status=1)
        self.assertIn(f"mdevctl stop --uuid {mdev}", text)

    @pytest.mark.long
    def test_commands_without_a_plan(self) -> None:
        for words in (["apply"], ["undo"], ["status"]):
            self.assertIn("has no plan", self.run_command(*words, status=2))

    @pytest.mark.long
    def test_a_resize_that_waits_is_named(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.power_off_to_move()
        flavor = self._create_flavor(
            extra_spec=stock_driver.NATIVE_FLAVOR,
            memory_mb=300,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        self._resize_server(self.server, flavor)
        self.assertIn("moving-server", self.blockers())


class Interrupted(adopting.AdoptionTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        self.servers = [
            self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(4)
        ]
        self.before = self.snapshot(*self.servers)
        self.plan()

    @pytest.mark.long
    def test_a_server_that_is_deleted_meanwhile(self) -> None:
        self._delete_server(self.servers.pop())
        self.switch(stock_driver.ACCEL)
        self.run_periodics()
        self.assertEqual("adopted", self.state())
        self.assertEqual(3, self.usages(harness.T4)["VGPU"])
        # Nova leaves its mdev behind, which is reserved.
        self.assertEqual((4, 1), self.amounts(harness.T4)["VGPU"])

    @pytest.mark.long
    def test_a_server_that_has_changed_ends_the_service(self) -> None:
        instance = objects.Instance.get_by_uuid(
            self.context, self.servers[0]["id"], expected_attrs=["flavor"]
        )
        flavor = instance.flavor
        flavor.extra_specs = {"resources:VGPU": "1", "hw:boot_menu": "true"}
        instance.flavor = flavor
        instance.save()
        self.assertRaises(SystemExit, self.switch, stock_driver.ACCEL)
        self.assertIn(
            f"the extra specs of server {self.servers[0]['id']} have changed",
            self.messages(),
        )
        self.assertEqual("applying", self.state())
        self.assertEqual([[]] * 4, [self.slots(s) for s in self.servers])

    @pytest.mark.long
    def test_a_plan_that_does_not_hold_ends_the_service(self) -> None:
        native = next(iter(self.native_providers().values()))["uuid"]
        path = f"/allocations/{self.servers[0]['id']}"
        record = self.placement.get(path, version="1.37").body
        del record["allocations"][native]
        self.placement.put(path, record, version="1.37")
        stolen = "dddddddd-0000-4000-8000-00000000000d"
        self.placement.put(
            f"/allocations/{stolen}",
            record
            | {
                "allocations": {native: {"resources": {"VGPU": 1}}},
                "consumer_generation": None,
            },
            version="1.37",
        )
        error = self.fail_to_start()
        self.assertIsInstance(error, exception.ReshapeFailed)
        self.assertIn(stolen, str(error))
        self.assertEqual("applying", self.state())
        answer = self.placement.get(f"/resource_providers/{native}")
        self.assertEqual(200, answer.status)
