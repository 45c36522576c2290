# SPDX-License-Identifier: Apache-2.0
"""Attachments are recovered after nova-compute ended during them.

The end of the process is simulated: undo steps are switched off. Where Nova
runs on threads, test_crashes kills the process instead.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, releases, technologies
from virt_hooks.attach import attach_recovery, hot_attach
from virt_hooks.guest import plug
from virt_hooks.operations import server_partitions
from virt_hooks.report import server_allocations
from virt_hooks.spawn import lifecycle

PROFILE = "T4-4Q"
# Each step, and whether the attachment is complete after it.
ATTACH_STEPS = (
    (hot_attach.HotAttach, "_save_state", False),
    (server_allocations.ServerAllocations, "allocate", False),
    (server_allocations.ServerAllocations, "claim_slot", False),
    (lifecycle.Lifecycle, "ensure", False),
    (plug, "plug", True),
    (plug, "add", True),
)
# Each step, and whether the attachment still exists after it.
DETACH_STEPS = (
    (hot_attach.HotAttach, "_save_state", True),
    (plug, "remove_from_guest", False),
    (plug, "remove_from_definition", False),
    (lifecycle.Lifecycle, "release", False),
    (server_allocations.ServerAllocations, "allocate", False),
    (server_allocations.ServerAllocations, "release_slots", False),
)


@pytest.mark.skipif(releases.is_on_threads(), reason="it can be killed")
class Killed(attaching.AttachingTestBase):
    technology = technologies.MDEV

    @contextlib.contextmanager
    def ending(self, owner: Any, name: str) -> Iterator[None]:
        """End the service after a step."""
        real = getattr(owner, name)

        def end(*arguments: Any, **words: Any) -> None:
            real(*arguments, **words)
            raise RuntimeError(f"the end after {name}")

        def nothing(*_: Any) -> Any:
            return contextlib.nullcontext()

        remove_attachment = attach_recovery.AttachRecovery._remove_attachment
        with (
            mock.patch.object(owner, name, end),
            mock.patch.object(
                attach_recovery.AttachRecovery, "removed_on_error", nothing
            ),
            mock.patch.object(
                hot_attach.HotAttach, "_restored_on_error", nothing
            ),
            mock.patch.object(server_partitions.ServerPartitions, "publish"),
        ):
            yield
        assert (
            attach_recovery.AttachRecovery._remove_attachment
            is remove_attachment
        )

    def end_in(
        self, server: Any, step: Any, method: str, **words: str
    ) -> None:
        """Let the service end in the middle, and start it again."""
        with self.ending(step[0], step[1]):
            with self.assertRaises(RuntimeError) as caught:
                self.call_rpc(server, method, **words)
        self.assertIn(f"the end after {step[1]}", str(caught.exception))
        self.assertIsNotNone(self.instance(server).task_state)
        self.restart()
        self.run_periodics()
        self.assertIsNone(self.instance(server).task_state, step)
        self.assert_agreement(f"the end after {step[1]}", is_passed=True)

    def test_end_during_attach(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        before = self.collect_state(server)
        for step in ATTACH_STEPS:
            self.end_in(server, step, "attach", profile=PROFILE)
            states = [record.state for record in self.attachments(server)]
            expected = [attachment.AttachmentState.ATTACHED] if step[2] else []
            self.assertEqual(expected, states, step)
            if expected:
                self.detach(server)
            self.assertEqual(before, self.collect_state(server), step)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_end_during_detach(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        before = self.collect_state(server)
        for step in DETACH_STEPS:
            self.attach(server, PROFILE)
            attached_state = self.collect_state(server)
            self.end_in(server, step, "detach", name="")
            if step[2]:
                self.assertEqual(
                    attached_state, self.collect_state(server), step
                )
                self.detach(server)
            self.assertEqual(before, self.collect_state(server), step)
        self._delete_server(server)
        self.assert_nothing_left()
