# SPDX-License-Identifier: Apache-2.0
"""Cards with VFs and GPU instances, on a host that is left."""

import dataclasses
from typing import Any

import pytest

from tests.campaign import kinds
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import technologies
from tests.functional.nova.switch import leaving, stock_driver


class LeavingCards(leaving.LeavingTestBase):
    def start(self, *cards: Any, **settings: Any) -> None:
        self.use(stock_driver.ACCEL)
        self.start_host(*cards, **settings)

    def keep_and_delete(self, specs: dict[str, str]) -> None:
        """Have a server stay under Nova's own driver, and delete it."""
        server = self.boot(specs)
        (holder,) = self.plan()["holders"]
        self.assertIn("takes its functions away", holder["effect"])
        self.end_service()
        self.apply("--keep-servers")
        self.assert_closed()
        self.assert_stock_is_clean()
        self.boot(specs, expected_state="ERROR")
        self._delete_server(server)

    def vf_counts(self) -> dict[str, str]:
        """Return the numbers of VFs by the address of the card."""
        bus = self.hosts["host1"].root / "sys/bus/pci/devices"
        return {
            path.parent.name: path.read_text().strip()
            for path in bus.glob("*/sriov_numvfs")
        }

    @pytest.mark.long
    def test_gpu_instances_of_an_operator_stay(self) -> None:
        """A boot script made them; the vGPUs in them are removed."""
        self.start(kinds.MIG.cards[0])
        address = kinds.MIG.cards[0].address
        before = self.hosts["host1"].gpus()[address]["instances"]
        self.assertEqual(3, len(before))
        self.keep_and_delete(kinds.MIG.small(self))
        self.assertEqual([*self.vgpu_types()], self.plan()["mdevs"])
        self.assertEqual(1, len(self.vgpu_types()))
        self.apply()
        self.assert_removed()
        self.assertEqual({}, self.vgpu_types())
        after = self.hosts["host1"].gpus()[address]
        self.assertEqual(before, after["instances"])
        self.assertTrue(after["mig"])

    @pytest.mark.long
    def test_vfs_that_an_operator_enabled_stay(self) -> None:
        self.start(*technologies.PLAIN_VF.cards)
        before = self.vf_counts()
        self.keep_and_delete(technologies.PLAIN_VF.small(self))
        (vf,) = self.plan()["unclean"]
        self.assert_cleaned_by_hand(vf)
        self.assertEqual(before, self.vf_counts())

    @pytest.mark.long
    def test_vfs_of_this_library_stay_until_the_host_reboots(self) -> None:
        """Their number is that of `device_spec`, which names them."""
        card = dataclasses.replace(test_typed_vfs.CARD, enabled_vfs=0)
        self.start(
            card, device_spec=['{"address": "0000:3d:*", "num_vfs": 4}']
        )
        self.assertEqual({card.address: "4"}, self.vf_counts())
        self.keep_and_delete(test_typed_vfs.typed_group("8Q"))
        self.apply()
        self.assert_removed()
        self.assertEqual({}, self.vgpu_types())
        self.assertEqual({card.address: "4"}, self.vf_counts())
        self.hosts["host1"].reboot()
        self.assertEqual({card.address: "0"}, self.vf_counts())
