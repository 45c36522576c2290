# SPDX-License-Identifier: Apache-2.0
"""Cold migration between two hosts of the harness."""

from typing import Any

import fixtures

from tests.functional.nova import base

SMALL = base.vgpu_group("_A", "4Q")


class Moves(base.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        # Nova's own: it copies disks over ssh.
        self.useFixture(
            fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver"
                ".migrate_disk_and_power_off",
                self._power_off,
                create=False,
            )
        )
        for name in ("host1", "host2"):
            self.start_host(base.TWO_T4[0], name=name)
        self.server = self.boot(SMALL, host="host1")

    def _power_off(
        self, _context: Any, instance: Any, *_: Any, **__: Any
    ) -> str:
        self.computes["host1"].driver.power_off(instance)
        return "[]"

    def _on(self, name: str) -> None:
        """Let Nova's one global configuration be that of a host."""
        self.flags(host=name)
        self.flags(group="nova_accel", root=str(self.hosts[name].root))

    def test_migrate_and_confirm(self) -> None:
        self._migrate_server(self.server)
        self.assertEqual(1, len(self.hosts["host1"].mdevs()))
        self.assertEqual(
            set(self.mdevs_of(self.server, "host2")),
            set(self.hosts["host2"].mdevs()),
        )
        self.run_periodics()
        self.assertEqual((4, 0), self.amounts(base.T4, "host1")["VGPU"])
        self._on("host1")
        self._confirm_resize(self.server)
        self.assert_nothing_left("host1")
        self.assertEqual(1, len(self.hosts["host2"].mdevs()))
        self._delete_server(self.server)
        self.assert_nothing_left("host2")

    def test_migrate_and_revert(self) -> None:
        (mdev,) = self.mdevs_of(self.server)
        self._migrate_server(self.server)
        self._on("host1")
        self._revert_resize(self.server)
        self.assert_nothing_left("host2")
        self.assertEqual([mdev], self.mdevs_of(self.server))
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self._delete_server(self.server)
        self.assert_nothing_left("host1")
