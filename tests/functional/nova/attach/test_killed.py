# SPDX-License-Identifier: Apache-2.0
"""Attachments are recovered after nova-compute ended during them.

Whoever ends undoes nothing: what does is switched off here. Where Nova has
threads it is killed in earnest, see test_attach_crashes.
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
from virt_hooks.report import server_allocations
from virt_hooks.spawn import lifecycle

PROFILE = "T4-4Q"
# What each step is, and whether the attachment is whole once it is done.
COMING = (
    (hot_attach.HotAttachDriver, "_save_state", False),
    (server_allocations.ServerAllocations, "allocate", False),
    (server_allocations.ServerAllocations, "claim_slot", False),
    (lifecycle.Lifecycle, "ensure", False),
    (plug, "plug", True),
    (plug, "add", True),
)
# And whether it is still there.
GOING = (
    (hot_attach.HotAttachDriver, "_save_state", True),
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
        """Let the service end once a step is done."""
        real = getattr(owner, name)

        def end(*arguments: Any, **words: Any) -> None:
            real(*arguments, **words)
            raise RuntimeError(f"the end after {name}")

        def nothing(*_: Any) -> Any:
            return contextlib.nullcontext()

        taking_away = attach_recovery.AttachRecoveryDriver._remove_attachment
        with (
            mock.patch.object(owner, name, end),
            mock.patch.object(
                hot_attach.HotAttachDriver, "_removed_on_error", nothing
            ),
            mock.patch.object(
                hot_attach.HotAttachDriver, "_restored_on_error", nothing
            ),
            mock.patch.object(
                attach_recovery.AttachRecoveryDriver, "_publish_host"
            ),
        ):
            yield
        assert (
            attach_recovery.AttachRecoveryDriver._remove_attachment
            is taking_away
        )

    def end_in(
        self, server: Any, step: Any, method: str, **words: str
    ) -> None:
        """Let the service end in the middle, and start it again."""
        with self.ending(step[0], step[1]):
            with self.assertRaises(RuntimeError) as caught:
                self.ask(server, method, **words)
        self.assertIn(f"the end after {step[1]}", str(caught.exception))
        self.assertIsNotNone(self.instance(server).task_state)
        self.restart()
        self.run_periodics()
        self.assertIsNone(self.instance(server).task_state, step)
        self.assert_agreement(f"the end after {step[1]}", is_passed=True)

    def test_while_it_comes(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        before = self.everything(server)
        for step in COMING:
            self.end_in(server, step, "attach", profile=PROFILE)
            states = [each.state for each in self.attachments(server)]
            whole = [attachment.AttachmentState.ATTACHED] if step[2] else []
            self.assertEqual(whole, states, step)
            if whole:
                self.detach(server)
            self.assertEqual(before, self.everything(server), step)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_while_it_goes(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        before = self.everything(server)
        for step in GOING:
            self.attach(server, PROFILE)
            with_it = self.everything(server)
            self.end_in(server, step, "detach", name="")
            if step[2]:
                self.assertEqual(with_it, self.everything(server), step)
                self.detach(server)
            self.assertEqual(before, self.everything(server), step)
        self._delete_server(server)
        self.assert_nothing_left()
