# SPDX-License-Identifier: Apache-2.0
"""Cold migration between two hosts of the harness."""

import pytest

from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")


class Moves(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()
        for name in ("host1", "host2"):
            self.start_host(harness.TWO_T4[0], name=name)
        self.server = self.boot(SMALL, host="host1")

    def test_migrate_and_confirm(self) -> None:
        self._migrate_server(self.server)
        self.assertEqual(1, len(self.hosts["host1"].mdevs()))
        self.assertEqual(
            set(self.mdevs_of(self.server, "host2")),
            set(self.hosts["host2"].mdevs()),
        )
        self.run_periodics()
        self.assertEqual((4, 0), self.amounts(harness.T4, "host1")["VGPU"])
        self.be_on("host1")
        self._confirm_resize(self.server)
        self.assert_nothing_left("host1")
        self.assertEqual(1, len(self.hosts["host2"].mdevs()))
        self._delete_server(self.server)
        self.assert_nothing_left("host2")

    @pytest.mark.long
    def test_migrate_and_revert(self) -> None:
        (mdev,) = self.mdevs_of(self.server)
        self._migrate_server(self.server)
        self.be_on("host1")
        self._revert_resize(self.server)
        self.assert_nothing_left("host2")
        self.assertEqual([mdev], self.mdevs_of(self.server))
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self._delete_server(self.server)
        self.assert_nothing_left("host1")
