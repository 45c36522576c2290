# SPDX-License-Identifier: Apache-2.0
"""Running servers of Nova's `[pci] device_spec`, and `nova-accel adopt`."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import fixtures
import pytest
from nova import exception, objects

from nova_accel.config.lines import native_flavors
from tests.functional.nova.adoption import adopting
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import harness, libvirtd
from tests.functional.nova.switch import stock_driver

ALIAS = {"pci_passthrough:alias": "gpu:1"}
SPEC = {"vendor_id": "10de", "product_id": "1e07"}
AUDIO = {"vendor_id": "10de", "product_id": "10f7"}
CLASS = "CUSTOM_PCI_10DE_1E07"
TWO_UNITS = {"pci_passthrough:alias": "gpu:2"}
TWO_GPUS = tuple(
    dataclasses.replace(
        harness.GPU_CARDS[0],
        address=f"0000:{bus:02x}:00.0",
        group=bus,
        multifunction=False,
    )
    for bus in (0x72, 0x73)
)
GPU_GROUP = adopting.GPU_GROUP


class PciTestBase(adopting.AdoptionTestBase):
    """A host of Nova's own driver with whole GPUs."""

    source = "nova-pci"
    is_reported = True
    specs: tuple[dict[str, Any], ...] = (SPEC,)
    aliases: tuple[dict[str, Any], ...] = (SPEC | {"name": "gpu"},)

    def setUp(self) -> None:
        super().setUp()
        self.flags(group="pci", report_in_placement=self.is_reported)
        self.flags(group="filter_scheduler", pci_in_placement=self.is_reported)
        self.flags(group="pci", alias=list(map(json.dumps, self.aliases)))
        path = Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        path.write_text(
            "\n".join(
                [
                    "[pci]",
                    *(f"device_spec = {json.dumps(s)}" for s in self.specs),
                    *(f"alias = {json.dumps(a)}" for a in self.aliases),
                ]
            )
        )
        self.program_options = ("--config-file", str(path))

    def use(self, driver: str, *types: str) -> None:
        """Set the driver, and Nova's functions if it is Nova's own."""
        super().use(driver)
        is_own = driver == stock_driver.STOCK
        self.name_functions(is_named=is_own)

    def name_functions(self, is_named: bool = True) -> None:
        lines = list(map(json.dumps, self.specs)) if is_named else []
        self.flags(group="pci", device_spec=lines)

    def start_cards(self, *cards: Any) -> None:
        self.start_stock(cards or harness.GPU_CARDS, "")

    def undo(self) -> None:
        """Hand the host back as the manual says."""
        self.run_command("undo")
        self.end_service()
        self.name_functions()
        self.restart()
        self.run_periodics()
        self.assertEqual("undone", self.state())
        self.switch(stock_driver.STOCK)
        self.run_periodics()

    def rows(self) -> dict[str, tuple[str, str | None, str | None]]:
        """Return Nova's records of functions by address."""
        node = objects.ComputeNode.get_by_nodename(self.context, "host1")
        listed = objects.PciDeviceList.get_by_compute_node(
            self.context, node.id
        )
        return {
            row.address: (row.status, row.instance_uuid, row.request_id)
            for row in listed
        }

    def snapshot(self, *servers: Any) -> dict[str, Any]:
        return super().snapshot(*servers) | {"rows": self.rows()}

    def _describe(self, server: Any) -> dict[str, Any]:
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["pci_requests"]
        )
        return super()._describe(server) | {
            "functions": self.functions_of(server),
            "requests": instance.pci_requests.to_json(),
        }


class Adopt(PciTestBase):
    """An undo restores Placement and Nova's database."""

    @pytest.mark.each_release
    def test_a_running_and_a_stopped_server_of_whole_cards(self) -> None:
        self.start_cards(*TWO_GPUS)
        servers = [self.boot(ALIAS) for _ in range(2)]
        self.stop(servers[1])
        self.run_periodics()
        before = self.snapshot(*servers)
        self.adopt()
        self.assertEqual({}, self.rows())
        for server, old in zip(servers, before["servers"], strict=True):
            now = self.assert_whole_card(server, old)
            self.assertEqual("[]", now["requests"])
        self.assertEqual(2, len(self.providers()))
        self.assert_no_findings()
        self.undo()
        self.assertEqual(before, self.snapshot(*servers))

    @pytest.mark.long
    def test_a_plan_has_the_line_of_its_flavors(self) -> None:
        self.start_cards(*TWO_GPUS)
        server = self.boot(ALIAS)
        before = self.snapshot(server)
        text = self.run_command("plan")
        self.assertEqual(before, self.snapshot(server))
        (line,) = re.findall("native_flavors = (.*)", text)
        (flavor,) = native_flavors.parse_catalog_lines([line])
        self.assertEqual(GPU_GROUP, flavor.apply(ALIAS))
        self.assertEqual(ALIAS, flavor.invert().apply(GPU_GROUP))

    @pytest.mark.long
    def test_nova_goes_on_after_an_undo(self) -> None:
        self.start_cards(*TWO_GPUS)
        server = self.boot(ALIAS)
        self.adopt()
        new = self.boot(GPU_GROUP)
        self.undo()
        functions = self.functions_of(server)
        for each in (server, new):
            before = self.functions_of(each)
            self._reboot_server(each, hard=True)
            self.assertEqual(before, self.functions_of(each))
            self.assertEqual([], self.slots(each))
            (allocated,) = self.allocations(each).values()
            self.assertEqual(self.native_amounts(), allocated)
        self._delete_server(server)
        other = self.boot(ALIAS)
        self.assertEqual(functions, self.functions_of(other))
        self.assertNotIn("KeyError", self.messages())

    def native_amounts(self) -> dict[str, int]:
        return {CLASS: 1}


@pytest.mark.long
class AdoptUnreported(Adopt):
    """Without providers of Nova's: ``report_in_placement`` is off."""

    is_reported = False

    def test_nova_goes_on_after_an_undo(self) -> None:
        self.start_cards(*TWO_GPUS)
        server = self.boot(ALIAS)
        self.adopt()
        new = self.boot(GPU_GROUP)
        self.undo()
        for each in (server, new):
            before = self.functions_of(each)
            self._reboot_server(each, hard=True)
            self.assertEqual(before, self.functions_of(each))
            self.assertEqual({}, self.allocations(each))


class AdoptTwoFunctions(PciTestBase):
    """A GPU and its audio function, each by an alias of its own."""

    specs = (SPEC, AUDIO)
    aliases = (SPEC | {"name": "gpu"}, AUDIO | {"name": "audio"})

    @pytest.mark.long
    def test_they_are_one_slot(self) -> None:
        self.start_cards(*harness.GPU_CARDS)
        server = self.boot({"pci_passthrough:alias": "gpu:1,audio:1"})
        before = self.snapshot(server)
        functions = sorted(self.functions_of(server))
        self.assertEqual([harness.GPU, harness.GPU_AUDIO], functions)
        self.adopt()
        provider = self.provider(harness.GPU)
        self.assertEqual({provider: {"PGPU": 1}}, self.allocations(server))
        self.assertEqual({}, self.rows())
        self._reboot_server(server, hard=True)
        self.assertEqual(functions, sorted(self.functions_of(server)))
        self.undo()
        now = self.snapshot(server)
        self.assertEqual(before["rows"], now["rows"])
        self.assertEqual(before["providers"], now["providers"])
        for name in ("allocations", "requests", "slots", "specs"):
            self.assertEqual(
                before["servers"][0][name], now["servers"][0][name]
            )
        self._reboot_server(server, hard=True)
        self.assertEqual(functions, sorted(self.functions_of(server)))


class AdoptVfs(PciTestBase):
    """VFs of one card, each without a type."""

    specs = ({"vendor_id": "1002", "product_id": "692f"},)
    aliases = (
        {
            "name": "gpu",
            "vendor_id": "1002",
            "product_id": "692f",
            "device_type": "type-VF",
        },
    )

    def start_vfs(self) -> None:
        self.start_cards(
            dataclasses.replace(test_typed_vfs.AMD, enabled_vfs=4)
        )

    @pytest.mark.each_release
    @pytest.mark.long
    def test_two_servers_one_of_two_vfs(self) -> None:
        self.start_vfs()
        servers = [self.boot(ALIAS), self.boot(TWO_UNITS)]
        self.run_periodics()
        before = self.snapshot(*servers)
        self.adopt()
        provider = self.provider(test_typed_vfs.S7150)
        for server, old in zip(servers, before["servers"], strict=True):
            self.assertEqual(
                sorted((provider, "VGPU", f) for f in old["functions"]),
                self.slots(server),
            )
        self.assertEqual(3, self.usages(test_typed_vfs.S7150)["VGPU"])
        self.assert_no_findings()
        self.undo()
        self.assertEqual(before, self.snapshot(*servers))


@pytest.mark.long
class AdoptUnreportedVfs(AdoptVfs):
    is_reported = False


class AdoptTypedVfs(PciTestBase):
    """VFs that Nova gives with ``managed`` no; an operator typed them."""

    specs = (
        {
            "address": {"bus": "3d", "slot": "00", "function": "4"},
            "managed": "no",
        },
    )
    aliases = (
        {
            "name": "gpu",
            "vendor_id": "10de",
            "product_id": "26b9",
            "device_type": "type-VF",
        },
    )

    def type_vf(self) -> None:
        bus = Path(self.hosts["host1"].root) / "sys/bus/pci/devices"
        place = bus / "0000:3d:00.4/nvidia/current_vgpu_type"
        libvirtd.store(place, test_typed_vfs.EIGHT)

    @pytest.mark.long
    def test_a_server_keeps_its_type(self) -> None:
        self.start_cards(test_typed_vfs.CARD)
        self.type_vf()
        server = self.boot(ALIAS)
        before = self.snapshot(server)
        self.adopt()
        (function,) = self.functions_of(server)
        provider = self.provider(test_typed_vfs.L40S)
        self.assertEqual(
            {provider: {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}},
            self.allocations(server),
        )
        self.assertEqual([(provider, "VGPU", function)], self.slots(server))
        self.assertEqual(test_typed_vfs.EIGHT, self.vgpu_types()[function])
        self.assert_no_findings()
        self._reboot_server(server, hard=True)
        self.assertEqual([function], self.functions_of(server))
        self.undo()
        now = self.snapshot(server)
        self.assertEqual(before["rows"], now["rows"])
        self.assertEqual(before["providers"], now["providers"])


class Interrupted(PciTestBase):
    """A plan that does not hold when nova-compute starts."""

    def start_planned(self) -> list[Any]:
        self.start_cards(*TWO_GPUS)
        servers = [self.boot(ALIAS) for _ in range(2)]
        self.run_periodics()
        self.before = self.snapshot(*servers)
        self.plan()
        return servers

    @pytest.mark.long
    def test_a_failed_attempt_is_undone(self) -> None:
        """Nova's records are free already, and allocations not moved."""
        servers = self.start_planned()
        with fixtures.MonkeyPatch(
            "nova.scheduler.client.report.SchedulerReportClient._reshape",
            _refuse_reshape,
        ):
            error = self.fail_to_start()
        self.assertIsInstance(error, exception.ReshapeFailed)
        self.assertEqual("applying", self.state())
        self.assertEqual({None}, {row[1] for row in self.rows().values()})
        self.run_command("undo")
        self.name_functions()
        self.restart()
        self.run_periodics()
        self.assertEqual("undone", self.state())
        self.switch(stock_driver.STOCK)
        self.run_periodics()
        self.assertEqual(self.before, self.snapshot(*servers))

    @pytest.mark.long
    def test_functions_that_nova_assigned_otherwise(self) -> None:
        self.start_planned()
        node = objects.ComputeNode.get_by_nodename(self.context, "host1")
        for row in objects.PciDeviceList.get_by_compute_node(
            self.context, node.id
        ):
            row.request_id = self.compute_rp_uuids["host1"]
            row.save()
        self.assertRaises(SystemExit, self.switch, stock_driver.ACCEL)
        self.assertIn("Nova has assigned", self.messages())
        self.assertEqual("applying", self.state())
        self.assertNotIn(None, {row[1] for row in self.rows().values()})

    @pytest.mark.long
    def test_an_undo_without_nova_s_lines_is_refused(self) -> None:
        self.start_cards(*TWO_GPUS)
        self.boot(ALIAS)
        self.adopt()
        self.run_command("undo")
        self.assertRaises(SystemExit, self.restart)
        self.assertIn("no line of [pci] device_spec", self.messages())


def _refuse_reshape(*_: Any) -> None:
    raise exception.ReshapeFailed(error="refused")


class Life(scheduled.ScheduledTestBase, PciTestBase):
    """Operations on adopted servers, with nova-scheduler as in the manual.

    Nova keeps the aliases of the first request.
    """

    more_filters = ("PciPassthroughFilter",)

    @pytest.mark.long
    def test_reboot_restart_stop_and_delete(self) -> None:
        self.start_cards(*TWO_GPUS)
        first, second = (self.boot(ALIAS) for _ in range(2))
        before = self.functions_of(first)
        self.adopt()
        self._reboot_server(first, hard=True)
        self.assertEqual(before, self.functions_of(first))
        self.restart()
        self.run_periodics()
        self.stop(second)
        self.start_again(second)
        self.assertEqual(1, len(self.functions_of(second)))
        self._delete_server(first)
        new = self.boot(GPU_GROUP)
        self.assertEqual(before, self.functions_of(new))
        for server in (second, new):
            self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
        self.assertEqual({}, self.rows())

    @pytest.mark.long
    def test_a_cold_migration(self) -> None:
        self.start_cards(*harness.GPU_CARDS)
        server = self.boot(ALIAS)
        self.adopt()
        self.start_host(*TWO_GPUS[:1], name="host2")
        self.be_on("host1")
        self.power_off_to_move()
        self._migrate_server(server)
        self.assertEqual(
            [TWO_GPUS[0].address], self.functions_of(server, "host2")
        )
        self.be_on("host1")
        self._confirm_resize(server)
        self.run_periodics()
        self.assertEqual({}, self.usages(harness.GPU))
        self._delete_server(server)

    @pytest.mark.long
    def test_shelve_and_unshelve(self) -> None:
        self.start_cards(*TWO_GPUS)
        server = self.boot(TWO_UNITS)
        self.adopt()
        allocations = self.allocations(server)
        self.flags(shelved_offload_time=0)
        self.api.post_server_action(server["id"], {"shelve": {}})
        self._wait_for_state_change(server, "SHELVED_OFFLOADED")
        self.assertEqual({}, self.allocations(server))
        self.api.post_server_action(server["id"], {"unshelve": None})
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual(allocations, self.allocations(server))
        self.assertEqual(2, len(self.functions_of(server)))

    @pytest.mark.long
    def test_adopted_and_stock_hosts_side_by_side(self) -> None:
        self.start_cards(*TWO_GPUS[:1])
        adopted = self.boot(ALIAS)
        self.adopt()
        self.use(stock_driver.STOCK)
        self.start_host(*TWO_GPUS[1:], name="host2")
        stock = self.boot(ALIAS)
        self.assertEqual(
            [TWO_GPUS[1].address], self.functions_of(stock, "host2")
        )
        self.boot(ALIAS, expected_state="ERROR")
        self._delete_server(adopted)
        new = self.boot(GPU_GROUP)
        self.assertEqual([TWO_GPUS[0].address], self.functions_of(new))


@pytest.mark.long
class LifeUnreported(Life):
    is_reported = False
