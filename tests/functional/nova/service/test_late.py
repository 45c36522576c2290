# SPDX-License-Identifier: Apache-2.0
"""Cards whose kernel files do not answer: nova-compute goes on."""

import time

from nova_accel.host import bounded_calls
from nova_accel.model import names
from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")
#: Seconds that a pass may take on a busy machine; without a limit it ends
#: with the test.
SOON_S = 30.0
HANGING = "mdev_supported_types/nvidia-232/available_instances"


class Late(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.heal)

    def heal(self) -> None:
        """Let all cards answer, and wait until they have."""
        for simulated in self.hosts.values():
            simulated.heal()
        until = time.monotonic() + SOON_S
        while bounded_calls.count_late() and time.monotonic() < until:
            time.sleep(0.02)

    def assert_late(self, card: str, other: str) -> None:
        """Check that a card is reserved, and another one is offered."""
        self.assertIn(names.FAULTED_TRAIT, self.traits(card))
        for total, reserved in self.amounts(card).values():
            self.assertEqual(total, reserved)
        self.assertNotIn(names.FAULTED_TRAIT, self.traits(other))
        self.assertEqual((4, 0), self.amounts(other)["VGPU"])

    def test_a_card_that_does_not_answer(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        self.run_periodics()
        card = self.card_of(server)
        (other,) = {harness.T4, harness.T4_B} - {card}
        (mdev,) = self.mdevs_of(server)
        before = self.stable_providers()
        self.hosts["host1"].hang(
            f"bus/pci/devices/{card}/{HANGING}", on="read"
        )
        self.hosts["host1"].hang(f"bus/pci/devices/{card}/vendor", on="read")

        with self.subTest("passes go on"):
            began = time.monotonic()
            self.run_periodics()
            self.run_periodics()
            self.assertLess(time.monotonic() - began, SOON_S)
            self.assert_late(card, other)
        with self.subTest("a service starts"):
            began = time.monotonic()
            self.restart()
            self.run_periodics()
            self.assertLess(time.monotonic() - began, SOON_S)
            self.assert_late(card, other)
        with self.subTest("other servers start"):
            self._delete_server(self.boot({}))
            another = self.boot(SMALL)
            self.assertEqual(other, self.card_of(another))
            self._delete_server(another)
        with self.subTest("the card heals"):
            self.heal()
            self.run_periodics()
            self.run_periodics()
            self.assertEqual(before, self.stable_providers())
            self.assertEqual({mdev}, self.mdevs_of(server))
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()

    def test_a_server_is_deleted_meanwhile(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        card = self.card_of(server)
        self.hosts["host1"].hang(
            f"bus/pci/devices/{card}/{HANGING}", on="read"
        )
        began = time.monotonic()
        self._delete_server(server)
        self.assertLess(time.monotonic() - began, SOON_S)
        self.heal()
        self.run_periodics()
        self.run_periodics()
        self.assert_nothing_left()
