# SPDX-License-Identifier: Apache-2.0
"""Attached profiles move with their server."""

import functools
from typing import Any

import pytest
from nova.tests.functional.api import client

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.operations import moving, test_middle
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness, technologies

PROFILE = "T4-4Q"
FOUR = harness.vgpu_group("_A", "4Q")
EIGHT = harness.vgpu_group("_A", "8Q")


class CarriedTestBase(
    scheduled.ScheduledTestBase, attaching.AttachingTestBase
):
    """Two hosts, and a scheduler that requests attached profiles."""

    technology = technologies.MDEV

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()

    def boot_with_attachment(self) -> Any:
        """Return a server of the first host with two profiles."""
        self.start_hosts("host1", "host2")
        server = self.boot(self.technology.small(self), host="host1")
        self.attach(server, self.profile())
        self.be_on("host1")
        return server

    def assert_carried(self, server: Any, where: str) -> None:
        """Check a server's attachment, and all records of its host."""
        host = self.host_of(server)
        (attached,) = self.attachments(server)
        slots = {(provider, slot) for provider, _, slot in self.slots(server)}
        self.assertIn((attached.provider, attached.slot), slots, where)
        self.assertIn(
            attached.provider,
            {uuid for uuid, _ in self.assigned(host)},
            where,
        )
        self.assertEqual(
            ["", "attached-1"],
            [name for name, _, _ in self.list_accelerators(server)],
            where,
        )
        self.assert_agreement(where, False, host)
        self.run_periodics()
        self.assert_agreement(f"{where} and a pass", False, host)

    def detach_and_check(self, server: Any) -> None:
        self.detach(server)
        self.assertEqual((), self.attachments(server))
        self.assert_agreement("detach", is_passed=True)


class Moves(CarriedTestBase):
    """A server with an attached profile on its way between two hosts."""

    __test__ = False

    @pytest.mark.each_release
    def test_migrate_and_confirm(self) -> None:
        server = self.boot_with_attachment()
        self.migrate(server)
        self.assert_carried(server, "migrate")
        self.confirm(server)
        self.assert_carried(server, "confirm")
        self.assert_nothing_left("host1")
        self.be_on("host2")
        self.reboot_hard(server)
        self.assert_carried(server, "reboot")
        self.detach_and_check(server)

    @pytest.mark.long
    def test_resize_and_revert(self) -> None:
        server = self.boot_with_attachment()
        before = self.slots(server)
        self.resize_to_other(server)
        self.assert_carried(server, "resize")
        self.revert(server)
        self.assertEqual(before, self.slots(server))
        self.assert_carried(server, "revert")
        self.assert_nothing_left("host2")
        self.detach_and_check(server)

    @pytest.mark.long
    def test_offload_and_unshelve(self) -> None:
        server = self.boot_with_attachment()
        self.offload(server)
        self.assert_nothing_left("host1")
        self.unshelve(server)
        self.assert_carried(server, "unshelve")
        self.be_on(self.host_of(server))
        self.detach_and_check(server)


globals().update(
    technologies.matrix(
        Moves,
        technologies.MDEV,
        also=(technologies.TYPED_VF, technologies.REGION),
    )
)


class OneCard(CarriedTestBase):
    """Attachments beside the same, another or no profile of the flavor."""

    @pytest.mark.long
    def test_a_flavor_without_accelerators(self) -> None:
        self.start_hosts("host1", "host2")
        server = self.boot({}, host="host1")
        self.attach(server, PROFILE)
        self.attach(server, "T4-8Q")
        self.be_on("host1")
        self.migrate(server)
        self.confirm(server)
        self.assert_agreement("migrate", is_passed=True)
        self.assertEqual(
            [("attached-1", PROFILE), ("attached-2", "T4-8Q")],
            [(n, p) for n, p, _ in self.list_accelerators(server)],
        )
        self.be_on("host2")
        self.detach(server, "attached-1")
        self.assertEqual(
            ["attached-2"], [a.name for a in self.attachments(server)]
        )
        self.assert_agreement("detach", is_passed=True)

    @pytest.mark.long
    def test_resizes_in_place(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(FOUR)
        self.attach(server, PROFILE)
        for specs, end in ((EIGHT, "revert"), (EIGHT, "confirm")):
            self.resize(server, specs)
            self.assert_carried(server, "resize")
            self.restart()
            self.assert_agreement("a restart meanwhile", is_passed=True)
            getattr(self, end)(server)
            self.assert_carried(server, end)
        self.detach_and_check(server)

    @pytest.mark.long
    def test_a_record_that_nova_did_not_save(self) -> None:
        """The new nova-compute ended before Nova saved the server."""
        server = self.boot_with_attachment()
        stale = self.attachments(server)
        self.migrate(server)
        self.confirm(server)
        instance = self.instance(server)
        instance.system_metadata = attachment.update_metadata(
            instance.system_metadata, stale
        )
        instance.save()
        self.be_on("host2")
        self.restart("host2")
        self.assert_agreement("a restart", is_passed=True)
        self.assertEqual(
            ["", "attached-1"],
            [name for name, _, _ in self.list_accelerators(server)],
        )
        self.reboot_hard(server)
        self.assert_carried(server, "reboot")
        self.detach_and_check(server)


class FailedMoves(CarriedTestBase, test_middle.Failing):
    @pytest.mark.long
    def test_a_guest_that_does_not_start(self) -> None:
        """A hard reboot on the new host starts it with both profiles."""
        server = self.boot_with_attachment()
        self.refuse_guests("host2")
        self.fail_operation(server, "migrate")
        self.recover(server)
        self.assert_carried(server, "recovery")

    @pytest.mark.long
    def test_a_host_that_does_not_begin(self) -> None:
        """A hard reboot claims the slots that Nova has for it there."""
        server = self.boot_with_attachment()
        self.fail_before_finish(server, "migrate")
        self.assertEqual("host2", self.host_of(server))
        self.recover(server)
        self.assert_carried(server, "recovery")
        self.delete_and_check(server)

    @pytest.mark.long
    def test_attach_and_detach_after_a_resize_that_failed(self) -> None:
        """Both are refused until its slots and allocations agree again."""
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self), host="host1")
        self.attach(server, PROFILE)
        self.be_on("host1")
        flavor = self.flavor(self.technology.other(self))
        self.fail_before_finish(server, "resize", {"flavorRef": flavor})
        for method, words in (
            ("attach", {"profile": PROFILE}),
            ("detach", {"name": "attached-1"}),
        ):
            reason = self.refused(server, method, **words)
            self.assertIn("hard reboot it first", reason)
        self.reboot_hard(server)
        self.run_periodics()  # until then its migration has the old slots
        self.assert_carried(server, "hard reboot")
        self.delete_and_check(server)

    @pytest.mark.long
    def test_a_revert_that_fails(self) -> None:
        server = self.boot_with_attachment()
        self.migrate(server)
        self.be_on("host1")
        self.refuse_guests("host1")
        self.fail_operation(server, "revertResize")
        self.recover(server)
        self.assertEqual("host1", self.host_of(server))
        self.assert_carried(server, "recovery")
        self.delete_and_check(server)

    @pytest.mark.long
    def test_an_evacuation_that_fails_once(self) -> None:
        server = self.boot_with_attachment()
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self.refuse_guests("host2")
        self.fail_evacuation(server)
        self.evacuate_to_second(server)
        self.assert_carried(server, "evacuate")


class LiveMoves(moving.LiveBase, CarriedTestBase):
    CARDS = (harness.TWO_T4[0],)

    @pytest.mark.long
    def test_there_and_back(self) -> None:
        server = self.boot(FOUR, host="host1")
        self.attach(server, PROFILE)
        for source, destination in (("host1", "host2"), ("host2", "host1")):
            self.be_on(source)
            self.goes_to = destination
            self._live_migrate(server)
            self.assertEqual(destination, self.host_of(server))
            self.until(functools.partial(self.assert_nothing_left, source))
            self.assert_carried(server, f"live migration to {destination}")
        self.be_on("host1")
        self.detach_and_check(server)

    @pytest.mark.long
    def test_restart_of_the_destination_meanwhile(self) -> None:
        """It restores both claims, of slots that no record names yet."""
        server = self.boot(FOUR, host="host1")
        self.attach(server, PROFILE)
        self.be_on("host1")

        def restart() -> None:
            self.restart_destination()
            claims = self.computes["host2"].driver._accel.claims()
            self.assertEqual(2, len(claims))

        self.meanwhile = restart
        self._live_migrate(server)
        self.until(lambda: self.assert_nothing_left("host1"))
        self.assert_carried(server, "live migration")

    @pytest.mark.long
    def test_a_guest_that_does_not_arrive(self) -> None:
        server = self.boot(FOUR, host="host1")
        self.attach(server, PROFILE)
        before = self.collect_state(server)
        self.be_on("host1")
        self.arrives = False
        self._live_migrate(server, "failed")
        self.assertEqual(before, self.collect_state(server))
        self.assert_nothing_left("host2")
        self.assert_carried(server, "failed live migration")


class Evacuations(CarriedTestBase):
    """The new host is asked for the attached profiles."""

    def evacuate(self, server: Any) -> None:
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self._evacuate_server(server, expected_host="host2")

    def return_host(self) -> None:
        self.be_on("host1")
        self.restart("host1")
        self.force_down(False)
        self.assert_agreement("the return of the host", is_passed=True)

    def accelerator_actions(self, server: Any) -> list[tuple[str, Any]]:
        return [
            (action["action"], action["message"])
            for action in self.api.get_instance_actions(server["id"])
            if action["action"] in ("attach_accelerator", "evacuate")
        ]

    def test_with_room(self) -> None:
        server = self.boot_with_attachment()
        self.evacuate(server)
        self.assertEqual(2, len(self.mdevs_of(server, "host2")))
        self.return_host()
        self.assert_carried(server, "evacuate")
        self.assert_nothing_left("host1")
        self.be_on("host2")
        self.detach_and_check(server)

    @pytest.mark.long
    def test_without_room(self) -> None:
        """It is left behind, which is an action of its own."""
        server = self.boot_with_attachment()
        self.boot(harness.vgpu_group("_A", "16Q"), host="host2")
        for _ in range(3):
            self.boot(FOUR, host="host2")
        self.evacuate(server)
        self.assertEqual((), self.attachments(server))
        self.assertEqual(1, len(self.mdevs_of(server, "host2")))
        self.assertIn(
            "was evacuated without its attached profiles", self.messages()
        )
        self.assertEqual(
            [
                ("attach_accelerator", "Error"),
                ("evacuate", None),
                ("attach_accelerator", None),
            ],
            self.accelerator_actions(server),
        )
        self.assertIn("no device of host2 can give T4-4Q", self.reason(server))
        self.return_host()


class PreferredHosts(CarriedTestBase):
    """The weigher prefers hosts that have room for attached profiles."""

    weighers = ("filters.accelerator_weigher.AcceleratorWeigher",)

    @pytest.mark.long
    def test_an_evacuation_goes_where_the_device_is(self) -> None:
        """Other servers without accelerators go elsewhere."""
        self.start_hosts("host1", "host2")
        self.start_host(name="host3")
        server = self.boot({}, host="host1")
        self.attach(server, PROFILE)
        other = self.boot({})
        self.assertEqual("host3", self.host_of(other))
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self._evacuate_server(server, expected_host="host2")
        self.assertEqual(1, len(self.attachments(server)))


class RegionEvacuations(Evacuations):
    """A region is left behind if its image is gone."""

    technology = technologies.REGION

    @pytest.mark.long
    def test_with_room(self) -> None:
        """The image is fetched on the new host."""
        server = self.boot_region()
        self.evacuate(server)
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_agreement("evacuate", False, "host2")
        self.return_host()

    @pytest.mark.long
    def test_without_room(self) -> None:
        server = self.boot_region()
        (image,) = self.loads
        self.glance.delete(None, image)
        self.evacuate(server)
        self.assertEqual((), self.attachments(server))
        self.assert_agreement("evacuate", False, "host2")
        self.return_host()

    def boot_region(self) -> Any:
        self.start_hosts("host1", "host2")
        server = self.boot({}, host="host1")
        image = self.image_of(test_fpga.BLUE)
        words = {"profile": "region", "bitstream": image}
        self.call_rpc(server, "attach", **words)
        return server


class NoRoom(CarriedTestBase):
    """No other host has room for flavor and attachment."""

    # Otherwise the caller of a cast would get its error.
    CAST_AS_CALL = False

    @pytest.mark.long
    def test_the_server_runs_on(self) -> None:
        server = self.boot_with_attachment()
        self.boot(harness.vgpu_group("_A", "16Q"), host="host2")
        for _ in range(3):
            self.boot(FOUR, host="host2")
        before = self.collect_state(server)
        self.be_on("host1")
        self.api.post_server_action(server["id"], {"migrate": None})
        self.until(lambda: self.assertIn("No valid host", self.reason(server)))
        self._wait_for_server_parameter(
            server, {"OS-EXT-STS:task_state": None, "status": "ACTIVE"}
        )
        self.assertEqual(before, self.collect_state(server))
        self.assert_agreement("a refusal", is_passed=True)


class NoFilter(attaching.AttachingTestBase):
    """Without AcceleratorFilter a move would lose an attachment.

    It is refused before anything is changed.
    """

    CAST_AS_CALL = False
    technology = technologies.MDEV

    def test_unshelve_is_refused(self) -> None:
        """The server stays offloaded until the filter is enabled."""
        self.start_hosts("host1")
        server = self.boot(FOUR, host="host1")
        self.attach(server, PROFILE)
        self.be_on("host1")
        self.offload(server)
        self.api.post_server_action(server["id"], {"unshelve": None})
        self.until(
            lambda: self.assertIn(
                "enable AcceleratorFilter", self.reason(server)
            )
        )
        self._wait_for_server_parameter(
            server,
            {"OS-EXT-STS:task_state": None, "status": "SHELVED_OFFLOADED"},
        )
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_nothing_left("host1")

    @pytest.mark.long
    def test_moves_are_refused(self) -> None:
        self.start_hosts("host1", "host2")
        self.power_off_to_move()
        server = self.boot(FOUR, host="host1")
        self.attach(server, PROFILE)
        before = self.collect_state(server)
        for body in (
            {"migrate": None},
            {"resize": {"flavorRef": self.flavor({})}},
            {"os-migrateLive": {"host": None, "block_migration": "auto"}},
        ):
            with self.subTest(body):
                self.be_on("host1")
                self.try_to(server, body)
                self._wait_for_server_parameter(
                    server,
                    {"OS-EXT-STS:task_state": None, "status": "ACTIVE"},
                )
                self.until(
                    lambda: self.assertIn(
                        "enable AcceleratorFilter", self.reason(server)
                    )
                )
                self.run_periodics()
                self.assertEqual(before, self.collect_state(server))
                self.assert_agreement(f"refusal of {body}")
        self.detach(server)
        self.be_on("host1")
        self.migrate(server)
        self.assert_agreement("migrate")

    def try_to(self, server: Any, body: Any) -> None:
        try:
            self.api.post_server_action(server["id"], body)
        except client.OpenStackApiException as error:
            self.assertIn(error.response.status_code, (400, 500))
