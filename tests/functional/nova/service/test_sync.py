# SPDX-License-Identifier: Apache-2.0
"""The background pass over Placement, beside Nova's periodic task."""

import threading
from typing import Any

import fixtures
import pytest
from keystoneauth1 import exceptions
from nova.scheduler.client import report

from nova_accel.host.state import claims_file
from nova_accel.model import names
from placement_sync.daemon import heartbeat
from tests.functional.nova.service import syncing
from tests.functional.nova.support import audit, harness

SMALL = harness.vgpu_group("_A", "4Q")
NO_POLICY = {"group_policy": "none"}
OTHER = "CUSTOM_RACK_7"


class Sync(syncing.SyncTestBase):
    @pytest.mark.long
    def test_nothing_changed_is_one_read(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        self.run_pass()
        for _ in range(2):
            result = self.run_pass()
            self.assertEqual((1, 0), (result.reads, result.writes))
        self.assert_in_step()
        (status,) = heartbeat.read(self.state_dir())
        self.assertEqual("ok", status.outcome)

    @pytest.mark.long
    def test_records_wiped_by_hand_are_restored(self) -> None:
        """The pass restores them, and nova-compute's periodic task agrees."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        used = {a for a in (harness.T4, harness.T4_B) if self.usages(a)}
        (card,) = {harness.T4, harness.T4_B} - used
        self.run_pass()
        before = self.stable_providers()
        self.put(card, "inventories", {})
        self.run_pass()
        self.assertEqual(before, self.stable_providers())
        for address in (harness.T4, harness.T4_B):
            self.put(address, "traits", [])
            self.run_pass()
            self.assertEqual(before, self.stable_providers())
        self.placement.delete(f"/resource_providers/{self.provider(card)}")
        self.assertNotIn(self.provider(card), self.providers())
        self.run_pass()
        self.assertEqual(before, self.stable_providers())
        self.assert_in_step()
        other = self.boot(SMALL)
        self._delete_server(other)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_another_writer_creates_a_provider_before_nova(
        self,
    ) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot({})
        self.hosts["host1"].unplug(harness.T4)
        for _ in range(2):  # Nova asks whether it is free, and deletes it
            self.run_periodics()
        self.assertNotIn(self.provider(harness.T4), self.providers())
        self.hosts["host1"].plug()
        self.computes["host1"].driver._hooks.passes.refresh()
        outside = self.outside()
        client = self.computes["host1"].driver.virtapi.reportclient
        post, paths = client.post, []

        def post_late(path: str, *args: Any, **kwargs: Any) -> Any:
            paths.append(path)
            if path == "/resource_providers" and len(paths) == 1:
                self.assertEqual((), outside.run().problems)
            return post(path, *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(client, "post", post_late))
        self._delete_server(server)
        self.assertEqual(["/resource_providers"], paths)
        self.assertIn(self.provider(harness.T4), self.providers())
        self.run_pass()
        self.assert_in_step()

    @pytest.mark.long
    def test_a_name_of_a_former_registration_stops_nothing_else(
        self,
    ) -> None:
        """Nova fails its whole update for a provider it can't create."""
        self.start_host(*harness.TWO_T4)
        self.hosts["host1"].unplug(harness.T4_B)
        for _ in range(2):  # Nova asks whether it is free, and deletes it
            self.run_periodics()
        name = names.provider_name("host1", harness.T4_B)
        self._post_resource_provider("former")
        self._post_resource_provider(name)
        self.hosts["host1"].plug()
        self.computes["host1"].driver._hooks.passes.refresh()
        client = self.computes["host1"].driver.virtapi.reportclient
        post, paths = client.post, []

        def count(path: str, *args: Any, **kwargs: Any) -> Any:
            paths.append(path)
            return post(path, *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(client, "post", count))
        server = self.boot(SMALL)
        for _ in range(3):
            self.run_periodics()
        self._delete_server(server)
        self.assertNotIn(
            "Failed to create resource provider", self.stdlog.logger.output
        )
        self.assertEqual(["/resource_providers"], paths)
        [problem] = self.run_pass().problems
        self.assertIn(name, problem.reason)
        self.assert_nothing_left()

    def test_claimed_and_unallocated_amounts_are_reserved(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        server = self.boot(SMALL)
        whole = self.boot(harness.whole_gpu_group("_G"))
        allocations = {s["id"]: self.allocations(s) for s in (server, whole)}
        ((uuid, _, _),) = self.slots(server)
        card = (
            harness.T4 if uuid == self.provider(harness.T4) else harness.T4_B
        )
        before = self.amounts(card)
        for booted in (server, whole):
            self.placement.delete(f"/allocations/{booted['id']}")
        self.restart()
        self.run_periodics()
        memory = "CUSTOM_GPU_MEMORY_MB"
        after = self.amounts(card)
        self.assertEqual((before["VGPU"][0], 1), after["VGPU"])
        self.assertEqual((before[memory][0], 4096), after[memory])
        self.assertEqual({"PGPU": (1, 1)}, self.amounts(harness.GPU))
        self.assertEqual(0, self.outside().run().writes)
        self.assertEqual(0, self.run_pass().writes)

        for booted in (server, whole):
            body = {
                "allocations": {
                    uuid: {"resources": amounts}
                    for uuid, amounts in allocations[booted["id"]].items()
                },
                "project_id": booted["tenant_id"],
                "user_id": booted["user_id"],
                "consumer_generation": None,
            }
            address = harness.GPU if booted is whole else card
            records = self.records(address)
            for record in records.values():
                record["reserved"] = 0
            self.put(address, "inventories", records)
            answer = self.placement.put(
                f"/allocations/{booted['id']}", body, version="1.36"
            )
            self.assertEqual(204, answer.status, answer.body)
        self.run_periodics()
        self.assertEqual(before, self.amounts(card))
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))
        self.assert_in_step()

    @pytest.mark.long
    def test_each_class_that_is_not_allocated_is_reserved(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        ((uuid, _, _),) = self.slots(server)
        card = (
            harness.T4 if uuid == self.provider(harness.T4) else harness.T4_B
        )
        before = self.amounts(card)
        path, memory = f"/allocations/{server['id']}", "CUSTOM_GPU_MEMORY_MB"
        body = self.placement.get(path, version="1.36").body
        amount = body["allocations"][uuid]["resources"].pop(memory)
        answer = self.placement.put(path, body, version="1.36")
        self.assertEqual(204, answer.status, answer.body)
        self.restart()
        self.run_periodics()
        after = self.amounts(card)
        self.assertEqual((before[memory][0], 4096), after[memory])
        self.assertEqual(before["VGPU"], after["VGPU"])
        self.assertEqual(0, self.outside().run().writes)

        body = self.placement.get(path, version="1.36").body
        body["allocations"][uuid]["resources"][memory] = amount
        answer = self.placement.put(path, body, version="1.36")
        self.assertEqual(204, answer.status, answer.body)
        self.run_periodics()
        self.assertEqual(before, self.amounts(card))
        self.assert_in_step()

    @pytest.mark.long
    def test_an_audit_restores_deleted_allocations(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        servers = [
            self.boot(specs)
            for specs in (
                SMALL | harness.vgpu_group("_B", "4Q") | NO_POLICY,
                harness.whole_gpu_group("_G"),
            )
        ]
        paths = [f"/allocations/{server['id']}" for server in servers]
        before = [self.read_consumer(path) for path in paths]
        for path in paths:
            self.placement.delete(path)
        self.restart()
        self.run_periodics()
        findings = audit.run(self, status=1)["findings"]
        self.assertEqual(
            {("missing-allocation", True, server["id"]) for server in servers},
            {(f["kind"], f["heals"], f["consumer"]) for f in findings},
        )
        self.assertEqual([], audit.run(self, "--heal", status=0)["left"])
        self.assertEqual(before, [self.read_consumer(path) for path in paths])
        self.run_periodics()
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))
        self.assert_in_step()

    def read_consumer(self, path: str) -> dict[str, Any]:
        """Return a consumer's amounts, project and user."""
        body = self.placement.get(path, version="1.36").body
        return {
            "project": body["project_id"],
            "user": body["user_id"],
            "amounts": {
                uuid: record["resources"]
                for uuid, record in body["allocations"].items()
            },
        }

    @pytest.mark.long
    def test_an_allocated_card_vanishes_and_returns(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        card = self.hosts["host1"].mdevs()[mdev]["parent"]
        (other,) = {harness.T4, harness.T4_B} - {card}
        self._stop_server(server)
        self.run_pass()
        before = self.stable_providers()

        self.hosts["host1"].unplug(card)
        self.put(harness.GPU, "traits", [])
        self.hosts["host1"].unplug(other)
        result = self.run_pass()

        self.assertTrue(result.is_ok)
        # The other card has no allocations: Nova itself deletes it.
        self.assertIn(names.MISSING_TRAIT, self.traits(other))
        self.run_periodics()
        self.assertEqual(
            {self.provider(card), self.provider(harness.GPU)},
            set(self.providers()),
        )
        self.assertEqual((4, 4), self.amounts(card)["VGPU"])
        self.assertIn(names.MISSING_TRAIT, self.traits(card))
        self.assertEqual(set(), self.profiles(card))
        self.assertEqual(1, self.usages(card)["VGPU"])
        # All others were synced in the same pass.
        gpu = self.provider(harness.GPU)
        self.assertEqual(before[gpu], self.stable_providers()[gpu])
        self.assert_in_step()

        self.hosts["host1"].plug()
        self.run_pass()
        self.assertEqual(before.keys(), self.stable_providers().keys())
        self.assertNotIn(names.MISSING_TRAIT, self.traits(card))
        self._start_server(server)
        self._delete_server(server)
        self.run_pass()
        self.assert_nothing_left()
        self.assert_in_step()

    @pytest.mark.long
    def test_an_operator_s_settings_survive_both_writers(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.run_pass()
        records = self.records(harness.T4)
        self._create_trait(OTHER)
        self.put(harness.T4, "traits", [*self.traits(harness.T4), OTHER])
        records["VGPU"]["reserved"] = 3
        records["CUSTOM_GPU_MEMORY_MB"]["allocation_ratio"] = 1.5
        self.put(harness.T4, "inventories", records)
        before = self.providers()

        def check() -> None:
            current = self.records(harness.T4)
            self.assertEqual(3, current["VGPU"]["reserved"])
            memory = current["CUSTOM_GPU_MEMORY_MB"]
            self.assertEqual(1.5, memory["allocation_ratio"])
            self.assertIn(OTHER, self.traits(harness.T4))

        self.assertEqual(0, self.run_pass().writes)
        self.run_periodics()
        self.assertEqual(before, self.providers())
        server = self.boot(SMALL)
        check()
        self.run_pass()
        check()
        self.assert_in_step()
        self.drains().put(harness.T4, "fan")
        self.run_pass()
        self.assertEqual((4, 4), self.amounts(harness.T4)["VGPU"])
        self.restart()
        self.run_periodics()
        self.drains().remove([harness.T4])
        self.run_periodics()
        check()
        self.run_pass()
        check()
        self._delete_server(server)
        self.run_pass()
        check()
        self.assert_in_step()

    @pytest.mark.long
    def test_a_card_that_is_offered_can_be_claimed(self) -> None:
        """Nova assigns slots of its last update; the pass is newer."""
        self.start_host(harness.TWO_T4[0])
        self.hosts["host1"].unplug(harness.T4)
        self.run_periodics()
        self.assertEqual({}, self.providers())
        self.hosts["host1"].plug()
        self.run_pass()
        self.assertEqual((16, 0), self.amounts(harness.T4)["VGPU"])
        server = self.boot(SMALL)
        self.assertEqual(1, len(self.mdevs_of(server)))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_claims_are_published(self) -> None:
        self.start_host(harness.TWO_T4[0])
        file = claims_file.ClaimsFile(self.state_dir())
        self.assertEqual((), file.read().claims)
        server = self.boot(SMALL)
        published = file.read()
        (claim,) = published.claims
        ((uuid, _, slot),) = self.slots(server)
        self.assertEqual(
            (server["id"], uuid, slot, self.mdevs_of(server)),
            (claim.consumer, claim.provider, claim.slot, [claim.handle]),
        )
        assert published.root is not None
        self.assertEqual(self.compute_rp_uuids["host1"], published.root.uuid)
        self.restart()
        self.run_periodics()
        self.assertEqual(published, file.read())
        self._delete_server(server)
        self.assertEqual((), file.read().claims)

    @pytest.mark.long
    def test_another_process_deleted_the_provider(self) -> None:
        """Another process has deleted a provider that Nova still caches."""
        self.start_host(*harness.TWO_T4)
        self.run_pass()
        self.hosts["host1"].unplug(harness.T4_B)
        gone = self.provider(harness.T4_B)
        self.placement.delete(f"/resource_providers/{gone}")
        self.run_pass()
        server = self.boot(SMALL)
        self._delete_server(server)
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assert_in_step()

    @pytest.mark.long
    def test_nova_finds_a_card_gone_that_the_pass_has_removed(self) -> None:
        self.start_host(*harness.TWO_T4)
        self.run_pass()
        self.hosts["host1"].unplug(harness.T4_B)
        self.assertTrue(self.run_pass().writes)
        self.run_periodics()
        log = self.stdlog.logger.output
        self.assertNotIn("can't refresh this host's accelerators", log)
        self.assertNotIn("it stays for now", log)
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assert_in_step()

    @pytest.mark.long
    def test_another_process_created_the_provider(self) -> None:
        """Nova reads everything again during its update, then writes."""
        self.start_host(*harness.TWO_T4)
        self.hosts["host1"].unplug(harness.T4_B)
        self.run_periodics()
        self.hosts["host1"].plug()
        outside = self.outside()
        self.assertTrue(outside.run().is_ok)
        self._create_trait(OTHER)
        self.put(harness.T4, "traits", [*self.traits(harness.T4), OTHER])
        records = self.records(harness.T4)
        records["VGPU"]["reserved"] = 3
        self.put(harness.T4, "inventories", records)
        self.run_periodics()
        self.assertIn(OTHER, self.traits(harness.T4))
        self.assertEqual((16, 3), self.amounts(harness.T4)["VGPU"])
        self.assert_in_step()
        self.assertEqual(0, outside.run().writes)


class InTheMiddle(syncing.SyncTestBase):
    """The pass runs during an update of Nova's resource tracker."""

    def test_a_card_goes_while_nova_sends_its_tree(self) -> None:
        self.start_host(harness.TWO_T4[0], *harness.GPU_CARDS)
        self.run_pass()
        gone = self.provider(harness.GPU)
        client = self.computes["host1"].driver.virtapi.reportclient
        send, waiting = client.set_inventory_for_provider, [gone]

        def set_inventory(*arguments: Any) -> None:
            while waiting:
                self.hosts["host1"].unplug(harness.GPU)
                self.placement.delete(f"/resource_providers/{waiting.pop()}")
                self.run_pass()
            send(*arguments)

        self.useFixture(
            fixtures.MockPatchObject(
                client, "set_inventory_for_provider", set_inventory
            )
        )
        server = self.boot(SMALL)
        self.assertEqual([], waiting)
        self._delete_server(server)
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assert_in_step()

    @pytest.mark.long
    def test_a_card_comes_while_nova_takes_its_tree_over(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.hosts["host1"].unplug(harness.T4)
        self.run_periodics()
        driver = self.computes["host1"].driver
        tree = driver.virtapi.reportclient.get_provider_tree_and_ensure_root(
            self.context, self.compute_rp_uuids["host1"]
        )
        reporter = driver._hooks.partitions.reporter
        reporter.update_tree(tree, ())
        self.hosts["host1"].plug()
        self.run_pass()
        self.assertFalse(tree.exists(self.provider(harness.T4)))
        reporter.use_tree(tree)
        slots = tree.data(self.provider(harness.T4)).resources["VGPU"]
        self.assertEqual(16, len(slots))


class Thread(syncing.SyncTestBase):
    @pytest.mark.oldest
    def test_it_runs_by_itself_and_ends_with_the_service(self) -> None:
        compute = self.start_host(harness.TWO_T4[0], sync_interval=1)
        before = self.stable_providers()
        self.put(harness.T4, "traits", [])
        self.until(lambda: self.assertEqual(before, self.stable_providers()))
        server = self.boot(SMALL)
        self._delete_server(server)
        self.until(lambda: self.assertEqual(before, self.stable_providers()))
        loop = self.reconciler()._loop
        assert isinstance(loop._thread, threading.Thread)
        compute.stop()
        # The harness waits for no service that ends.
        self.until(lambda: self.assertFalse(loop._thread.is_alive()))

    def read_last_success(self) -> float:
        """Return when the last pass succeeded."""
        statuses = heartbeat.read(self.state_dir())
        return (statuses[0].succeeded or 0.0) if statuses else 0.0

    @pytest.mark.long
    def test_claims_and_releases_wake_it(self) -> None:
        self.start_host(harness.TWO_T4[0], sync_interval=3600)
        self.until(lambda: self.assertTrue(self.read_last_success()))
        before = self.read_last_success()
        server = self.boot(SMALL)
        self.until(lambda: self.assertLess(before, self.read_last_success()))
        self.run_periodics()
        before = self.read_last_success()
        self._delete_server(server)
        self.until(lambda: self.assertLess(before, self.read_last_success()))
        self.computes["host1"].stop()

    def test_without_placement_nothing_of_nova_s_fails(self) -> None:
        """Only Nova's own client reaches it."""
        read = report.SchedulerReportClient.get

        def refuse(client: Any, *args: Any, **options: Any) -> Any:
            # The client of the passes has a limit, Nova's own has none.
            if client._client.session.timeout is None:
                return read(client, *args, **options)
            raise exceptions.ConnectFailure("no route to Placement")

        self.useFixture(
            fixtures.MockPatchObject(
                report.SchedulerReportClient, "get", refuse
            )
        )
        self.start_host(harness.TWO_T4[0], sync_interval=1)
        # One pass tries for some time (sync.ATTEMPTS, FAILURE_DELAY).
        self.until(lambda: self.assertTrue(self.read_error()))
        self.assertIn("can't be reached", self.read_error())
        server = self.boot(SMALL)
        self.run_periodics()
        self._delete_server(server)
        self.assert_nothing_left()
        self.computes["host1"].stop()

    def read_error(self) -> str:
        """Return the error of the last pass."""
        statuses = heartbeat.read(self.state_dir())
        return statuses[0].error if statuses else ""
