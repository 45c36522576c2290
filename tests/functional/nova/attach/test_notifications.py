# SPDX-License-Identifier: Apache-2.0
"""Nova's notifier sends attachments and the marks of devices."""

from typing import Any

import pytest

from nova_accel.host.state import device_notes
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import technologies


class Notified(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def list_events(self) -> list[tuple[str, str, Any]]:
        """Return our notifications, and forget them all."""
        events = [
            (message.event_type, message.priority, message.payload)
            for message in self.notifier.notifications
            if message.event_type.startswith("accelerator.")
        ]
        self.notifier.reset()
        return events

    def test_attachments(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        self.attach(server, self.profile())
        start, end = self.list_events()
        self.assertEqual(("accelerator.attach.start", "INFO"), start[:2])
        self.assertEqual(("accelerator.attach.end", "INFO"), end[:2])
        self.assertEqual(server["id"], start[2]["instance_uuid"])
        self.assertEqual(server["tenant_id"], start[2]["tenant_id"])
        self.assertEqual("attached-1", end[2]["name"])
        self.assertIn(end[2]["partition"], self.mdevs_of(server))
        self.assertEqual(1, end[2]["resources"]["VGPU"])
        self.refused(server, "attach", profile="no such", bitstream="")
        _, error = self.list_events()
        self.assertEqual(("accelerator.attach.error", "ERROR"), error[:2])
        self.assertEqual(
            "the host can't provide the accelerators of the server",
            error[2]["reason"],
        )
        self.detach(server)
        start, finish = self.list_events()
        self.assertEqual("accelerator.detach.start", start[0])
        self.assertEqual("accelerator.detach.end", finish[0])
        for name in ("device", "partition", "profile", "resources"):
            self.assertEqual(end[2][name], finish[2][name])

    @pytest.mark.long
    def test_drained_devices(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        card = self.card_of(server)
        self.run_periodics()
        notes = device_notes.DrainNotes(self.state_dir("host1"))
        self.assertEqual([], self.list_events())
        notes.put(card, "a fan is loud")
        self.run_periodics()
        ((event, _, payload),) = self.list_events()
        self.assertEqual("accelerator.device.drained", event)
        self.assertEqual(
            (card, "a fan is loud", [server["id"]]),
            (payload["device"], payload["reason"], payload["instance_uuids"]),
        )
        notes.remove([card])
        self.run_periodics()
        ((event, _, _),) = self.list_events()
        self.assertEqual("accelerator.device.undrained", event)
        self.assertNotIn("not whitelisted", self.messages())
