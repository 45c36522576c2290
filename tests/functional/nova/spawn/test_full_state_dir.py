# SPDX-License-Identifier: Apache-2.0
"""A host whose state_dir is full gets no server that needs a note there."""

import dataclasses
from pathlib import Path

import fixtures
import pytest

from nova_accel.model import names
from tests.functional.nova.support import harness
from tests.lab import fakehost
from tests.lab.fakehost import mount

SMALL = harness.vgpu_group("_A", "4Q")
WHOLE = harness.whole_gpu_group("_A")
OTHER = "0000:81:00.0"
OTHER_CARD = dataclasses.replace(
    harness.GPU_CARDS[0],
    address=OTHER,
    group=50,
    multifunction=False,
    port="",
)
NO_NOTES = {names.FAULTED_TRAIT, f"{names.FAULT_PREFIX}NO_NOTES"}


class FullStateDir(harness.AccelTestBase):
    def start(self) -> None:
        place = Path(self.useFixture(fixtures.TempDir()).path)
        self.small = self._enter(mount.small_directory(place, "size=2m"))
        cards = (*harness.GPU_CARDS, OTHER_CARD)
        t4 = fakehost.NvidiaGpu(address=harness.T4, model="T4")
        self.start_host(*cards, t4, state_dir=str(place))

    def assert_closed(self, is_closed: bool) -> None:
        """Check that the two GPUs take no server, or that each does."""
        for card in (harness.GPU, OTHER):
            traits = self.traits(card) & NO_NOTES
            self.assertEqual(NO_NOTES if is_closed else set(), traits)
            ((total, reserved),) = self.amounts(card).values()
            self.assertEqual(total if is_closed else 0, reserved)
        self.assertEqual(set(), self.traits(harness.T4) & NO_NOTES)

    @pytest.mark.long
    def test_whole_cards_are_not_scheduled_until_there_is_room(self) -> None:
        self.start()
        self.run_periodics()
        server = self.boot(WHOLE)
        (card,) = filter(self.usages, (harness.GPU, OTHER))
        self.run_periodics()
        self.small.fill()
        self.run_periodics()
        self.assert_closed(True)
        with self.subTest("no server comes to the host"):
            self.boot(WHOLE, expected_state="ERROR")
            self.assertNotIn("is closed:", self.messages())
        with self.subTest("vGPUs are made"):
            self._delete_server(self.boot(SMALL))
        with self.subTest("the server keeps its card"):
            self._reboot_server(server, hard=True)
            self._stop_server(server)
            self.restart()
            self.run_periodics()
            self._start_server(server)
            self.assertEqual({"PGPU": 1}, self.usages(card))
            self.assert_closed(True)
        with self.subTest("its card is released, and stays closed"):
            self._delete_server(server)
            self.run_periodics()
            self.assert_closed(True)
        with self.subTest("it ends when there is room"):
            self.small.free()
            self.run_periodics()
            self.assert_closed(False)
            for _ in range(2):
                self.boot(WHOLE)

    @pytest.mark.long
    def test_the_first_server_is_refused_with_the_reason(self) -> None:
        """Placement learns of it at once, not with the next pass."""
        self.start()
        self.run_periodics()
        self.small.fill()
        self.boot(WHOLE, expected_state="ERROR")
        self.assertIn("No space left on device", self.messages())
        traits = self.traits(harness.GPU) | self.traits(OTHER)
        self.assertLessEqual(NO_NOTES, traits)
