# SPDX-License-Identifier: Apache-2.0
"""FPGA regions of servers that move between hosts."""

from typing import Any

import fixtures

from tests.functional.nova import base, test_fpga
from tests.functional.nova.test_fpga import ANY, CARD, RED, REGION


class Moves(base.AccelTestBase):
    """Two hosts with a card each."""

    image = test_fpga.Fpga.image
    asks = test_fpga.Fpga.asks
    held = test_fpga.Fpga.held
    start_fpga = test_fpga.Fpga.start_fpga

    def setUp(self) -> None:
        super().setUp()
        self.states: dict[str, str] = {}
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
            self.start_fpga(name=name)
        self.server = self.boot(
            self.asks(ANY, self.image(RED)), host="host1"
        )

    def _power_off(
        self, _context: Any, instance: Any, *_: Any, **__: Any
    ) -> str:
        self.computes["host1"].driver.power_off(instance)
        return "[]"

    def _on(self, name: str) -> None:
        """Let Nova's one global configuration be that of a host."""
        self.flags(host=name)
        self.flags(group="nova_accel", root=str(self.hosts[name].root))

    def test_its_function_moves_with_it(self) -> None:
        self._migrate_server(self.server)
        self.assertEqual(RED, self.held("host2"))
        self._on("host1")
        self._confirm_resize(self.server)
        self.assert_nothing_left("host1")
        self._delete_server(self.server)
        self.assert_nothing_left("host2")

    def test_it_comes_back_also_after_a_restart(self) -> None:
        self._migrate_server(self.server)
        self._on("host1")
        self.restart("host1")
        self.flags(group="nova_accel", root=str(self.hosts["host1"].root))
        self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION, "host1"))
        self._revert_resize(self.server)
        self.assertEqual([CARD], self.functions_of(self.server, "host1"))
        self.assert_nothing_left("host2")
