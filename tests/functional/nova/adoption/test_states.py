# SPDX-License-Identifier: Apache-2.0
"""Adoptions in rare states: rescued servers, undos, a lost plan."""

import os

import pytest

from nova_accel.host.state import adoption_plan
from tests.functional.nova.adoption import adopting
from tests.functional.nova.support import harness
from tests.functional.nova.switch import stock_driver


class States(adopting.AdoptionTestBase):
    @pytest.mark.long
    def test_a_rescued_server_is_adopted(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        before = self.snapshot(server)
        mdevs = self.mdevs_of(server)
        # Nova's harness makes no directory of disks.
        os.mkdir(os.path.join(harness.CONF.instances_path, server["id"]))
        self._rescue_server(server)
        self.adopt()
        self.assertEqual(1, len(self.slots(server)))
        self._unrescue_server(server)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.undo()
        self.assertEqual(before["providers"], self.snapshot()["providers"])

    @pytest.mark.long
    def test_an_undo_that_has_begun_goes_on(self) -> None:
        """It can't be cancelled; a host that was handed back is adopted."""
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        self.adopt()
        before = self.slots(server), self.allocations(server)
        self.disable()
        self.run_command("undo")
        for word in ("plan", "apply"):
            text = self.run_command(word, status=2)
            self.assertIn("this host is undoing: stop placement-sync", text)
        self.assertIn("undoing, 1 server", self.run_command("status"))
        self.undo()
        self.adopt()
        after = self.slots(server), self.allocations(server)
        self.assertEqual(before, after)

    def test_a_lost_plan_costs_no_guest_its_mdev(self) -> None:
        """On VFs the uuids of adopted mdevs are in the plan only."""
        self.start_stock(stock_driver.ON_VFS, stock_driver.A40_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        mdevs = self.mdevs_of(server)
        self.adopt()
        os.unlink(adoption_plan.PlanFile(self.state_dir()).path)
        self.restart()
        self.run_periodics()
        self.run_periodics()
        self.assertEqual({*mdevs}, {*self.hosts["host1"].mdevs()})
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._reboot_server(server, hard=True)
        (mdev,) = self.mdevs_of(server)
        self.assertEqual({mdev}, {*self.hosts["host1"].mdevs()})
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
