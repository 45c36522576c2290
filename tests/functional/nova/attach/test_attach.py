# SPDX-License-Identifier: Apache-2.0
"""An attached profile survives the operations on its server."""

from typing import Any

import pytest

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import technologies


class Life(attaching.AttachingTestBase):
    """A server to which a profile is attached, and detached at the end."""

    __test__ = False

    def boot_server(self) -> Any:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        self.assert_agreement("boot")
        return server

    def handles(self, server: Any) -> list[str]:
        return sorted(self.mdevs_of(server) + self.functions_of(server))

    @pytest.mark.oldest
    def test_all_operations(self) -> None:
        server = self.boot_server()
        before = self.collect_state(server)
        self.attach(server, self.profile())
        self.assert_agreement("attach", is_passed=True)
        (record,) = self.attachments(server)
        self.assertIs(attachment.AttachmentState.ATTACHED, record.state)
        handles = self.handles(server)
        self.assertEqual(2, len(handles))
        self.assertEqual(
            ["", "attached-1"],
            [name for name, _, _ in self.list_accelerators(server)],
        )
        self.assertEqual(
            {"in the guest"},
            {state for _, _, state in self.list_accelerators(server)},
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
                self.assertEqual(handles, self.handles(server), step.__name__)
        self.restart()
        self.run_periodics()
        self.assert_agreement("restart", is_passed=True)
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)
        self.assertEqual(before, self.collect_state(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_host_reboot_while_stopped_and_delete(self) -> None:
        server = self.boot_server()
        self.stop(server)
        self.attach(server, self.profile())
        self.assert_agreement("attach while stopped", is_passed=True)
        handles = self.handles(server)
        self.assertEqual(2, len(handles))
        self.hosts["host1"].reboot()
        self.restart()
        self.start(server)
        self.assertEqual(handles, self.handles(server))
        self.assert_agreement("start", is_passed=True)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left()


globals().update(
    technologies.matrix(
        Life,
        technologies.MDEV,
        also=technologies.ALL[1:],
    )
)
