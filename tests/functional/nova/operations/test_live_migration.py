# SPDX-License-Identifier: Apache-2.0
"""Both hosts agree after each outcome of a live migration."""

import dataclasses
from pathlib import Path
from typing import Any

import fixtures
import pytest
from nova import exception, objects
from nova.compute import task_states
from nova.tests.functional.api import client

from nova_accel.host.state import device_notes
from nova_accel.model import pci
from tests.functional.nova.operations import moving
from tests.functional.nova.spawn.test_failure import CREATE
from tests.functional.nova.spawn.test_typed_vfs import (
    CARD,
    EIGHT,
    L40S,
    typed_group,
)
from tests.functional.nova.support import audit, harness
from tests.lab import fakehost
from tests.support import entry_points
from virt_hooks.guest import libvirt_guest
from virt_hooks.operations import extra_operations
from virt_hooks.spawn import programs

SMALL = harness.vgpu_group("_A", "4Q")
L40S_B = "0000:3e:00.0"


class LiveMdev(moving.LiveBase):
    CARDS = (harness.TWO_T4[0],)

    def setUp(self) -> None:
        super().setUp()
        self.empty = {name: self.stable_providers(name) for name in self.hosts}
        self.server = self.boot(SMALL, host="host1")
        (self.before,) = self.mdevs_of(self.server)

    def assert_stayed(self) -> None:
        """Check that both hosts are as before the migration."""
        self.assertEqual([self.before], self.mdevs_of(self.server))
        self.assertEqual({self.before}, set(self.hosts["host1"].mdevs()))
        self.assert_holds(self.server, harness.T4, "host1")
        self.assert_nothing_left("host2")
        self.run_periodics()
        self.assertEqual(self.empty["host2"], self.stable_providers("host2"))
        self.assert_holds(self.server, harness.T4, "host1")
        other = self.boot(SMALL, host="host2")
        self.assertEqual(1, len(self.hosts["host2"].mdevs()))
        self._delete_server(other)

    @pytest.mark.oldest
    def test_completed(self) -> None:
        self._live_migrate(self.server)
        (after,) = self.mdevs_of(self.server, "host2")
        self.assertNotEqual(self.before, after)
        self.assertEqual({after}, set(self.hosts["host2"].mdevs()))
        self.assert_holds(self.server, harness.T4, "host2")
        self.assert_nothing_left("host1")
        self.run_periodics()
        self.assertEqual(self.empty["host1"], self.stable_providers("host1"))
        self.assert_holds(self.server, harness.T4, "host2")

        self.be_on("host2")
        self._reboot_server(self.server, hard=True)
        self.assertEqual([after], self.mdevs_of(self.server, "host2"))
        self._delete_server(self.server)
        self.assert_nothing_left("host2")
        self.run_periodics()
        self.assertEqual(self.empty["host2"], self.stable_providers("host2"))

    @pytest.mark.long
    def test_the_device_is_created_before_it_starts(self) -> None:
        self.meanwhile = self.check_destination
        self._live_migrate(self.server)
        self.assert_holds(self.server, harness.T4, "host2")

    def check_destination(self) -> None:
        self.run_periodics()
        (made,) = self.hosts["host2"].mdevs()
        (claim,) = self.computes["host2"].driver._accel.claims()
        self.assertEqual(made, claim.handle)
        self.assertEqual(self.server["id"], claim.consumer)
        self.assertIn(made, self.destination_xmls[-1])
        self.assertNotIn(self.before, self.destination_xmls[-1])
        self.assertEqual({self.before}, set(self.hosts["host1"].mdevs()))
        for host in ("host1", "host2"):
            self.assertEqual(1, self.usages(harness.T4, host)["VGPU"])

    @pytest.mark.long
    def test_restart_of_the_destination_and_a_failure(self) -> None:
        self.meanwhile = self.restart_destination
        self.arrives = False
        self._live_migrate(self.server, "failed")
        self.assert_stayed()

    def restart_destination(self) -> None:
        super().restart_destination()
        (made,) = self.hosts["host2"].mdevs()
        (claim,) = self.computes["host2"].driver._accel.claims()
        self.assertEqual(
            (made, self.server["id"]), (claim.handle, claim.consumer)
        )

    @pytest.mark.long
    def test_a_source_that_died_before_it_began(self) -> None:
        """Nova never ends its migration, only the server's state.

        Nor does it remove the allocations on the destination.
        """
        self.arrives = False
        away = fixtures.MockPatch(
            "nova.compute.rpcapi.ComputeAPI"
            ".rollback_live_migration_at_destination",
            side_effect=exception.NovaException,
        )
        with away:
            self._live_migrate(self.server, "error", "ERROR")
        instance = objects.Instance.get_by_uuid(
            self.context, self.server["id"]
        )
        migration = objects.MigrationList.get_by_filters(
            self.context, {"instance_uuid": instance.uuid}
        )[0]
        path = f"/allocations/{instance.uuid}"
        record = self.placement.get(path, version="1.28").body
        record["allocations"][self.provider(harness.T4, "host2")] = {
            "resources": self.allocations(self.server).popitem()[1]
        }
        answer = self.placement.put(path, record, version="1.28")
        self.assertEqual(204, answer.status, answer.body)
        for task, count in ((task_states.MIGRATING, 1), (None, 0)):
            instance.task_state, migration.status = task, "preparing"
            instance.save()
            migration.save()
            driver = self.computes["host2"].driver
            driver.get_available_resource("host2")
            self.assertEqual(count, len(self.hosts["host2"].mdevs()), task)

    @pytest.mark.long
    def test_a_source_that_died_on_the_way(self) -> None:
        """Nova ends the migration, and leaves the allocations as they are."""
        self.arrives, self.meanwhile = False, self.restart_source
        no_rollback = fixtures.MockPatch(
            "nova.compute.manager.ComputeManager._rollback_live_migration"
        )
        with no_rollback:
            self._live_migrate(self.server, "error")
        self.run_periodics()
        self.assertEqual({}, self.hosts["host2"].mdevs())
        (finding,) = audit.run(self, status=1)["findings"]
        self.assertEqual("unreverted-move", finding["kind"])

    def restart_source(self) -> None:
        """Do what Nova does at the start of a service for such a server."""
        instance = objects.Instance.get_by_uuid(
            self.context, self.server["id"]
        )
        self.computes["host1"].manager._reset_live_migration(
            self.context, instance
        )

    @pytest.mark.long
    def test_a_server_without_accelerators(self) -> None:
        """The library logs nothing about it."""
        for arrives, end in ((False, "failed"), (True, "completed")):
            with self.subTest(arrives=arrives):
                other = self.boot({}, host="host1")
                self.arrives = arrives
                start = len(self.stdlog.logger.output)
                self._live_migrate(other, end)
                self._delete_server(other)
                log = self.stdlog.logger.output[start:]
                self.assertNotIn("[virt_hooks", log)

    @pytest.mark.long
    def test_failure_on_the_way(self) -> None:
        self.arrives = False
        self._live_migrate(self.server, "failed")
        self.assertEqual(1, len(self.destination_xmls))
        self.assert_stayed()

    def test_the_destination_can_not_make_it(self) -> None:
        self.hosts["host2"].fail(CREATE, "EIO")
        self._live_migrate(self.server, "failed")
        self.hosts["host2"].heal()
        self.assertEqual([], self.destination_xmls)
        self.assert_stayed()

    @pytest.mark.long
    def test_the_destination_gets_no_rollback(self) -> None:
        """Its next pass sees that the server does not come."""
        self.arrives = False
        away = fixtures.MockPatch(
            "nova.compute.rpcapi.ComputeAPI"
            ".rollback_live_migration_at_destination",
            side_effect=exception.NovaException,
        )
        with away:
            self._live_migrate(self.server, "error", "ERROR")
        self.assertEqual(1, len(self.hosts["host2"].mdevs()))
        self.run_periodics()
        self.assert_nothing_left("host2")
        self.assertEqual({self.before}, set(self.hosts["host1"].mdevs()))


class LiveFunctions(moving.LiveBase):
    CARDS = (
        fakehost.NvidiaGpu(
            address=L40S,
            model="L40S",
            interface="vfio",
            total_vfs=1,
            enabled_vfs=1,
        ),
        fakehost.NvidiaGpu(
            address=L40S_B,
            model="L40S",
            interface="vfio",
            total_vfs=1,
            enabled_vfs=1,
        ),
    )

    def settings(self, name: str) -> dict[str, Any]:
        """Return device specs that swap the cards of the two profiles."""
        sizes = ("8Q", "4Q") if name == "host1" else ("4Q", "8Q")
        return {
            "device_spec": [
                f'{{"address": "0000:{bus}:*", "profiles": "L40S-{size}"}}'
                for bus, size in zip(("3d", "3e"), sizes, strict=True)
            ]
        }

    @pytest.mark.long
    def test_profiles_swap_their_addresses(self) -> None:
        """The addresses are the same on both hosts, the profiles not."""
        both = typed_group("8Q") | typed_group("4Q", "_B")
        server = self.boot(both | {"group_policy": "none"}, host="host1")
        large, small = self.functions_of(server)
        typed = self.vgpu_types("host1")
        self.assertEqual({large, small}, set(typed))
        self._live_migrate(server)
        self.assertEqual([small, large], self.functions_of(server, "host2"))
        self.assertEqual(
            {small: typed[large], large: typed[small]},
            self.vgpu_types("host2"),
        )
        self.assertEqual({}, self.vgpu_types("host1"))
        self.assert_nothing_left("host1")
        self.assertEqual(2, len(self.slots(server)))
        self.assertEqual(
            {self.provider(card, "host2") for card in (L40S, L40S_B)},
            set(self.allocations(server)),
        )
        self.run_periodics()
        self.be_on("host2")
        self._delete_server(server)
        self.assertEqual({}, self.vgpu_types("host2"))
        self.assert_nothing_left("host2")

    @pytest.mark.long
    def test_failure_on_the_way(self) -> None:
        server = self.boot(typed_group("8Q"), host="host1")
        typed = self.vgpu_types("host1")
        self.arrives = False
        self._live_migrate(server, "failed")
        self.assertEqual(typed, self.vgpu_types("host1"))
        self.assertEqual({}, self.vgpu_types("host2"))
        self.assert_holds(server, L40S, "host1")
        self.assert_nothing_left("host2")


class LiveChain(moving.LiveBase):
    CARDS = (CARD,)

    @pytest.mark.long
    def test_addresses_overlap(self) -> None:
        """Two VFs whose new addresses are partly their old ones."""
        first = str(pci.parse_address(L40S)).replace("00.0", "00.4")
        self.free_functions("host1", first, first.replace(".4", ".5"))
        self.free_functions(
            "host2", first.replace(".4", ".5"), first.replace(".4", ".6")
        )
        two = typed_group("8Q") | typed_group("8Q", "_B")
        server = self.boot(two | {"group_policy": "none"}, host="host1")
        before = self.functions_of(server)
        self._live_migrate(server)
        after = self.functions_of(server, "host2")
        self.assertEqual([".4", ".5"], sorted(f[-2:] for f in before))
        self.assertEqual([".5", ".6"], sorted(f[-2:] for f in after))
        self.assert_holds(server, L40S, "host2")

    def free_functions(self, host: str, *functions: str) -> None:
        for _ in range(4):
            self.boot(typed_group("8Q"), host=host)
        self.be_on(host)
        for server in self.api.get_servers(search_opts={"host": host}):
            if self.functions_of(server, host)[0] in functions:
                self._delete_server(server)


class LiveMdevToVf(moving.LiveBase):
    """host1 has the card's vGPUs as mdevs, host2 as typed VFs."""

    CARDS = (dataclasses.replace(CARD, interface="mdev"),)
    lib_version = 11_000_000

    def start_host(self, *cards: Any, name: str = "host1", **opts: Any) -> Any:
        cards = (CARD,) if name == "host2" else cards
        return super().start_host(*cards, name=name, **opts)

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.fakeLibVersion = self.lib_version
        return connection

    @pytest.mark.long
    def test_completed(self) -> None:
        server = self.boot(typed_group("8Q"), host="host1")
        (before,) = self.mdevs_of(server)
        self._live_migrate(server)
        self.assertNotIn(before, self.destination_xmls[-1])
        self.assertEqual([], self.mdevs_of(server, "host2"))
        (function,) = self.functions_of(server, "host2")
        self.assertEqual({function: EIGHT}, self.vgpu_types("host2"))
        self.assert_holds(server, L40S, "host2")
        # Nova removes them after it has completed the migration.
        self.until(lambda: self.assertEqual({}, self.usages(L40S, "host1")))
        self.assert_nothing_left("host1")
        self.run_periodics()
        self.be_on("host2")
        self._reboot_server(server, hard=True)
        self.assertEqual([function], self.functions_of(server, "host2"))
        self._delete_server(server)
        self.assert_nothing_left("host2")

    @pytest.mark.long
    def test_failed(self) -> None:
        server = self.boot(typed_group("8Q"), host="host1")
        before = self.mdevs_of(server)
        self.arrives = False
        self._live_migrate(server, "failed")
        self.assertEqual(before, self.mdevs_of(server))
        self.assert_holds(server, L40S, "host1")
        self.assert_nothing_left("host2")
        self.assertEqual({}, self.vgpu_types("host2"))

    @pytest.mark.long
    def test_a_libvirt_that_can_not(self) -> None:
        for name in ("host1", "host2"):
            there = self.computes[name].driver._host.get_connection()
            there.fakeLibVersion = moving.LIBVIRT
        server = self.boot(typed_group("8Q"), host="host1")
        self.assertRaises(
            client.OpenStackApiException, self._live_migrate, server
        )
        self.assertIn("it needs 11.0.0", self.stdlog.logger.output)
        self.assert_holds(server, L40S, "host1")


class NotRegistered(moving.LiveBase):
    """A damaged installation, without what nova-compute has a default for."""

    CARDS = (harness.TWO_T4[0],)

    def setUp(self) -> None:
        site = Path(self.useFixture(fixtures.TempDir()).path)
        patched = pytest.MonkeyPatch()
        self.addCleanup(patched.undo)
        entry_points.remove_groups(
            patched,
            site,
            extra_operations.MOVES_GROUP,
            libvirt_guest.LAYOUTS_GROUP,
            programs.GROUP,
        )
        super().setUp()

    def test_servers_live_and_stay(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.assertRaises(
            client.OpenStackApiException, self._live_migrate, server
        )
        self.assertIn("live migration is missing there", self.reasons(server))
        self._reboot_server(server, hard=True)
        self.run_periodics()
        self.assert_holds(server, harness.T4, "host1")
        numa = SMALL | {"accelerator:guest_topology": "numa"}
        self.boot(numa, host="host1", expected_state="ERROR")
        self.assertIn("guest layouts is missing here", self.messages())
        self._delete_server(server)
        self.assert_nothing_left("host1")


class Refusals(moving.LiveBase):
    CARDS = (harness.TWO_T4[0], *harness.GPU_CARDS)

    def assert_refused(self, server: Any, *words: str) -> None:
        """Check that nothing was changed, and the reasons logged."""
        before = (self.slots(server), self.hosts["host1"].mdevs())
        wrote = self.hosts["host2"].writes()
        ex = self.assertRaises(
            client.OpenStackApiException, self._live_migrate, server
        )
        self.assertIn("NoValidHost", str(ex))
        public = self.reasons(server)
        for word in words:
            self.assertIn(word, public + self.messages())
        # The server's owner does not read what the hosts have.
        self.assertNotRegex(public, "[0-9a-f]{4}:[0-9a-f]{2}:|NVIDIA|Linux")
        self.assertEqual([], self.destination_xmls)
        self.assertEqual(
            before, (self.slots(server), self.hosts["host1"].mdevs())
        )
        self.assertEqual(wrote, self.hosts["host2"].writes())
        self.assert_nothing_left("host2")
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])

    @pytest.mark.long
    def test_a_whole_function(self) -> None:
        server = self.boot(harness.whole_gpu_group("_A"), host="host1")
        self.assert_refused(server, f"{harness.GPU} ", "whole function")

    @pytest.mark.long
    def test_one_of_two_is_enough(self) -> None:
        both = SMALL | harness.whole_gpu_group("_B") | {"group_policy": "none"}
        server = self.boot(both, host="host1")
        self.assert_refused(server, f"{harness.GPU} ", "whole function")

    @pytest.mark.long
    def test_post_copy(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.flags(live_migration_permit_post_copy=True, group="libvirt")
        self.assert_refused(server, "live_migration_permit_post_copy")

    @pytest.mark.long
    def test_an_old_kernel(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.hosts["host1"].write_kernel_release("5.15.0-91-generic")
        self.assert_refused(server, "Linux 5.15", "needs 5.18")

    @pytest.mark.long
    def test_old_programs_there(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.flags(
            skip_hypervisor_version_check_on_lm=True, group="workarounds"
        )
        there = self.computes["host2"].driver._host.get_connection()
        there.fakeLibVersion = 8_005_000
        self.assert_refused(server, "the destination has libvirt 8.5.0")

    @pytest.mark.long
    def test_a_driver_whose_version_is_unknown(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.hosts["host2"].fail("module/nvidia/version", "EIO", on="read")
        self.assert_refused(
            server, "version of the driver nvidia on the destination"
        )

    @pytest.mark.long
    def test_a_destination_without_nova_accel(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.useFixture(
            fixtures.MonkeyPatch(
                "virt_hooks.operations.migration.live_migration.LiveMigration"
                ".check_destination",
                lambda _, stock, instance: stock(),
            )
        )
        self.assert_refused(server, "does not run nova-accel")

    @pytest.mark.long
    def test_a_card_drained_meanwhile(self) -> None:
        """Placement is not updated yet; Nova's own claim is dropped."""
        server = self.boot(SMALL, host="host1")
        card = device_notes.DrainNotes(self.state_dir("host2"))
        card.put(harness.T4, "a fan is loud")
        self.computes["host2"].driver._accel.host.refresh()
        self.assert_refused(server, "a fan is loud", "takes no new server")
        self.run_periodics()
        tracker = self.computes["host2"].manager.rt
        self.assertEqual({}, self.assigned(tracker))
        card.remove([harness.T4])
        self.run_periodics()
        self._live_migrate(server)
        self.assert_holds(server, harness.T4, "host2")

    def assigned(self, tracker: Any) -> dict[str, Any]:
        """Return the slots that Nova's tracker has assigned."""
        return {
            rp: slots
            for rp, kinds in tracker.assigned_resources.items()
            if (slots := {k: v for k, v in kinds.items() if v})
        }

    @pytest.mark.long
    def test_too_slow_a_link(self) -> None:
        """T4-4Q at 1000 MiB/s; Nova's downtime is half a second."""
        self.computes["host1"].driver._hooks.live_migration.link_speed = 1000
        server = self.boot(SMALL, host="host1")
        self.assert_refused(server, "4096 ms", "live_migration_downtime")
        self.flags(live_migration_downtime=4096, group="libvirt")
        self._live_migrate(server)
        self.assert_holds(server, harness.T4, "host2")
