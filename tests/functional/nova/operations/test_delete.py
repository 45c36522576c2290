# SPDX-License-Identifier: Apache-2.0
"""Servers are deleted in each of their states."""

from tests.functional.nova.support import operations, technologies


class Deleted(operations.OperationsTestBase):
    """A server that is deleted as it is."""

    __test__ = False

    def test_deleted(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.power_off_to_move()
        self.start_hosts("host1")
        for step, state in (
            ("stop", "SHUTOFF"),
            ("pause", "PAUSED"),
            ("suspend", "SUSPENDED"),
            ("rescue", "RESCUE"),
            ("shelve", "SHELVED"),
            ("offload", "SHELVED_OFFLOADED"),
            ("resize_to_other", "VERIFY_RESIZE"),
            ("reset_state", "ERROR"),
        ):
            server = self.boot(self.technology.small(self))
            getattr(self, step)(server)
            details = self.api.get_server(server["id"])
            self.assertEqual(state, details["status"])
            self._delete_server(server)
            self.assert_agreement(f"delete of {state}")
            self.assert_nothing_left()
        self.run_periodics()
        self.assert_agreement("the end")


globals().update(
    technologies.matrix(Deleted, technologies.MDEV, also=(technologies.WHOLE,))
)
