# SPDX-License-Identifier: Apache-2.0
"""`nova-accel remove` on a host with adopted servers."""

import os

import pytest

from tests.functional.nova.adoption import adopting
from tests.functional.nova.switch import stock_driver


class RemoveAdopted(adopting.AdoptionTestBase):
    def remove(self, *words: str, status: int = 0) -> str:
        """Return the output of `nova-accel remove apply` on host1."""
        return self.run_here("remove", "apply", *words, status=status)

    def test_they_are_handed_back_by_the_undo(self) -> None:
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        before = self.snapshot(server)
        self.adopt()
        self.end_service()
        text = self.remove(status=2)
        self.assertIn("`nova-accel adopt undo` hands it back", text)
        self.restart()
        self.run_command("undo")
        self.end_service()
        self.assertIn("'undoing', and the next start", self.remove(status=2))
        self.restart()
        self.run_periodics()
        self.assertEqual("undone", self.state())
        self.end_service()
        self.remove()
        self.assertEqual([], os.listdir(self.state_dir()))
        self.switch(stock_driver.STOCK, self.kind)
        self.run_periodics()
        self.assertEqual(before, self.snapshot(server))
        mdevs = self.mdevs_of(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._delete_server(server)

    @pytest.mark.long
    def test_they_stay_without_an_undo(self) -> None:
        """Nova's own driver keeps the mdevs, and leaves them behind."""
        self.start_stock(stock_driver.ON_FUNCTION, stock_driver.T4_TYPE)
        server = self.boot(stock_driver.NATIVE_FLAVOR)
        mdevs = self.mdevs_of(server)
        self.adopt()
        self.end_service()
        self.remove("--keep-servers")
        self.assertEqual([], self.slots(server))
        self.switch(stock_driver.STOCK)
        self.run_periodics()
        self._reboot_server(server, hard=True)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._delete_server(server)
        self.assertEqual({*mdevs}, {*self.hosts["host1"].mdevs()})
        self.remove()
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.assertEqual({}, self.providers())
        self.assertEqual([], os.listdir(self.state_dir()))
