# SPDX-License-Identifier: Apache-2.0
"""Hosts that return to Nova's own driver, as the manual says and otherwise."""

import contextlib
import datetime
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import fixtures
import pytest
from nova import objects

from nova_accel.host.execute import action_executor
from nova_accel.host.state import device_notes, directories
from nova_accel.model import names
from placement_sync.client import (
    cloud_client,
    nova_api,
    rest,
    stock_compute,
)
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import audit, harness
from tests.functional.nova.switch import leaving, stock_driver
from tests.support import examples

SMALL, WHOLE = leaving.SMALL, leaving.WHOLE
CARDS = leaving.CARDS
REGION = {
    "resources_A:FPGA": "1",
    f"trait_A:{test_fpga.ANY}": "required",
}
#: Changes of a command before it is killed.
CHANGES = 1 if examples.IS_WHOLE else 6


class Killed(BaseException):
    """A process that ends without cleaning up."""


class Leaving(leaving.LeavingTestBase):
    def start(self) -> None:
        self.use(stock_driver.ACCEL)
        self.start_host(*CARDS)

    def report(self) -> None:
        """Have nova-compute of host1 report to Nova once more."""
        service = objects.Service.get_by_compute_host(self.context, "host1")
        seen = service.last_seen_up or service.created_at
        service.last_seen_up = seen.replace(tzinfo=None) + datetime.timedelta(
            seconds=1
        )
        service.save()

    def assert_open(self) -> None:
        self.assertEqual(0, self.amounts(harness.T4)["VGPU"][1])

    def list_own_names(self) -> set[str]:
        """Return the classes and traits of this library in Placement."""
        traits = self.placement.get("/traits", version="1.36").body["traits"]
        classes = self.placement.get("/resource_classes", version="1.36").body
        return {
            name
            for name in (
                *traits,
                *(c["name"] for c in classes["resource_classes"]),
            )
            if name.startswith(names.CUSTOM)
        }

    def assert_none_is_built(self) -> None:
        """Check that no server becomes ACTIVE without its device."""
        for group in (SMALL, WHOLE):
            self.boot(group, expected_state="ERROR")

    @pytest.mark.oldest
    def test_an_empty_host_is_left_at_once(self) -> None:
        """The last host can take the flavors and the names with it."""
        self.start()
        flavor = self._create_flavor(extra_spec=SMALL)
        native = self._create_flavor(extra_spec=stock_driver.NATIVE_FLAVOR)
        self._create_trait("CUSTOM_OPERATORS")
        plan = self.plan()
        self.assertEqual([], plan["holders"])
        self.assertEqual([], plan["other_hosts"])
        self.assertEqual(
            {r["name"] for r in self.providers().values()},
            {*plan["providers"]},
        )
        self.assertIn(names.GPU_MEMORY_CLASS, plan["names"])
        self.assertIn(
            sorted(SMALL), [sorted(k) for k in plan["flavors"].values()]
        )
        self.assertIn("must be stopped", self.apply(status=2))
        self.end_service()
        self.apply()
        self.assert_removed()
        # Names of a flavor stay: Placement refuses a request without them.
        used = {"CUSTOM_OPERATORS", harness.vgpu_trait("4Q")}
        self.assertEqual(
            {*used, names.GPU_MEMORY_CLASS}, self.list_own_names()
        )
        providers = self._get_all_providers()
        self.assertIn("removed 0 resource providers", self.apply())
        self.assertEqual(providers, self._get_all_providers())
        self.assertEqual(
            {*used, names.GPU_MEMORY_CLASS}, self.list_own_names()
        )
        self.apply("--extra-specs")
        self.assertEqual({}, self.api.get_extra_specs(flavor))
        self.assertEqual(
            stock_driver.NATIVE_FLAVOR, self.api.get_extra_specs(native)
        )
        self.assertEqual({"CUSTOM_OPERATORS"}, self.list_own_names())
        self.assert_stock_is_clean()
        self.boot({})

    def test_functions_that_are_not_clean_stay_noted(self) -> None:
        self.start()
        store = self.leave_unclean()
        text = self.run_here("remove", "plan")
        reason = f"  {harness.GPU}: its scrub, begun at "
        self.assertIn(f"data; notes stay:\n{reason}", text)
        text = self.apply()
        self.assertIn(reason, text)
        self.assertNotIn("its files were removed", text)
        self.assertEqual({}, self.providers())
        self.assertEqual([harness.GPU], [*store.read_unclean()])
        text = self.apply("--cleaned", harness.T4, status=2)
        self.assertIn(f"those with a note: {harness.GPU}", text)
        self.apply("--cleaned", harness.GPU)
        self.assert_removed()

    def leave_unclean(self) -> device_notes.FaultNotes:
        """End nova-compute of host1 while it scrubs a GPU."""
        store = device_notes.FaultNotes(self.state_dir())
        store.begin_scrub(harness.GPU, harness.GPU)
        self.end_service()
        return store

    @pytest.mark.long
    def test_a_return_knows_which_functions_are_not_clean(self) -> None:
        self.start()
        self.leave_unclean()
        self.apply()
        self.switch(stock_driver.STOCK)
        self.switch(stock_driver.ACCEL)
        self.run_periodics()
        self.boot(WHOLE, expected_state="ERROR")
        self.boot(SMALL)

    @pytest.mark.long
    def test_one_of_two_hosts_leaves_alone(self) -> None:
        self.use(stock_driver.ACCEL)
        self.start_host(*CARDS, name="host2")
        self.start_host(*CARDS)
        other = self.stable_providers("host2")
        self.assertEqual(["host2"], self.plan()["other_hosts"])
        self.end_service()
        text = self.apply("--extra-specs", status=2)
        self.assertIn("in use on host2", text)
        self.assertIn("host1", self.list_hosts())
        self.apply()
        self.assert_removed()
        self.assertEqual(other, self.stable_providers("host2"))
        server = self.boot(SMALL)
        self.assertEqual(1, len(self.mdevs_of(server, "host2")))

    def list_hosts(self) -> set[str]:
        """Return the names of hosts with providers of this library."""
        return {
            record["name"].partition(names.PROVIDER_MARK)[0]
            for record in self._get_all_providers()
            if names.PROVIDER_MARK in record["name"]
        }

    @pytest.mark.each_release
    def test_servers_with_mdevs_can_stay(self) -> None:
        self.start()
        server, plain = self.boot(SMALL), self.boot({})
        mdevs = self.mdevs_of(server)
        (holder,) = self.plan()["holders"]
        self.assertEqual(server["id"], holder["uuid"])
        self.assertIn("keeps its mdevs until this host", holder["effect"])
        self.end_service()
        before = self.providers(), self.slots(server)
        text = self.apply(status=2)
        self.assertIn(f"{server['id']} {server['name']}", text)
        self.assertIn("--keep-servers", text)
        self.assertEqual(before, (self.providers(), self.slots(server)))
        text = self.apply("--keep-servers")
        self.assertIn(f"Server {server['id']}: its slots were removed", text)
        self.assertNotIn(plain["id"], text)
        self.assertEqual([], self.slots(server))
        self.assertEqual([self.provider(harness.T4)], [*self.providers()])
        self.assert_closed()
        self.assert_stock_is_clean()
        self.assert_closed()
        self.assert_none_is_built()
        self._reboot_server(server, hard=True)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._delete_server(server)
        self.assertEqual({}, self.usages(harness.T4))
        # Nova reads the providers that it caches again after this second.
        self.flags(resource_provider_association_refresh=1, group="compute")
        # Nova's own driver leaves the mdev, and the provider.
        self.assertEqual({*mdevs}, {*self.hosts["host1"].mdevs()})
        self.assertEqual(mdevs, self.plan()["mdevs"])
        self.apply()
        self.assert_removed()
        errors = self.list_errors()
        time.sleep(1.1)
        self.run_periodics()
        self.boot({})
        self.assertEqual(errors, self.list_errors())

    @pytest.mark.long
    def test_servers_with_whole_functions_are_named(self) -> None:
        self.start()
        server = self.boot(WHOLE)
        (holder,) = self.plan()["holders"]
        self.assertIn("takes its functions away", holder["effect"])
        text = self.run_here("remove", "plan")
        for line in (
            "Other hosts with accelerators: none, it is the last one",
            f"  {server['id']} {server['name']} (ACTIVE) has ",
            "  host1_accel_0000_3b_00_0",
            f"  {names.GPU_MEMORY_CLASS}",
            "Mdevs and VF types to remove: none",
            f"State directory to empty: {self.state_dir()}",
        ):
            self.assertIn(f"\n{line}", text)
        self.end_service()
        before = self.providers(), self.slots(server)
        text = self.apply(status=2)
        self.assertIn("hard reboot takes its functions away", text)
        self.assertEqual(before, (self.providers(), self.slots(server)))
        text = self.apply("--keep-servers", "-f", "json")
        self.assertEqual([server["id"]], json.loads(text)["servers"])
        self.assertEqual([], self.slots(server))
        self.assert_closed()
        self.assert_stock_is_clean()
        self._delete_server(server)
        self.assert_cleaned_by_hand(harness.GPU)

    @pytest.mark.long
    def test_servers_of_each_technology_can_stay(self) -> None:
        """A typed VF and an FPGA region are whole functions to Nova."""
        self.use(stock_driver.ACCEL)
        self.start_host(*CARDS, test_typed_vfs.CARD, test_fpga.PAC)
        groups = {
            "mdev": SMALL,
            "passthrough": WHOLE,
            "vendor-vfio": test_typed_vfs.typed_group("8Q"),
            "fpga": REGION,
        }
        servers = {name: self.boot(group) for name, group in groups.items()}
        effects = {h["uuid"]: h["effect"] for h in self.plan()["holders"]}
        for name, server in servers.items():
            word = "keeps" if name == "mdev" else "takes its functions away"
            self.assertIn(word, effects[server["id"]])
        self.end_service()
        self.apply("--keep-servers")
        self.assert_closed()
        self.assert_stock_is_clean()
        for name, server in servers.items():
            self.boot(groups[name], expected_state="ERROR")
            self._delete_server(server)
        (vf,) = self.vgpu_types()
        region = test_fpga.PAC.address
        self.assertEqual({harness.GPU, vf, region}, {*self.plan()["unclean"]})
        self.apply()
        self.assertEqual({}, self.vgpu_types())
        # The driver has erased the vGPU of the VF.
        self.assert_cleaned_by_hand(harness.GPU, region)

    @pytest.mark.long
    def test_servers_are_moved(self) -> None:
        self.use(stock_driver.ACCEL)
        self.power_off_to_move()
        self.start_host(*CARDS, name="host2")
        self.start_host(*CARDS)
        self.be_on("host1")
        servers = [self.boot(g, host="host1") for g in (SMALL, WHOLE)]
        self.apply("--move", "cold")
        for server in servers:
            self.assertEqual("host2", self.host_of(server))
        self.assert_closed()
        self.end_service()
        self.apply()
        self.assert_removed()

    def host_of(self, server: Any) -> str:
        record = self.api.get_server(server["id"])
        return str(record["OS-EXT-SRV-ATTR:host"])

    @pytest.mark.long
    def test_servers_are_shelved(self) -> None:
        self.flags(shelved_offload_time=-1)
        self.start()
        servers = [self.boot(group) for group in (SMALL, WHOLE)]
        self.apply("--shelve")
        for server in servers:
            record = self.api.get_server(server["id"])
            self.assertEqual("SHELVED_OFFLOADED", record["status"])
        self.end_service()
        self.apply()
        self.assert_removed()

    @pytest.mark.long
    def test_a_card_that_nova_compute_opens_again_is_closed(self) -> None:
        """After a release it publishes other cards as it read them before."""
        self.start()
        self._delete_server(self.boot(SMALL))
        self.boot(WHOLE)
        self.apply("--shelve", "--wait", "60")
        self.assert_closed()

    @pytest.mark.long
    def test_servers_that_no_host_takes_are_named(self) -> None:
        self.start()
        server = self.boot(SMALL)
        text = self.apply("--move", "cold", "--wait", "30", status=1)
        self.assertIn(server["name"], text)
        self.assertIn("keeps its mdevs", text)
        self.assert_closed()
        self.assertEqual(1, len(self.slots(server)))

    def test_a_removal_that_is_killed_goes_on(self) -> None:
        """Each run makes a few changes, and is killed before the next one."""
        self.start()
        flavor = self._create_flavor(extra_spec=SMALL)
        server, other = self.boot(SMALL), self.boot(SMALL)
        self._delete_server(other)
        self.end_service()
        runs = self.count_killed_runs("--keep-servers")
        self.assertGreater(runs * CHANGES, 5)
        self.assertEqual([], self.slots(server))
        self.assertEqual([self.provider(harness.T4)], [*self.providers()])
        self.assert_closed()
        self.assert_stock_is_clean()
        self._delete_server(server)
        runs = self.count_killed_runs("--extra-specs")
        self.assertGreater(runs * CHANGES, 10)
        self.assert_removed()
        self.assertEqual({}, self.api.get_extra_specs(flavor))
        self.assertEqual(set(), self.list_own_names())

    def count_killed_runs(self, *words: str) -> int:
        """Return the number of runs until one is not killed."""
        for runs in range(1, 200):
            with contextlib.ExitStack() as stack:
                self.kill_after_change(stack)
                try:
                    self.apply(*words)
                except Killed:
                    continue
            return runs
        raise AssertionError("a run makes no progress")

    def kill_after_change(self, stack: contextlib.ExitStack) -> None:
        """End the next command when it tries one change too many."""
        thread = threading.get_ident()
        changes: list[Callable[..., Any]] = []

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                is_own = threading.get_ident() == thread
                if is_own and len(changes) == CHANGES:
                    raise Killed
                result = method(*arguments, **named)
                if is_own:
                    changes.append(method)
                return result

            return call

        for owner, name in (
            (rest.RestClient, "put"),
            (rest.RestClient, "post"),
            (rest.RestClient, "delete"),
            (objects.Instance, "save"),
            (action_executor.Executor, "apply_all"),
            (directories, "replace_file"),
            (os, "unlink"),
            (os, "rmdir"),
        ):
            stack.enter_context(
                fixtures.MonkeyPatch(
                    f"{owner.__module__}.{owner.__qualname__}.{name}"
                    if isinstance(owner, type)
                    else f"{owner.__name__}.{name}",
                    counted(getattr(owner, name)),
                )
            )

    @pytest.mark.long
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
        self.end_service()
        self.apply("--keep-servers")
        (slot,) = self.slots(server)
        self.assertEqual("CUSTOM_PMEM_NAMESPACE_4GB", slot[1])

    @pytest.mark.long
    def test_a_stock_nova_compute_is_found_and_its_host_closed(self) -> None:
        """By mistake: the driver was changed, and nothing else was done."""
        self.start()
        self.end_service()
        self.switch(stock_driver.STOCK)
        self.assert_open()
        watch = self.open_watch()
        for _ in range(3):  # the first one finds no report
            self.assertFalse(watch.is_proved())
            self.report()
        self.assertTrue(watch.is_proved())
        text = self.run_program("run", "--once")
        self.assertIn("nova-compute of host1 runs without nova-accel", text)
        self.assert_closed()
        self.boot(SMALL, expected_state="ERROR")
        # It is still closed if the stock service is down for a while.
        self.force_down(True)
        self.run_program("run", "--once")
        self.assert_closed()
        self.force_down(False)
        # With nova-accel again all is offered again.
        self.switch(stock_driver.ACCEL)
        self.run_periodics()
        self.assert_open()
        self.run_program("run", "--once")
        self.assert_open()
        self.boot(SMALL)

    @pytest.mark.long
    def test_the_audit_finds_and_heals_it(self) -> None:
        self.start()
        self.assertEqual([], audit.run(self, status=0)["findings"])
        self.end_service()
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
        self.end_service()
        check(count=2)  # its last reports arrive late
        self.switch(stock_driver.ACCEL)
        check()
        self.end_service()
        for _ in range(4):  # no report arrives
            self.assertFalse(watch.is_proved())
        self.force_down(True)
        check()
        self.assert_open()

    def open_watch(self) -> Any:
        """Return the watch of a daemon of host1."""
        client = cloud_client.from_endpoint(
            self.api_fixture.base_url, service=rest.COMPUTE
        )
        root = self.compute_rp_uuids["host1"]
        return stock_compute.StockComputeWatch(
            self.state_dir(),
            lambda: nova_api.read_last_report(client, root),
        )
