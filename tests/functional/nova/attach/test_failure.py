# SPDX-License-Identifier: Apache-2.0
"""Nothing remains of an attachment that fails."""

import contextlib
import errno
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova import objects
from nova.scheduler.client import report

from nova_accel.host.execute import privileged
from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, libvirtd, technologies
from virt_hooks.attach import attach_allocations, attach_guest

PROFILE = "T4-4Q"


class FailingTestBase(attaching.AttachingTestBase):
    """A server with a vGPU, on a host that could give it another one."""

    technology = technologies.MDEV

    def boot_server(self) -> Any:
        self.start_hosts("host1")
        return self.boot(harness.vgpu_group("_A", "4Q"))

    def assert_as_before(self, server: Any, before: Any, what: str) -> None:
        self.assertEqual(before, self.collect_state(server))
        self.assert_agreement(what, is_passed=True)
        self.assertEqual(before, self.collect_state(server))

    @contextlib.contextmanager
    def refusing(self, method: str, flag: int) -> Iterator[None]:
        """Let libvirt refuse for the guest (1), or its definition (2)."""
        stock = getattr(libvirtd.Domain, method)

        def refuse(domain: Any, xml: str, flags: int) -> None:
            if flags & flag:
                raise libvirtd.failed("no, thank you")
            stock(domain, xml, flags)

        with mock.patch.object(libvirtd.Domain, method, refuse):
            yield


class Attaching(FailingTestBase):
    """Attachments that fail: nothing remains of them."""

    def refused_with(self, patch: Any, what: str, word: str) -> None:
        """Check that an attachment fails, and that nothing remains."""
        server = self.boot_server()
        before = self.collect_state(server)
        with patch:
            reason = self.refused(server, "attach", profile=PROFILE)
        self.assertIn(word, reason)
        self.assert_as_before(server, before, what)
        self.attach(server, PROFILE)
        self.assert_agreement("attach after all")

    @pytest.mark.long
    def test_placement_refuses(self) -> None:
        def refuse(_: Any, __: Any, ___: Any, **____: Any) -> Any:
            return mock.Mock(status_code=500, text="no database", json=dict)

        self.refused_with(
            mock.patch.object(report.SchedulerReportClient, "put", refuse),
            "PUT fails",
            "no database",
        )

    @pytest.mark.long
    def test_nova_has_no_slot(self) -> None:
        self.refused_with(
            mock.patch(
                "nova.compute.resource_tracker.ResourceTracker"
                "._claim_resources",
                return_value=None,
            ),
            "claim fails",
            "claimed no slot",
        )

    @pytest.mark.long
    def test_the_device_is_not_made(self) -> None:
        self.refused_with(
            mock.patch.object(privileged, "create_mdev", lambda *_: errno.EIO),
            "device fails",
            "EIO",
        )

    @pytest.mark.long
    def test_the_definition_is_not_changed(self) -> None:
        self.refused_with(
            self.refusing("attachDeviceFlags", 2),
            "definition fails",
            "libvirt says",
        )

    def test_the_guest_does_not_get_it(self) -> None:
        self.refused_with(
            self.refusing("attachDeviceFlags", 1),
            "guest fails",
            "libvirt says",
        )

    @pytest.mark.long
    def test_it_is_not_there_when_read_back(self) -> None:
        self.refused_with(
            mock.patch.object(attach_guest, "is_in_domain", lambda *_: False),
            "reading back fails",
            "after the attach",
        )

    def test_the_server_is_deleted_meanwhile(self) -> None:
        """The delete waits for the attachment, which gives up."""
        server = self.boot_server()
        stock = attach_guest.add

        # Here Nova's API waits until nova-compute has done it.
        deleting = threading.Thread(
            target=self.api.delete_server, args=(server["id"],)
        )

        def add(*arguments: Any) -> None:
            stock(*arguments)
            deleting.start()
            self.until(
                lambda: self.assertEqual(
                    "deleting", self.instance(server).task_state
                )
            )

        with mock.patch.object(attach_guest, "add", add):
            reason = self.refused(server, "attach", profile=PROFILE)
        self.assertIn("Nova is at work with it", reason)
        deleting.join()
        self._wait_until_deleted(server)
        self.assert_nothing_left()
        self.assertEqual(set(), self.assigned("host1"))

    # -- answers of nova-conductor that are lost ---------------------------

    @contextlib.contextmanager
    def losing(self, server: Any) -> Iterator[None]:
        """Lose the answer to the first save that changes a server's slots."""
        stock = objects.Instance.save
        before = self.slots(server)
        lost: list[str] = []

        def save(instance: Any, **words: Any) -> None:
            stock(instance, **words)
            if not lost and self.slots(server) != before:
                lost.append(instance.uuid)
                raise oslo_messaging.MessagingTimeout("no reply")

        with mock.patch.object(objects.Instance, "save", save):
            yield
        self.assertEqual([server["id"]], lost)

    def assert_tracked(self, *servers: Any) -> None:
        """Check that Nova's tracker has each server's slot, once."""
        slots = [slot for server in servers for slot in self.slots(server)]
        self.assertEqual(
            {(provider, name) for provider, _, name in slots},
            self.assigned("host1"),
        )
        self.assertEqual(len(slots), len(self.assigned("host1")))

    @pytest.mark.long
    def test_the_answer_to_the_slot_is_lost(self) -> None:
        """Its slot is released once: the next server keeps its own."""
        server = self.boot_server()
        before = self.slots(server)
        stock = attach_allocations.AttachAllocations.release_slots
        others: list[Any] = []

        def release(*arguments: Any) -> None:
            others.append(self.boot(harness.vgpu_group("_A", "4Q")))
            stock(*arguments)

        with (
            self.losing(server),
            mock.patch.object(
                attach_allocations.AttachAllocations, "release_slots", release
            ),
        ):
            reason = self.refused(server, "attach", profile=PROFILE)
        self.assertIn("no reply", reason)
        self.assertEqual(before, self.slots(server))
        self.assert_tracked(server, *others)
        self.assert_agreement("lost answer", is_passed=True)

    @pytest.mark.long
    def test_the_service_ends_while_a_complete_attachment_is_undone(
        self,
    ) -> None:
        """The last answer was lost: its record says that it is attached."""
        server = self.boot_server()
        before = self.collect_state(server)
        stock = objects.Instance.save
        lost: list[str] = []

        def save(instance: Any, **words: Any) -> None:
            stock(instance, **words)
            states = [record.state for record in self.attachments(server)]
            if not lost and states == [attachment.AttachmentState.ATTACHED]:
                lost.append(instance.uuid)
                raise oslo_messaging.MessagingTimeout("no reply")

        end = mock.Mock(side_effect=RuntimeError("the end"))
        with (
            mock.patch.object(objects.Instance, "save", save),
            mock.patch.object(attach_guest, "_remove_from_definition", end),
        ):
            self.refused(server, "attach", profile=PROFILE)
        end.assert_called_once()
        self.restart()
        self.run_periodics()
        self.assert_as_before(server, before, "the end of its undo")

    @pytest.mark.long
    def test_the_answer_to_the_release_is_lost(self) -> None:
        """A later pass gives back the rest."""
        server = self.boot_server()
        before = self.collect_state(server)
        self.attach(server, PROFILE)
        with self.losing(server):
            reason = self.refused(server, "detach", name="")
        self.assertIn("next periodic task", reason)
        self.run_periodics()
        self.assert_as_before(server, before, "lost answer")


class Detaching(FailingTestBase):
    """Detachments that fail: everything is as it was."""

    def start_attached(self) -> Any:
        server = self.boot_server()
        self.attach(server, PROFILE)
        return server

    def test_a_guest_that_does_not_let_go(self) -> None:
        server = self.start_attached()
        before = self.collect_state(server)
        domain = self.domain(server)
        domain.is_stubborn = True
        reason = self.refused(server, "detach", name="")
        self.assertIn("in 1 s", reason)
        self.assert_as_before(server, before, "guest keeps it")
        self.domain(server).is_stubborn = False
        self.detach(server)
        self.assert_agreement("detach after all", is_passed=True)

    @pytest.mark.long
    def test_a_definition_that_is_not_changed(self) -> None:
        server = self.start_attached()
        before = self.collect_state(server)
        with self.refusing("detachDeviceFlags", 2):
            self.refused(server, "detach", name="")
        self.assert_as_before(server, before, "definition keeps it")

    @pytest.mark.long
    def test_placement_fails_late(self) -> None:
        """The device is gone; the rest follows with the next pass."""
        server = self.boot_server()
        before = self.collect_state(server)
        self.attach(server, PROFILE)

        def refuse(_: Any, __: Any, ___: Any, **____: Any) -> Any:
            return mock.Mock(status_code=503, text="overloaded", json=dict)

        with mock.patch.object(report.SchedulerReportClient, "put", refuse):
            reason = self.refused(server, "detach", name="")
            self.assertIn("next periodic task", reason)
            busy = self.refused(server, "detach", name="")
        self.assertIn("Nova is at work with it", busy)
        self.run_periodics()
        self.assert_as_before(server, before, "the pass")
