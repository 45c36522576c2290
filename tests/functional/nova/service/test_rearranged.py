# SPDX-License-Identifier: Apache-2.0
"""Restarts with another device_spec while servers are stopped."""

import pytest

from nova_accel.model import names
from tests.functional.nova.support import harness
from tests.lab import fakehost
from tests.lab.fakehost.technologies.fpga import dfl_card

PAC = "0000:5e:00.0"
ANY = names.interface_trait(dfl_card.A10)
FLEX = "0000:51:00.0"
FLEX_CARD = fakehost.PciCard(
    address=FLEX,
    vendor=0x8086,
    device=0x56C0,
    class_code=0x038000,
    driver="i915",
    total_vfs=8,
)


class Restarted(harness.AccelTestBase):
    """Cards of stopped servers are not rearranged."""

    @pytest.mark.long
    def test_a_port_behind_the_pf(self) -> None:
        """A stopped server has the whole PF; then num_vfs is set."""
        self.start_host(fakehost.DflCard(address=PAC))
        server = self.boot(
            {"resources_F:FPGA": "1", "trait_F:" + ANY: "required"}
        )
        self.assertEqual([PAC], self.functions_of(server))
        self._stop_server(server)
        specs = [f'{{"address": "{PAC}", "use": "fpga", "num_vfs": 1}}']
        self.flags(device_spec=specs, group="nova_accel")
        self.restart()
        self.run_periodics()
        self.assertEqual(0, self.hosts["host1"].functions()[PAC]["vfs"])
        self._start_server(server)
        self.assertEqual([PAC], self.functions_of(server))

    def test_a_whole_function(self) -> None:
        """A stopped server has the function; then num_vfs is set."""
        self.start_host(
            FLEX_CARD,
            device_spec=[f'{{"address": "{FLEX}", "use": "passthrough"}}'],
        )
        (trait,) = self.profiles(FLEX)
        server = self.boot(
            {"resources_A:PGPU": "1", "trait_A:" + trait: "required"}
        )
        self.assertEqual([FLEX], self.functions_of(server))
        self._stop_server(server)
        specs = [f'{{"address": "{FLEX}", "num_vfs": 3}}']
        self.flags(device_spec=specs, group="nova_accel")
        self.restart()
        self.run_periodics()
        self.assertEqual(0, self.hosts["host1"].functions()[FLEX]["vfs"])

    def test_vfs_stay_while_their_claims_are_not_restored(self) -> None:
        """A file of the VFs is unreadable: the claims are restored later."""
        specs = [f'{{"address": "{FLEX}", "use": "vf", "num_vfs": 3}}']
        self.start_host(FLEX_CARD, device_spec=specs)
        (trait,) = self.profiles(FLEX)
        server = self.boot(
            {"resources_A:VGPU": "3", "trait_A:" + trait: "required"}
        )
        self._stop_server(server)
        self.flags(
            device_spec=[specs[0].replace("3}", "2}")], group="nova_accel"
        )
        self.hosts["host1"].fail(
            f"devices/*/{FLEX[:-1]}?/reset_method", "EIO", on="read"
        )
        self.restart()
        self.run_periodics()
        self.assertEqual(3, self.hosts["host1"].functions()[FLEX]["vfs"])
        self.hosts["host1"].heal()
        self.run_periodics()
        self._start_server(server)
        self.assertEqual(3, len(self.functions_of(server)))
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual(2, self.hosts["host1"].functions()[FLEX]["vfs"])
        self.assert_nothing_left()
