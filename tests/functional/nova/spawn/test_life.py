# SPDX-License-Identifier: Apache-2.0
"""Reboot, stop, start, and restarts of the service."""

import pytest

from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")


class Life(harness.AccelTestBase):
    def test_restart_below_servers(self) -> None:
        self.start_host(*harness.TWO_T4)
        running = self.boot(SMALL)
        stopped = self.boot(harness.vgpu_group("_A", "4C"))
        self._stop_server(stopped)
        self.run_periodics()
        before = self.providers()
        mdevs = self.hosts["host1"].mdevs()
        wrote = self.hosts["host1"].writes()

        self.restart()
        self.run_periodics()
        self.run_periodics()

        self.assertEqual(before, self.providers())
        self.assertEqual(mdevs, self.hosts["host1"].mdevs())
        self.assertEqual(wrote, self.hosts["host1"].writes())
        self.assertEqual(2, len(self.computes["host1"].driver._accel.claims()))
        third = self.boot(SMALL)
        self.assertEqual(3, len(self.hosts["host1"].mdevs()))
        slots = [s for x in (running, stopped, third) for s in self.slots(x)]
        self.assertEqual(3, len(set(slots)))
        for server in (running, stopped, third):
            self._delete_server(server)
        self.assert_nothing_left()

    def test_delete_while_the_service_is_down(self) -> None:
        """Nova deletes it locally; a later pass removes the mdev."""
        compute = self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        compute.stop()
        self.force_down(True)
        self.api.delete_server(server["id"])
        self._wait_until_deleted(server)
        self.assertEqual(1, len(self.hosts["host1"].mdevs()))
        self.force_down(False)
        # Nova's own clean-up of the guest is off in its tests,
        # so the operator ends it.
        self.flags(running_deleted_instance_action="reap")
        self.restart()
        self.computes["host1"].manager._cleanup_running_deleted_instances(
            self.context
        )
        self.run_periodics()
        self.assert_nothing_left()
        self.assertEqual((16, 0), self.amounts(harness.T4)["VGPU"])

    @pytest.mark.each_release
    def test_host_reboot(self) -> None:
        """The kernel forgets the mdev; the server's start creates it again.

        Until then the card is not offered for another size.
        """
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        self._stop_server(server)
        self.run_periodics()
        before = self.providers()
        self.hosts["host1"].reboot()
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.restart()
        self.run_periodics()
        self.assertEqual(before, self.providers())
        self.boot(harness.vgpu_group("_A", "8Q"), expected_state="ERROR")
        self._start_server(server)
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self.assertEqual([mdev], self.mdevs_of(server))
        self._delete_server(server)
        self.assert_nothing_left()
