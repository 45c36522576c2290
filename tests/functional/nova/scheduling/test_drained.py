# SPDX-License-Identifier: Apache-2.0
"""Drained cards keep their servers and get no new ones."""

from nova_accel.host.state import device_notes
from nova_accel.model import names
from tests.functional.nova.support import harness

HALF = harness.vgpu_group("_A", "8Q")


class Drained(harness.AccelTestBase):
    def read_notes(self, name: str = "host1") -> device_notes.DrainNotes:
        return device_notes.DrainNotes(self.state_dir(name))

    def drain(self, card: str) -> None:
        self.read_notes().put(card, "a fan is loud")

    def undrain(self, card: str) -> None:
        self.assertEqual({card}, self.read_notes().remove([card]))

    def assert_drained(self, card: str, total: int) -> None:
        self.assertEqual((total, total), self.amounts(card)["VGPU"])
        self.assertIn(names.DRAINED_TRAIT, self.traits(card))
        self.assertEqual(set(), self.profiles(card))

    def test_it_keeps_its_server_and_takes_no_other(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(HALF)
        (mdev,) = self.mdevs_of(server)
        card = self.card_of(server)
        (other,) = {harness.T4, harness.T4_B} - {card}
        self.drain(card)
        self.run_periodics()
        self.assert_drained(card, 2)
        for _ in range(2):
            self.assertEqual(other, self.card_of(self.boot(HALF)))
        self.boot(HALF, expected_state="ERROR")

        def check() -> None:
            self.assertEqual([mdev], self.mdevs_of(server))
            self.assertEqual(1, self.usages(card)["VGPU"])
            self.assert_drained(card, 2)

        self._reboot_server(server, hard=True)
        check()
        self._stop_server(server)
        self.restart()
        self.run_periodics()
        check()
        self._start_server(server)
        check()
        self.undrain(card)
        self.run_periodics()
        self.assertEqual((2, 0), self.amounts(card)["VGPU"])
        self.assertNotIn(names.DRAINED_TRAIT, self.traits(card))
        self.assertEqual(card, self.card_of(self.boot(HALF)))
