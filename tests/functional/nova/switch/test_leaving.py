# SPDX-License-Identifier: Apache-2.0
"""Hosts that return to Nova's own driver, as the manual says and otherwise."""

import contextlib
import datetime
import io
import json
import os
from typing import Any

import pytest
from nova import objects

from placement_sync.client import nova_api, rest, stock_compute
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import audit, harness
from tests.functional.nova.switch import stock_driver
from tests.functional.sync.commands import programs

SMALL = harness.vgpu_group("_A", "4Q")
WHOLE = harness.whole_gpu_group("_A")
CARDS = (*stock_driver.ON_FUNCTION, *harness.GPU_CARDS)


class Leaving(stock_driver.StockTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(scheduled.without_keystone())

    def start(self) -> None:
        self.use(stock_driver.ACCEL)
        self.start_host(*CARDS)

    def stop(self) -> None:
        """End nova-compute of host1: the kernel releases its lock."""
        lock = self.computes["host1"].driver._accel._service_lock
        os.close(lock._descriptor)
        lock._descriptor = None

    def leave(self, *words: str, status: int = 0) -> str:
        """Return the output of `nova-accel leave` on host1."""
        return self.run_command("leave", *words, status=status)

    def run_command(self, *words: str, status: int = 0) -> str:
        out, err = io.StringIO(), io.StringIO()
        audit.hide_uptime(self)
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            exit_status = programs.main(
                [
                    *words,
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                    *("--root", str(self.hosts["host1"].root)),
                    *("--state-dir", self.state_dir()),
                ]
            )
        text = out.getvalue() + err.getvalue()
        self.assertEqual(status, exit_status, text)
        return text

    def report(self) -> None:
        """Have nova-compute of host1 report to Nova once more."""
        service = objects.Service.get_by_compute_host(self.context, "host1")
        seen = service.last_seen_up or service.created_at
        service.last_seen_up = seen.replace(tzinfo=None) + datetime.timedelta(
            seconds=1
        )
        service.save()

    def assert_closed(self) -> None:
        for record in self.providers().values():
            for name, inventory in record["inventories"].items():
                self.assertEqual(
                    inventory["total"], inventory["reserved"], name
                )

    def assert_open(self) -> None:
        self.assertEqual(0, self.amounts(harness.T4)["VGPU"][1])

    @pytest.mark.each_release
    def test_as_the_manual_says(self) -> None:
        self.start()
        server, plain = self.boot(SMALL), self.boot({})
        mdevs = self.mdevs_of(server)
        self.stop()
        text = self.leave()
        self.assertIn(f"Server {server['id']} has no slots any more", text)
        self.assertNotIn(plain["id"], text)
        self.assertEqual([], self.slots(server))
        self.assert_closed()
        self.switch(stock_driver.STOCK)
        self.run_periodics()
        self.assertNotIn("KeyError", self.messages())
        self.assert_closed()
        self.boot(SMALL, expected_state="ERROR")
        self.boot(WHOLE, expected_state="ERROR")
        self._reboot_server(server, hard=True)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._delete_server(server)
        self.assertEqual({}, self.usages(harness.T4))

    def test_servers_with_whole_functions_are_moved_first(self) -> None:
        self.start()
        server = self.boot(WHOLE)
        self.assertIn("must be stopped", self.leave(status=2))
        self.stop()
        before = self.providers(), self.slots(server)
        text = self.leave(status=2)
        self.assertIn(f"servers {server['id']} have whole functions", text)
        self.assertEqual(before, (self.providers(), self.slots(server)))
        text = self.leave("--force", "-f", "json")
        result = json.loads(text)
        self.assertEqual([server["id"]], result["functions"])
        self.assertEqual([], self.slots(server))
        self.assert_closed()

    def test_other_resources_of_a_server_stay(self) -> None:
        """Persistent memory is a resource of the compute node itself."""
        self.start()
        server = self.boot(SMALL)
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["resources"]
        )
        memory = objects.Resource(
            provider_uuid=self.compute_rp_uuids["host1"],
            resource_class="CUSTOM_PMEM_NAMESPACE_4GB",
            identifier="ns_0",
        )
        instance.resources = objects.ResourceList(
            objects=[*instance.resources, memory]
        )
        instance.save()
        self.stop()
        self.leave()
        (slot,) = self.slots(server)
        self.assertEqual("CUSTOM_PMEM_NAMESPACE_4GB", slot[1])

    def test_a_stock_nova_compute_is_found_and_its_host_closed(self) -> None:
        """By mistake: the driver was changed, and nothing else was done."""
        self.start()
        self.stop()
        self.switch(stock_driver.STOCK)
        self.assert_open()
        watch = self.open_watch()
        for _ in range(3):  # the first one finds no report
            self.assertFalse(watch.is_proved())
            self.report()
        self.assertTrue(watch.is_proved())
        text = self.run_command("run", "--once")
        self.assertIn("nova-compute of host1 runs without nova-accel", text)
        self.assert_closed()
        self.boot(SMALL, expected_state="ERROR")
        # It is still closed if the stock service is down for a while.
        self.force_down(True)
        self.run_command("run", "--once")
        self.assert_closed()
        self.force_down(False)
        # With nova-accel again all is offered again.
        self.switch(stock_driver.ACCEL)
        self.run_periodics()
        self.assert_open()
        self.run_command("run", "--once")
        self.assert_open()
        self.boot(SMALL)

    def test_the_audit_finds_and_heals_it(self) -> None:
        self.start()
        self.assertEqual([], audit.run(self, status=0)["findings"])
        self.stop()
        self.switch(stock_driver.STOCK)
        watch = self.open_watch()
        for _ in range(3):
            watch.is_proved()
            self.report()
        reported = audit.run(self, status=1)["findings"]
        self.assertEqual(
            {"unserved-provider"}, {finding["kind"] for finding in reported}
        )
        self.assertEqual(
            {self.provider(harness.T4), self.provider(harness.GPU)},
            {finding["provider"] for finding in reported},
        )
        self.assertIn("host1 runs without nova-accel", reported[0]["reason"])
        audit.run(self, "--heal", status=0)
        self.assert_closed()
        self.boot(SMALL, expected_state="ERROR")

    def test_a_live_driver_is_never_taken_for_a_stock_one(self) -> None:
        """Neither a running one, nor one that has just ended or restarts."""
        self.start()
        watch = self.open_watch()

        def check(count: int = 4) -> None:
            for _ in range(count):
                self.assertFalse(watch.is_proved())
                self.report()

        check()
        self.stop()
        check(count=2)  # its last reports arrive late
        self.switch(stock_driver.ACCEL)
        check()
        self.stop()
        for _ in range(4):  # no report arrives
            self.assertFalse(watch.is_proved())
        self.force_down(True)
        check()
        self.assert_open()

    def open_watch(self) -> Any:
        """Return the watch of a daemon of host1."""
        client = rest.from_endpoint(
            self.api_fixture.base_url, service=rest.COMPUTE
        )
        root = self.compute_rp_uuids["host1"]
        return stock_compute.StockComputeWatch(
            self.state_dir(),
            lambda: nova_api.read_last_report(client, root),
        )
