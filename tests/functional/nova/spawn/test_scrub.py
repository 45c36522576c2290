# SPDX-License-Identifier: Apache-2.0
"""Functions are scrubbed between two servers of a real Nova."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import fixtures
import pytest
from nova import objects
from nova.compute import task_states

from nova_accel.cli import commands
from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import harness

VF_CARD = dataclasses.replace(test_typed_vfs.AMD, enabled_vfs=2)


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

    def test_a_refused_reset_is_one_of_the_bus(self) -> None:
        """The kernel lists a method, and its write says ENOTTY."""
        self.start_host(*harness.GPU_CARDS)
        for name in (harness.GPU, harness.GPU_AUDIO):
            self.hosts["host1"].fail(f"bus/pci/devices/{name}/reset", "ENOTTY")
        self.assert_reset_together()

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

    @pytest.mark.long
    def test_a_vf_is_reset_below_another_server(self) -> None:
        self.start_host(VF_CARD)
        (trait,) = self.profiles(VF_CARD.address)
        specs = {"resources_A:VGPU": "1", "trait_A:" + trait: "required"}
        first, second = self.boot(specs), self.boot(specs)
        (vf,), (other,) = map(self.functions_of, (first, second))
        self._delete_server(first)
        self.assertEqual([vf], self.resets())
        self.assertEqual([other], self.functions_of(second))
        self.assert_set_aside(VF_CARD.address, False)
        self.hosts["host1"].fail(f"bus/pci/devices/{other}/reset", "ENOTTY")
        self._delete_server(second)
        self.assert_set_aside(VF_CARD.address, True)

    @pytest.mark.long
    def test_the_source_of_a_move_is_reset_when_it_is_left(self) -> None:
        self.power_off_to_move()
        for name in ("host1", "host2"):
            self.start_host(*harness.GPU_CARDS, name=name)
        server = self.boot(harness.whole_gpu_group("_A"), host="host1")
        self._migrate_server(server)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertEqual([], self.resets("host1"))
        self.be_on("host1")
        self._confirm_resize(server)
        self.assertEqual([harness.GPU], self.resets("host1"))
        self.assertEqual([], self.resets("host2"))
        functions: list[Any] = self.functions_of(server, "host2")
        self.assertEqual([harness.GPU, harness.GPU_AUDIO], sorted(functions))

    def end_in_reset(self, server: Any) -> None:
        """End nova-compute during the reset after a server.

        Its thread blocks until the test is over.
        """
        reached, ended = threading.Event(), threading.Event()

        def block(*_: Any) -> int:
            reached.set()
            ended.wait(240)
            raise SystemExit

        patch = fixtures.MockPatchObject(privileged, "reset_function", block)
        instance = objects.Instance.get_by_uuid(
            self.context,
            server["id"],
            expected_attrs=["flavor", "resources", "info_cache"],
        )
        instance.task_state = task_states.DELETING
        instance.save()
        # Not by the API: a service that stops waits for its calls.
        thread = threading.Thread(
            target=self.computes["host1"].manager._delete_instance,
            args=(
                self.context.elevated(),
                instance,
                objects.BlockDeviceMappingList(objects=[]),
            ),
            daemon=True,
        )
        self.addCleanup(thread.join, 60)
        self.addCleanup(ended.set)
        with patch:
            thread.start()
            assert reached.wait(120)

    @pytest.mark.long
    def test_the_service_ends_in_a_reset(self) -> None:
        """Nova deletes the server again, which resets its function."""
        self.start_host(*harness.GPU_CARDS)
        server = self.boot(harness.whole_gpu_group("_A"))
        self.end_in_reset(server)
        self.assertEqual([], self.resets())
        self.restart()
        self._wait_until_deleted(server)
        self.assertEqual([harness.GPU], self.resets())
        self.assert_set_aside(harness.GPU, False)
        self.assert_nothing_left()
