# SPDX-License-Identifier: Apache-2.0
"""Functions are scrubbed between two servers of a real Nova."""

from pathlib import Path

import pytest

from nova_accel.cli import commands
from nova_accel.model import names
from tests.functional.nova.support import harness


class Scrub(harness.AccelTestBase):
    def list_writes(self, name: str = "host1") -> list[tuple[str, str]]:
        """Return the function and the file of each write."""
        paths = [Path(w["path"]) for w in self.hosts[name].writes()]
        return [(path.parent.name, path.name) for path in paths]

    def resets(self, name: str = "host1") -> list[str]:
        return [
            function
            for function, file in self.list_writes(name)
            if file == "reset"
        ]

    def assert_set_aside(self, card: str, is_aside: bool) -> None:
        self.run_periodics()
        check = self.assertIn if is_aside else self.assertNotIn
        check(names.FAULTED_TRAIT, self.traits(card))
        for total, reserved in self.amounts(card).values():
            self.assertEqual(total if is_aside else 0, reserved)

    def heal(self, card: str) -> None:
        place = self.state_dir()
        self.assertEqual(
            0, commands.main(["heal", card, "--state-dir", place])
        )

    def test_a_card_is_reset_once_its_guest_is_gone(self) -> None:
        self.start_host(*harness.GPU_CARDS)
        server = self.boot(harness.whole_gpu_group("_A"))
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self.assertEqual([], self.resets())
        self._delete_server(server)
        self.assert_nothing_left()
        # The audio function has the host's driver again: it is not reset.
        self.assertEqual([harness.GPU], self.resets())
        functions = self.hosts["host1"].functions()
        self.assertEqual("", functions[harness.GPU]["driver"])
        self.assertEqual(
            "snd_hda_intel", functions[harness.GPU_AUDIO]["driver"]
        )
        self.assert_set_aside(harness.GPU, False)

    def assert_reset_together(self) -> None:
        """Let two servers have the card, which is reset after each."""
        for number in (1, 2):
            server = self.boot(harness.whole_gpu_group("_A"))
            self._delete_server(server)
            self.assert_nothing_left()
            self.assert_set_aside(harness.GPU, False)
            together = [
                port
                for port, file in self.list_writes()
                if file == "reset_subordinate"
            ]
            self.assertEqual([harness.GPU_PORT] * number, together)
        functions = self.hosts["host1"].functions()
        self.assertEqual("", functions[harness.GPU]["driver"])
        self.assertEqual(
            "snd_hda_intel", functions[harness.GPU_AUDIO]["driver"]
        )

    @pytest.mark.long
    def test_a_refused_reset_is_one_of_the_bus(self) -> None:
        """The kernel lists a method, and its write says ENOTTY."""
        self.start_host(*harness.GPU_CARDS)
        for name in (harness.GPU, harness.GPU_AUDIO):
            self.hosts["host1"].fail(f"bus/pci/devices/{name}/reset", "ENOTTY")
        self.assert_reset_together()

    @pytest.mark.long
    def test_functions_without_their_own_reset_are_reset_together(
        self,
    ) -> None:
        self.start_host(*harness.BUS_RESET_CARDS)
        self.assert_reset_together()
        self.assertEqual([], self.resets())

    def test_a_failed_reset_is_set_aside_and_healed(self) -> None:
        self.start_host(*harness.GPU_CARDS)
        server = self.boot(harness.whole_gpu_group("_A"))
        self.hosts["host1"].die_at_reset(harness.GPU)
        self._delete_server(server)
        self.assert_nothing_left()
        self.assert_set_aside(harness.GPU, True)
        self.restart()
        self.assert_set_aside(harness.GPU, True)
        refused = self.boot(
            harness.whole_gpu_group("_A"), expected_state="ERROR"
        )
        self._delete_server(refused)
        self.hosts["host1"].die_at_reset(harness.GPU, is_dying=False)
        self.assert_set_aside(harness.GPU, True)
        self.heal(harness.GPU)
        self.assert_set_aside(harness.GPU, False)
        server = self.boot(harness.whole_gpu_group("_A"))
        self._delete_server(server)
        self.assert_set_aside(harness.GPU, False)
