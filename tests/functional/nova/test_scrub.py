# SPDX-License-Identifier: Apache-2.0
"""Functions scrubbed between two servers of a real Nova."""

import dataclasses
from pathlib import Path
from typing import Any

from nova_accel import cli, names
from tests.functional.nova import base, test_vfio

VF_CARD = dataclasses.replace(test_vfio.AMD, enabled_vfs=2)


class Scrub(base.AccelTestBase):
    def ends(self, name: str = "host1") -> list[tuple[str, str]]:
        """Return which file of which function was written to."""
        paths = [Path(w["path"]) for w in self.hosts[name].writes()]
        return [(path.parent.name, path.name) for path in paths]

    def resets(self, name: str = "host1") -> list[str]:
        return [one for one, file in self.ends(name) if file == "reset"]

    def assert_set_aside(self, card: str, is_so: bool) -> None:
        self.run_periodics()
        check = self.assertIn if is_so else self.assertNotIn
        check(names.FAULTED_TRAIT, self.traits(card))
        for total, reserved in self.amounts(card).values():
            self.assertEqual(total if is_so else 0, reserved)

    def heal(self, card: str) -> None:
        place = self.state_dir()
        self.assertEqual(0, cli.main(["heal", card, "--state-dir", place]))

    def test_a_card_is_reset_once_its_guest_is_gone(self) -> None:
        self.start_host(*base.GPU_CARDS)
        server = self.boot(base.whole_gpu_group("_A"))
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self.assertEqual([], self.resets())
        self._delete_server(server)
        self.assert_nothing_left()
        # its sound is with the host's driver again: that is not disturbed
        self.assertEqual([base.GPU], self.resets())
        functions = self.hosts["host1"].functions()
        self.assertEqual("", functions[base.GPU]["driver"])
        self.assertEqual(
            "snd_hda_intel", functions[base.GPU_AUDIO]["driver"]
        )
        self.assert_set_aside(base.GPU, False)

    def test_what_fails_is_set_aside_and_healed(self) -> None:
        self.start_host(*base.GPU_CARDS)
        server = self.boot(base.whole_gpu_group("_A"))
        self.hosts["host1"].die_at_reset(base.GPU)
        self._delete_server(server)
        self.assert_nothing_left()
        self.assert_set_aside(base.GPU, True)
        self.restart()
        self.assert_set_aside(base.GPU, True)
        refused = self.boot(
            base.whole_gpu_group("_A"), expected_state="ERROR"
        )
        self._delete_server(refused)
        self.hosts["host1"].die_at_reset(base.GPU, is_dying=False)
        self.assert_set_aside(base.GPU, True)
        self.heal(base.GPU)
        self.assert_set_aside(base.GPU, False)
        server = self.boot(base.whole_gpu_group("_A"))
        self._delete_server(server)
        self.assert_set_aside(base.GPU, False)

    def test_a_vf_is_reset_below_another_server(self) -> None:
        self.start_host(VF_CARD)
        (trait,) = self.profiles(VF_CARD.address)
        asks = {"resources_A:VGPU": "1", "trait_A:" + trait: "required"}
        first, second = self.boot(asks), self.boot(asks)
        (vf,), (other,) = map(self.functions_of, (first, second))
        self._delete_server(first)
        self.assertEqual([vf], self.resets())
        self.assertEqual([other], self.functions_of(second))
        self.assert_set_aside(VF_CARD.address, False)
        self.hosts["host1"].fail(
            f"bus/pci/devices/{other}/reset", "ENOTTY"
        )
        self._delete_server(second)
        self.assert_set_aside(VF_CARD.address, True)

    def test_the_source_of_a_move_is_reset_when_it_is_left(self) -> None:
        self.power_off_to_move()
        for name in ("host1", "host2"):
            self.start_host(*base.GPU_CARDS, name=name)
        server = self.boot(base.whole_gpu_group("_A"), host="host1")
        self._migrate_server(server)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertEqual([], self.resets("host1"))
        self.be_on("host1")
        self._confirm_resize(server)
        self.assertEqual([base.GPU], self.resets("host1"))
        self.assertEqual([], self.resets("host2"))
        found: list[Any] = self.functions_of(server, "host2")
        self.assertEqual([base.GPU, base.GPU_AUDIO], sorted(found))
