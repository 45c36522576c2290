# SPDX-License-Identifier: Apache-2.0
"""Failed suspends and resumes keep the devices."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from nova.tests.functional.api import client

from tests.functional.nova.support import (
    harness,
    libvirtd,
    operations,
    technologies,
)

BOTH = (
    harness.vgpu_group("_A", "4Q")
    | harness.whole_gpu_group("_B")
    | {"group_policy": "none"}
)


class Suspend(operations.OperationsTestBase):
    technology = technologies.MDEV

    def start(self, *cards: Any) -> Any:
        self.flags(device_detach_timeout=1, group="libvirt")
        self.start_host(*harness.TWO_T4, *cards)
        return self.boot(BOTH if cards else harness.vgpu_group("_A", "4Q"))

    def refused(self, server: Any, word: str, state: str) -> str:
        """Check that an operation is refused; return the logs."""
        body = {"createImage": {"name": "picture"}}.get(word)
        self.assertRaises(
            client.OpenStackApiException,
            self.api.post_server_action,
            server["id"],
            {word: body},
        )
        self._wait_for_state_change(server, state)
        self.assert_agreement(f"{word}, which is refused", is_passed=True)
        self.assertNotEqual("", self.reason(server))
        return self.messages()

    @pytest.mark.each_release
    def test_functions_in_one_slot_of_the_guest(self) -> None:
        server = self.start(*harness.GPU_CARDS)
        reason = self.refused(server, "suspend", "ACTIVE")
        self.assertIn("in one slot", reason)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_guest_that_does_not_let_go(self) -> None:
        """The guest gets back the device that it has released."""
        server = self.start(technologies.WHOLE.cards[0])
        domain = self.domain(server)
        (card,) = self.functions_of(server)
        stock = libvirtd.Domain.detachDeviceFlags

        def keep(guest: Any, xml: str, flags: int) -> None:
            guest.is_stubborn = "type='pci'" in xml or 'type="pci"' in xml
            stock(guest, xml, flags)

        self.stub_out(
            f"{libvirtd.__name__}.Domain.detachDeviceFlags",
            keep,
        )
        reason = self.refused(server, "suspend", "ACTIVE")
        self.assertIn(f"its guest did not release {card} in 1 s", reason)
        public = "its system did not release the accelerators in 1 s"
        self.assertIn(public, self.reason(server))
        self.assertEqual(2, len(domain.live))

    @pytest.mark.long
    def test_libvirt_fails_until_the_suspend_has_failed(self) -> None:
        """The guest lacks its device until a pass puts it back."""
        server = self.start()
        domain = self.domain(server)
        detach = libvirtd.Domain.detachDeviceFlags

        def lose_answer(guest: Any, xml: str, flags: int) -> None:
            detach(guest, xml, flags)
            raise libvirtd.failed("broken pipe", "SYSTEM_ERROR")

        def refuse(*_: Any, **__: Any) -> None:
            raise libvirtd.failed("broken pipe", "SYSTEM_ERROR")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(libvirtd.Domain, "detachDeviceFlags", lose_answer)
            patched.setattr(libvirtd.Domain, "attachDeviceFlags", refuse)
            self.assertRaises(
                client.OpenStackApiException,
                self.api.post_server_action,
                server["id"],
                {"suspend": None},
            )
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual([], domain.live)
        self.run_periodics()
        self.assertEqual(1, len(domain.live))
        self.assert_agreement("a suspend that failed", is_passed=True)

    @pytest.mark.long
    def test_a_guest_that_can_not_be_saved(self) -> None:
        server = self.start(technologies.WHOLE.cards[0])

        def refuse(_: Any, __: int) -> None:
            raise libvirtd.failed("no space left")

        self.stub_out(f"{libvirtd.__name__}.Domain.managedSave", refuse)
        reason = self.refused(server, "suspend", "ACTIVE")
        self.assertIn("no space left", reason)

    @pytest.mark.long
    def test_a_resume_that_can_not_attach_a_device(self) -> None:
        server = self.start(technologies.WHOLE.cards[0])
        self.suspend(server)
        stock = libvirtd.Domain.attachDeviceFlags

        def refuse(guest: Any, xml: str, flags: int) -> None:
            if "mdev" in xml:
                raise libvirtd.failed("no such group")
            stock(guest, xml, flags)

        self.stub_out(
            f"{libvirtd.__name__}.Domain.attachDeviceFlags",
            refuse,
        )
        reason = self.refused(server, "resume", "SUSPENDED")
        self.assertIn("no such group", reason)
        self.assertFalse(self.domain(server).isActive())
        self.stub_out(
            f"{libvirtd.__name__}.Domain.attachDeviceFlags",
            stock,
        )
        self.resume(server)
        self.assert_agreement("resume")

    @pytest.mark.long
    def test_a_host_that_rebooted_meanwhile(self) -> None:
        server = self.start()
        (mdev,) = self.mdevs_of(server)
        card = self.hosts["host1"].mdevs()[mdev]["parent"]
        self.suspend(server)
        self.hosts["host1"].reboot()
        self.hosts["host1"].unplug(card)
        self.restart()
        self.assertRaises(
            client.OpenStackApiException,
            self.api.post_server_action,
            server["id"],
            {"resume": None},
        )
        self._wait_for_state_change(server, "SUSPENDED")
        self.assertIn("this host has no device of that", self.messages())
        self.hosts["host1"].reboot()
        self.run_periodics()
        self.resume(server)
        self.assert_agreement("resume", is_passed=True)

    @pytest.mark.long
    def test_a_note_that_can_not_be_read_when_the_service_starts(
        self,
    ) -> None:
        """The function is in the server's domain: the guest gets it back."""
        server = self.start(technologies.WHOLE.cards[0])
        self.suspend(server)
        (note,) = Path(self.state_dir(), "unreleased").glob("*.json")
        text = note.read_text()
        note.write_text("{")
        self.restart()
        self.run_periodics()
        self.resume(server)
        self.assert_agreement("resume", is_passed=True)
        self.assertEqual(text.count(server["id"]), 1)
        self.assertIn(server["id"], note.read_text())
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_cold_snapshot_of_a_running_server(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        server = self.start(technologies.WHOLE.cards[0])
        self.snapshot(server)
        self.assert_agreement("snapshot")
        self.pause(server)
        # In the harness of an older Nova a cast is a call.
        with contextlib.suppress(client.OpenStackApiException):
            self.snapshot(server)
        self.assertIn("paused and can't release", self.stdlog.logger.output)
        self._wait_for_state_change(server, "PAUSED")
        self.assert_agreement("snapshot of a paused one")
        self._delete_server(server)
        self.assert_nothing_left()
