# SPDX-License-Identifier: Apache-2.0
"""Cards that vanish, return, can't be read, or do not answer."""

import errno
import os
import time
from typing import Any
from unittest import mock

import fixtures
import pytest
from nova.tests.functional.api import client

from nova_accel.host import bounded_calls
from nova_accel.model import names
from tests.functional.nova.support import harness
from tests.support import examples

SMALL = harness.vgpu_group("_A", "4Q")
#: Seconds that a pass may take on a busy machine; without a limit it ends
#: with the test.
SOON_S = 30.0
HANGING = "mdev_supported_types/nvidia-232/available_instances"
#: A path that can't be read, the failing call, and the cards without it.
UNREADABLE = (
    (f"bus/pci/devices/{harness.T4}/vendor", "read", {harness.T4}),
    (f"bus/pci/devices/{harness.T4_B}/vendor", "read", {harness.T4_B}),
    (
        f"class/mdev_bus/{harness.T4}/mdev_supported_types",
        "list",
        {harness.T4},
    ),
    ("class/mdev_bus", "list", set[str]()),
    ("bus/pci/devices", "list", set[str]()),
    ("bus/mdev/devices", "list", set[str]()),
)


def _drop_driver(
    records: dict[str, dict[str, Any]], reserved: set[str]
) -> dict[str, dict[str, Any]]:
    """Return the other providers without the driver's release.

    It is a trait of the first card that can be read.
    """
    return {
        uuid: record
        | {
            "traits": {
                trait
                for trait in record["traits"]
                if not trait.startswith(names.DRIVER_PREFIX)
            }
        }
        for uuid, record in records.items()
        if uuid not in reserved
    }


class Missing(harness.AccelTestBase):
    def assert_host_updates(self) -> None:
        """Check that the rest of the host still reaches Placement."""
        reserved_mb = harness.CONF.reserved_host_memory_mb + 7
        self.flags(reserved_host_memory_mb=reserved_mb)
        self.run_periodics()
        root = self._get_provider_inventory(self.compute_rp_uuids["host1"])
        self.assertEqual(reserved_mb, root["MEMORY_MB"]["reserved"])

    @pytest.mark.long
    def test_a_server_for_cards_that_could_not_be_read(self) -> None:
        """Placement offers them as before; Nova claims no slot of them."""
        self.start_host(*harness.TWO_T4)
        self.hosts["host1"].unplug(harness.T4_B)
        stock = os.readlink

        def read_link(path: str, **words: Any) -> str:
            if path.endswith("/sys/bus"):
                raise OSError(errno.ENODEV, "No such device", path)
            return stock(path, **words)

        with mock.patch.object(os, "readlink", read_link):
            self.run_periodics()
        self.boot(SMALL, expected_state="ERROR")
        self.assertIn("Nova claimed no slot on this host", self.messages())

    def lose_uevents(self) -> None:
        """Let nova-compute wait for uevents, of which none is received."""
        self.computes["host1"].driver._accel.uevents.set_open(True)
        self.run_periodics()

    @pytest.mark.long
    def test_a_card_that_left_without_a_uevent_is_withdrawn(self) -> None:
        self.start_host(*harness.TWO_T4)
        self.lose_uevents()
        self.hosts["host1"].unplug(harness.T4_B)
        self.run_periodics()
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        for _ in range(4):
            self.assertEqual(harness.T4, self.card_of(self.boot(SMALL)))

    @pytest.mark.long
    def test_a_server_that_was_scheduled_to_such_a_card(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.lose_uevents()
        self.hosts["host1"].unplug(harness.T4)
        server = self.boot(SMALL, expected_state="ERROR")
        self.assertIn(f"{harness.T4} has left the bus", self.messages())
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual({}, self.providers())

    def test_vanished_with_and_without_allocations(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        card = self.card_of(server)
        (other,) = {harness.T4, harness.T4_B} - {card}
        self._stop_server(server)
        before = self.providers()

        self.hosts["host1"].unplug(card)
        self.hosts["host1"].unplug(other)
        self.run_periodics()
        self.run_periodics()

        self.assertEqual({self.provider(card)}, set(self.providers()))
        self.assertEqual(
            {"VGPU": (4, 4), "CUSTOM_GPU_MEMORY_MB": (16384, 16384)},
            self.amounts(card),
        )
        self.assertIn(names.MISSING_TRAIT, self.traits(card))
        self.assertEqual(set(), self.profiles(card))
        self.assertEqual(1, self.usages(card)["VGPU"])
        self.assert_host_updates()

        # A restart neither loses nor repeats any of this.
        after = self.providers()
        self.restart()
        self.run_periodics()
        self.assertEqual(after, self.providers())
        self.assert_host_updates()

        # Its server can't start, and the log has the reason.
        self.assertRaises(
            client.OpenStackApiException,
            self.api.post_server_action,
            server["id"],
            {"os-start": None},
        )
        self.assertIn(
            "this host has no device of that provider now",
            self.stdlog.logger.output,
        )
        server = self._wait_for_state_change(server, "SHUTOFF")

        self.hosts["host1"].reboot()
        self.run_periodics()
        self.assertEqual(before.keys(), self.providers().keys())
        self.assertNotIn(names.MISSING_TRAIT, self.traits(card))
        # The stopped server keeps its slot, so no other size is offered.
        self.assertEqual((4, 0), self.amounts(card)["VGPU"])
        self._start_server(server)
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_deleted_while_its_card_is_missing(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        self._stop_server(server)
        self.hosts["host1"].unplug(harness.T4)
        self.run_periodics()
        self._delete_server(server)
        self.assertEqual({}, self.usages(harness.T4))
        self.run_periodics()
        self.run_periodics()
        self.assertEqual({}, self.providers())
        self.assert_nothing_left()

    def force_full_reads(self) -> None:
        """Have each pass read the host, as passes do after some time."""
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_accel.discovery.change_detection.FULL_READ_INTERVAL_S",
                -1,
            )
        )

    def assert_set_aside(
        self, before: dict[str, dict[str, Any]], cards: set[str], where: str
    ) -> None:
        """Check that some cards are reserved, and all others are as before."""
        reserved = {self.provider(card) for card in cards}
        providers = self.stable_providers()
        for uuid in reserved:
            record = providers[uuid]
            self.assertIn(names.FAULTED_TRAIT, record["traits"], where)
            for inventory in record["inventories"].values():
                self.assertEqual(inventory["total"], inventory["reserved"])
            self.assertEqual(
                {k: v["total"] for k, v in record["inventories"].items()},
                {
                    k: v["total"]
                    for k, v in before[uuid]["inventories"].items()
                },
            )
        self.assertEqual(
            _drop_driver(before, reserved),
            _drop_driver(providers, reserved),
            where,
        )

    def test_unreadable_cards_are_set_aside_and_stay(self) -> None:
        """While a whole bus is unreadable, all providers stay."""
        self.force_full_reads()
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        self.run_periodics()
        before = self.stable_providers()
        simulated = self.hosts["host1"]
        for path, on, cards in examples.share(UNREADABLE, least=3):
            simulated.fail(path, "EIO", on=on)
            self.run_periodics()
            self.run_periodics()
            self.assert_set_aside(before, cards, path)
            self.assert_host_updates()
            simulated.heal()
            self.run_periodics()
            self.assertEqual(before, self.stable_providers(), path)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_type_that_vanishes_while_it_is_read(self) -> None:
        self.force_full_reads()
        self.start_host(harness.TWO_T4[0])
        kind = f"class/mdev_bus/{harness.T4}/mdev_supported_types/nvidia-232"
        self.hosts["host1"].vanish(kind, when=f"{kind}/available_instances")
        self.run_periodics()
        self.run_periodics()
        self.assertNotIn(harness.vgpu_trait("4Q"), self.profiles(harness.T4))
        self.assertIn(harness.vgpu_trait("8Q"), self.profiles(harness.T4))
        self.assert_host_updates()

    # -- cards that do not answer ------------------------------------------

    def let_answer(self) -> None:
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
        self.assertEqual(0, self.amounts(other)["VGPU"][1])

    def test_a_card_that_does_not_answer(self) -> None:
        self.force_full_reads()
        self.start_host(*harness.TWO_T4)
        self.addCleanup(self.let_answer)
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
            self.let_answer()
            self.run_periodics()
            self.run_periodics()
            self.assertEqual(before, self.stable_providers())
            self.assertEqual([mdev], self.mdevs_of(server))
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_server_is_deleted_meanwhile(self) -> None:
        self.force_full_reads()
        self.start_host(*harness.TWO_T4)
        self.addCleanup(self.let_answer)
        server = self.boot(SMALL)
        card = self.card_of(server)
        self.hosts["host1"].hang(
            f"bus/pci/devices/{card}/{HANGING}", on="read"
        )
        began = time.monotonic()
        self._delete_server(server)
        self.assertLess(time.monotonic() - began, SOON_S)
        self.let_answer()
        self.run_periodics()
        self.run_periodics()
        self.assert_nothing_left()
