# SPDX-License-Identifier: Apache-2.0
"""``openstack accel plan`` moves servers through Nova's own API."""

import pathlib

import fixtures
import pytest
from nova.tests.fixtures import libvirt

from tests.functional.nova.attach import test_device_command
from tests.functional.nova.operations import moving
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness

SMALL = test_device_command.SMALL


class LivePlan(
    scheduled.ScheduledTestBase,
    moving.LiveBase,
    test_device_command.DeviceCommandBase,
):
    """Two hosts with a T4 each, and nova-scheduler with AcceleratorFilter."""

    CARDS = (harness.TWO_T4[0],)

    def setUp(self) -> None:
        super().setUp()
        place = self.useFixture(fixtures.TempDir()).path
        self.path = str(pathlib.Path(place) / "plan.json")

    def plan(self, *words: str, status: int = 0) -> str:
        """Return what a command about plans prints."""
        code, out, err = self.execute(*words, noun="plan")
        self.assertEqual(status, code, out + err)
        return out

    def make_plan(self) -> str:
        return self.plan(
            "defragment", "--profile", "T4-16Q", "--output", self.path
        )

    @pytest.mark.long
    def test_a_card_gets_empty(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.boot(SMALL, host="host2")
        self.be_on("host1")
        self.assertIn(
            "T4-16Q fits 1 time instead of 0 times", self.make_plan()
        )
        self.assertIn(
            "T4-16Q would fit 1 time",
            self.plan("apply", self.path, "--dry-run"),
        )
        self.assertEqual([], self.destination_xmls)
        self.assertIn("T4-16Q fits 1 time", self.plan("apply", self.path))
        self.assertEqual(1, len(self.destination_xmls))
        self.assert_holds(server, harness.T4, "host2")
        self.assertEqual({}, self.usages(harness.T4, "host1"))
        self.assertIn("already", self.plan("apply", self.path))
        self.assertEqual(1, len(self.destination_xmls))
        self.boot(harness.vgpu_group("_A", "16Q"), host="host1")

    @pytest.mark.long
    def test_a_migration_that_fails_ends_the_run(self) -> None:
        server = self.boot(SMALL, host="host1")
        self.boot(SMALL, host="host2")
        self.be_on("host1")
        self.make_plan()
        self.arrives = False
        self.assertIn(
            "no more servers were moved",
            self.plan("apply", self.path, status=1),
        )
        self.assert_holds(server, harness.T4, "host1")
        self.arrives = True
        connection = self.computes["host1"].driver._host.get_connection()
        for domain in connection._vms.values():
            domain._job_type = libvirt.VIR_DOMAIN_JOB_UNBOUNDED
        self.plan("apply", self.path)
        self.assert_holds(server, harness.T4, "host2")

    @pytest.mark.long
    def test_a_target_that_is_full_meanwhile_ends_the_run(self) -> None:
        self.boot(SMALL, host="host1")
        self.boot(SMALL, host="host2")
        self.make_plan()
        for _ in range(3):
            self.boot(SMALL, host="host2")
        self.assertIn("no place on", self.plan("apply", self.path, status=1))
        self.assertEqual([], self.destination_xmls)
