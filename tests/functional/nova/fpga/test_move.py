# SPDX-License-Identifier: Apache-2.0
"""FPGA regions of servers that move between hosts."""

from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.fpga.test_fpga import ANY, CARD, RED, REGION
from tests.functional.nova.support import harness


class Moves(harness.AccelTestBase):
    """Two hosts with a card each."""

    image = test_fpga.Fpga.image
    region_specs = test_fpga.Fpga.region_specs
    loaded_function = test_fpga.Fpga.loaded_function
    start_fpga = test_fpga.Fpga.start_fpga

    def setUp(self) -> None:
        super().setUp()
        self.states: dict[str, str] = {}
        self.power_off_to_move()
        for name in ("host1", "host2"):
            self.start_fpga(name=name)
        self.server = self.boot(
            self.region_specs(ANY, self.image(RED)), host="host1"
        )

    def test_its_function_moves_with_it(self) -> None:
        self._migrate_server(self.server)
        self.assertEqual(RED, self.loaded_function("host2"))
        self.be_on("host1")
        self._confirm_resize(self.server)
        self.assert_nothing_left("host1")
        self._delete_server(self.server)
        self.assert_nothing_left("host2")

    def test_it_comes_back_also_after_a_restart(self) -> None:
        self._migrate_server(self.server)
        self.be_on("host1")
        self.restart("host1")
        self.flags(group="nova_accel", root=str(self.hosts["host1"].root))
        self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION, "host1"))
        self._revert_resize(self.server)
        self.assertEqual([CARD], self.functions_of(self.server, "host1"))
        self.assert_nothing_left("host2")
