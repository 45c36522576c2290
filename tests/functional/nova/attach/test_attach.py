# SPDX-License-Identifier: Apache-2.0
"""An attached profile survives the operations on its server."""

from typing import Any

import pytest

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import technologies


class Life(attaching.AttachingTestBase):
    """A server that is given one more of what it has, and gives it back."""

    __test__ = False

    def start_one(self) -> Any:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        self.assert_agreement("boot")
        return server

    def handles(self, server: Any) -> list[str]:
        return sorted(self.mdevs_of(server) + self.functions_of(server))

    @pytest.mark.each_release
    def test_everything_in_its_life(self) -> None:
        server = self.start_one()
        before = self.everything(server)
        self.attach(server, self.profile())
        self.assert_agreement("attach", is_passed=True)
        (record,) = self.attachments(server)
        self.assertIs(attachment.AttachmentState.ATTACHED, record.state)
        held = self.handles(server)
        self.assertEqual(2, len(held))
        self.assertEqual(
            ["", "attached-1"], [name for name, _, _ in self.shown(server)]
        )
        self.assertEqual(
            {"in the guest"}, {state for _, _, state in self.shown(server)}
        )
        for step in (
            self.reboot_hard,
            self.reboot_soft,
            self.stop,
            self.start,
            self.suspend,
            self.resume,
            self.rescue,
            self.unrescue,
            self.rebuild,
            self.pause,
            self.unpause,
            self.shelve,
            self.unshelve,
        ):
            step(server)
            self.assert_agreement(step.__name__)
            if step not in (self.suspend,):
                self.assertEqual(held, self.handles(server), step.__name__)
        self.restart()
        self.run_periodics()
        self.assert_agreement("restart", is_passed=True)
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)
        self.assertEqual(before, self.everything(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_host_reboot_while_stopped_and_delete(self) -> None:
        server = self.start_one()
        self.stop(server)
        self.attach(server, self.profile())
        self.assert_agreement("attach while stopped", is_passed=True)
        held = self.handles(server)
        self.assertEqual(2, len(held))
        self.hosts["host1"].reboot()
        self.restart()
        self.start(server)
        self.assertEqual(held, self.handles(server))
        self.assert_agreement("start", is_passed=True)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left()


globals().update(
    technologies.matrix(
        Life,
        technologies.MDEV,
        also=(
            technologies.TYPED_VF,
            technologies.PLAIN_VF,
            technologies.WHOLE,
            technologies.REGION,
        ),
    )
)
