# SPDX-License-Identifier: Apache-2.0
"""The background pass over Placement, beside Nova's periodic task."""

import contextlib
import io
import json
import threading
from typing import Any

import fixtures
import pytest

from nova_accel.host.state import claims_file
from nova_accel.model import names
from placement_sync.cli import main
from placement_sync.daemon import heartbeat
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.service import syncing
from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")
NO_POLICY = {"group_policy": "none"}
OTHER = "CUSTOM_RACK_7"


class Sync(syncing.SyncTestBase):
    def test_nothing_changed_is_one_read(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        self.pass_by()
        for _ in range(2):
            result = self.pass_by()
            self.assertEqual((1, 0), (result.reads, result.writes))
        self.assert_in_step()
        (status,) = heartbeat.read(self.state_dir())
        self.assertEqual("ok", status.outcome)

    def test_what_was_wiped_by_hand_is_back(self) -> None:
        """Without nova-compute's periodic task, and no harm to that."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        used = {a for a in (harness.T4, harness.T4_B) if self.usages(a)}
        (card,) = {harness.T4, harness.T4_B} - used
        self.pass_by()
        before = self.calm()
        self.put(card, "inventories", {})
        self.pass_by()
        self.assertEqual(before, self.calm())
        for address in (harness.T4, harness.T4_B):
            self.put(address, "traits", [])
            self.pass_by()
            self.assertEqual(before, self.calm())
        self.placement.delete(f"/resource_providers/{self.provider(card)}")
        self.assertNotIn(self.provider(card), self.providers())
        self.pass_by()
        self.assertEqual(before, self.calm())
        self.assert_in_step()
        other = self.boot(SMALL)
        self._delete_server(other)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_another_writer_makes_a_provider_that_nova_is_about_to_make(
        self,
    ) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot({})
        self.hosts["host1"].unplug(harness.T4)
        for _ in range(2):  # Nova asks whether it is free, and deletes it
            self.run_periodics()
        self.assertNotIn(self.provider(harness.T4), self.providers())
        self.hosts["host1"].plug()
        self.computes["host1"].driver._refresh()
        outside = self.outside()
        client = self.computes["host1"].driver.virtapi.reportclient
        post, paths = client.post, []

        def be_late(path: str, *args: Any, **kwargs: Any) -> Any:
            paths.append(path)
            if path == "/resource_providers" and len(paths) == 1:
                self.assertEqual((), outside.run().problems)
            return post(path, *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(client, "post", be_late))
        self._delete_server(server)
        self.assertEqual(["/resource_providers"], paths)
        self.assertIn(self.provider(harness.T4), self.providers())
        self.pass_by()
        self.assert_in_step()

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
        self.computes["host1"].driver._refresh()
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
        [problem] = self.pass_by().problems
        self.assertIn(name, problem.reason)
        self.assert_nothing_left()

    def test_what_is_claimed_and_not_allocated_is_reserved(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        server = self.boot(SMALL)
        whole = self.boot(harness.whole_gpu_group("_G"))
        held = {s["id"]: self.allocations(s) for s in (server, whole)}
        ((uuid, _, _),) = self.slots(server)
        card = (
            harness.T4 if uuid == self.provider(harness.T4) else harness.T4_B
        )
        before = self.amounts(card)
        for each in (server, whole):
            self.placement.delete(f"/allocations/{each['id']}")
        self.restart()
        self.run_periodics()
        memory = "CUSTOM_GPU_MEMORY_MB"
        after = self.amounts(card)
        self.assertEqual((before["VGPU"][0], 1), after["VGPU"])
        self.assertEqual((before[memory][0], 4096), after[memory])
        self.assertEqual({"PGPU": (1, 1)}, self.amounts(harness.GPU))
        self.assertEqual(0, self.outside().run().writes)
        self.assertEqual(0, self.pass_by().writes)

        for each in (server, whole):
            body = {
                "allocations": {
                    uuid: {"resources": amounts}
                    for uuid, amounts in held[each["id"]].items()
                },
                "project_id": each["tenant_id"],
                "user_id": each["user_id"],
                "consumer_generation": None,
            }
            address = harness.GPU if each is whole else card
            records = self.records(address)
            for record in records.values():
                record["reserved"] = 0
            self.put(address, "inventories", records)
            answer = self.placement.put(
                f"/allocations/{each['id']}", body, version="1.36"
            )
            self.assertEqual(204, answer.status, answer.body)
        self.run_periodics()
        self.assertEqual(before, self.amounts(card))
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))
        self.assert_in_step()

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

    def test_an_audit_allocates_what_was_deleted(self) -> None:
        self.useFixture(scheduled.without_keystone())
        # Nova's API shows the uptime of a hypervisor, and runs a command.
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.LibvirtDriver.get_host_uptime",
                lambda _: "0:00",
            )
        )
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        servers = [
            self.boot(specs)
            for specs in (
                SMALL | harness.vgpu_group("_B", "4Q") | NO_POLICY,
                harness.whole_gpu_group("_G"),
            )
        ]
        paths = [f"/allocations/{server['id']}" for server in servers]
        before = [self.allocated(path) for path in paths]
        for path in paths:
            self.placement.delete(path)
        self.restart()
        self.run_periodics()
        found = self.audit(status=1)["findings"]
        self.assertEqual(
            {("missing-allocation", True, server["id"]) for server in servers},
            {(f["kind"], f["heals"], f["consumer"]) for f in found},
        )
        self.assertEqual([], self.audit("--heal", status=0)["left"])
        self.assertEqual(before, [self.allocated(path) for path in paths])
        self.run_periodics()
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))
        self.assert_in_step()

    def allocated(self, path: str) -> dict[str, Any]:
        """Return a consumer's amounts, project and user."""
        body = self.placement.get(path, version="1.36").body
        return {
            "project": body["project_id"],
            "user": body["user_id"],
            "amounts": {
                uuid: each["resources"]
                for uuid, each in body["allocations"].items()
            },
        }

    def audit(self, *words: str, status: int) -> dict[str, Any]:
        """Return the report of `placement-sync audit`."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            found = main.main(
                [
                    *("audit", "--json", "--pause=0", *words),
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                    *("--host", "host1"),
                    *("--host-uuid", self.compute_rp_uuids["host1"]),
                    *("--root", str(self.hosts["host1"].root)),
                    *("--state-dir", self.state_dir()),
                ]
            )
        self.assertEqual(status, found, out.getvalue() + err.getvalue())
        report: dict[str, Any] = json.loads(out.getvalue())
        return report

    def test_an_allocated_card_vanishes_and_returns(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        card = self.hosts["host1"].mdevs()[mdev]["parent"]
        (other,) = {harness.T4, harness.T4_B} - {card}
        self._stop_server(server)
        self.pass_by()
        before = self.calm()

        self.hosts["host1"].unplug(card)
        self.put(harness.GPU, "traits", [])
        self.hosts["host1"].unplug(other)
        result = self.pass_by()

        self.assertTrue(result.is_ok)
        # Nobody has the other one: Nova itself deletes it.
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
        self.assertEqual(before[gpu], self.calm()[gpu])
        self.assert_in_step()

        self.hosts["host1"].plug()
        self.pass_by()
        self.assertEqual(before.keys(), self.calm().keys())
        self.assertNotIn(names.MISSING_TRAIT, self.traits(card))
        self._start_server(server)
        self._delete_server(server)
        self.pass_by()
        self.assert_nothing_left()
        self.assert_in_step()

    @pytest.mark.long
    def test_what_an_operator_has_set_survives_both_writers(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.pass_by()
        records = self.records(harness.T4)
        self._create_trait(OTHER)
        self.put(harness.T4, "traits", [*self.traits(harness.T4), OTHER])
        records["VGPU"]["reserved"] = 3
        records["CUSTOM_GPU_MEMORY_MB"]["allocation_ratio"] = 1.5
        self.put(harness.T4, "inventories", records)
        before = self.providers()

        def check() -> None:
            found = self.records(harness.T4)
            self.assertEqual(3, found["VGPU"]["reserved"])
            memory = found["CUSTOM_GPU_MEMORY_MB"]
            self.assertEqual(1.5, memory["allocation_ratio"])
            self.assertIn(OTHER, self.traits(harness.T4))

        self.assertEqual(0, self.pass_by().writes)
        self.run_periodics()
        self.assertEqual(before, self.providers())
        server = self.boot(SMALL)
        check()
        self.pass_by()
        check()
        self.assert_in_step()
        self.drains().put(harness.T4, "fan")
        self.pass_by()
        self.assertEqual((4, 4), self.amounts(harness.T4)["VGPU"])
        self.restart()
        self.run_periodics()
        self.drains().remove([harness.T4])
        self.run_periodics()
        check()
        self.pass_by()
        check()
        self._delete_server(server)
        self.pass_by()
        check()
        self.assert_in_step()

    @pytest.mark.long
    def test_a_drained_card_keeps_its_server_and_takes_no_other(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        self.pass_by()
        before = self.calm()

        self.drains().put(harness.T4, "fan is loud")
        self.pass_by()
        self.assertEqual((4, 4), self.amounts(harness.T4)["VGPU"])
        self.assertIn(names.DRAINED_TRAIT, self.traits(harness.T4))
        refused = self.boot(SMALL, expected_state="ERROR")
        self.assertIn("No valid host", refused["fault"]["message"])
        self._delete_server(refused)
        self._reboot_server(server, hard=True)
        self.assertEqual([mdev], self.mdevs_of(server))
        self.assert_in_step()

        drained = self.calm()
        self.restart()
        self.run_periodics()
        self.pass_by()
        self.assertEqual(drained, self.calm())
        self.assert_in_step()
        self._stop_server(server)
        self._start_server(server)

        self.drains().remove([harness.T4])
        self.pass_by()
        self.assertEqual(before, self.calm())
        second = self.boot(SMALL)
        for one in (server, second):
            self._delete_server(one)
        self.assert_nothing_left()
        self.assert_in_step()

    @pytest.mark.long
    def test_a_card_that_is_offered_can_be_claimed(self) -> None:
        """Nova hands out slots from its last pass; ours is newer."""
        self.start_host(harness.TWO_T4[0])
        self.hosts["host1"].unplug(harness.T4)
        self.run_periodics()
        self.assertEqual({}, self.providers())
        self.hosts["host1"].plug()
        self.pass_by()
        self.assertEqual((16, 0), self.amounts(harness.T4)["VGPU"])
        server = self.boot(SMALL)
        self.assertEqual(1, len(self.mdevs_of(server)))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_the_book_is_published(self) -> None:
        self.start_host(harness.TWO_T4[0])
        book = claims_file.ClaimsFile(self.state_dir())
        self.assertEqual((), book.read().claims)
        server = self.boot(SMALL)
        found = book.read()
        (claim,) = found.claims
        ((uuid, _, slot),) = self.slots(server)
        self.assertEqual(
            (server["id"], uuid, slot, self.mdevs_of(server)),
            (claim.consumer, claim.provider, claim.slot, [claim.handle]),
        )
        assert found.root is not None
        self.assertEqual(self.compute_rp_uuids["host1"], found.root.uuid)
        self.restart()
        self.run_periodics()
        self.assertEqual(found, book.read())
        self._delete_server(server)
        self.assertEqual((), book.read().claims)

    @pytest.mark.long
    def test_a_card_that_is_gone_for_others_too(self) -> None:
        """Somebody else has deleted what Nova still remembers."""
        self.start_host(*harness.TWO_T4)
        self.pass_by()
        self.hosts["host1"].unplug(harness.T4_B)
        gone = self.provider(harness.T4_B)
        self.placement.delete(f"/resource_providers/{gone}")
        self.pass_by()
        server = self.boot(SMALL)
        self._delete_server(server)
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assert_in_step()

    @pytest.mark.long
    def test_nova_finds_a_card_gone_that_the_pass_has_removed(self) -> None:
        self.start_host(*harness.TWO_T4)
        self.pass_by()
        self.hosts["host1"].unplug(harness.T4_B)
        self.assertTrue(self.pass_by().writes)
        self.run_periodics()
        told = self.stdlog.logger.output
        self.assertNotIn("can't refresh this host's accelerators", told)
        self.assertNotIn("it stays for now", told)
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assert_in_step()

    @pytest.mark.long
    def test_a_provider_that_somebody_else_has_made(self) -> None:
        """Nova reads all anew in the middle of its pass, then writes."""
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
    """The pass, while Nova's resource tracker is at its own."""

    def test_a_card_goes_while_nova_sends_its_tree(self) -> None:
        self.start_host(harness.TWO_T4[0], *harness.GPU_CARDS)
        self.pass_by()
        gone = self.provider(harness.GPU)
        client = self.computes["host1"].driver.virtapi.reportclient
        send, waiting = client.set_inventory_for_provider, [gone]

        def set_inventory(*arguments: Any) -> None:
            while waiting:
                self.hosts["host1"].unplug(harness.GPU)
                self.placement.delete(f"/resource_providers/{waiting.pop()}")
                self.pass_by()
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
        found = driver.virtapi.reportclient.get_provider_tree_and_ensure_root(
            self.context, self.compute_rp_uuids["host1"]
        )
        driver._reporter.update_tree(found, ())
        self.hosts["host1"].plug()
        self.pass_by()
        self.assertFalse(found.exists(self.provider(harness.T4)))
        driver._reporter.use_tree(found)
        slots = found.data(self.provider(harness.T4)).resources["VGPU"]
        self.assertEqual(16, len(slots))


class Thread(syncing.SyncTestBase):
    @pytest.mark.each_release
    def test_it_runs_by_itself_and_ends_with_the_service(self) -> None:
        compute = self.start_host(harness.TWO_T4[0], sync_interval=1)
        before = self.calm()
        self.put(harness.T4, "traits", [])
        self.until(lambda: self.assertEqual(before, self.calm()))
        server = self.boot(SMALL)
        self._delete_server(server)
        self.until(lambda: self.assertEqual(before, self.calm()))
        loop = self.reconciler()._loop
        assert isinstance(loop._thread, threading.Thread)
        compute.stop()
        # The harness waits for no service that ends.
        self.until(lambda: self.assertFalse(loop._thread.is_alive()))

    def beaten(self) -> float:
        """Return when the last pass came to its end."""
        found = heartbeat.read(self.state_dir())
        return (found[0].succeeded or 0.0) if found else 0.0

    @pytest.mark.long
    def test_claims_and_releases_wake_it(self) -> None:
        self.start_host(harness.TWO_T4[0], sync_interval=3600)
        self.until(lambda: self.assertTrue(self.beaten()))
        before = self.beaten()
        server = self.boot(SMALL)
        self.until(lambda: self.assertLess(before, self.beaten()))
        self.run_periodics()
        before = self.beaten()
        self._delete_server(server)
        self.until(lambda: self.assertLess(before, self.beaten()))
        self.computes["host1"].stop()

    def test_without_placement_nothing_of_nova_s_fails(self) -> None:
        # Nova's own client is the harness's; nobody listens there.
        self.flags(group="placement", endpoint_override="http://127.0.0.1:1")
        self.start_host(harness.TWO_T4[0], sync_interval=1)
        # One pass tries for some time (sync.ATTEMPTS, FAILURE_DELAY).
        self.until(lambda: self.assertTrue(self.told()))
        self.assertIn("can't be reached", self.told())
        server = self.boot(SMALL)
        self.run_periodics()
        self._delete_server(server)
        self.assert_nothing_left()
        self.computes["host1"].stop()

    def told(self) -> str:
        """Return the error of the last pass."""
        found = heartbeat.read(self.state_dir())
        return found[0].error if found else ""
