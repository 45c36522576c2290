# SPDX-License-Identifier: Apache-2.0
"""Servers are deleted in each of their states."""

from unittest import mock

import pytest
from nova.compute import manager

from tests.functional.nova.support import operations, technologies
from tests.support import examples

#: Step to a state, and the state.
_STATES = (
    ("stop", "SHUTOFF"),
    ("pause", "PAUSED"),
    ("suspend", "SUSPENDED"),
    ("rescue", "RESCUE"),
    ("shelve", "SHELVED"),
    ("offload", "SHELVED_OFFLOADED"),
    ("resize_to_other", "VERIFY_RESIZE"),
    ("reset_state", "ERROR"),
)


class Deleted(operations.OperationsTestBase):
    """A server that is deleted as it is."""

    __test__ = False

    def test_deleted(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.power_off_to_move()
        self.start_hosts("host1")
        for step, state in examples.share(_STATES, least=3):
            server = self.boot(self.technology.small(self))
            getattr(self, step)(server)
            details = self.api.get_server(server["id"])
            self.assertEqual(state, details["status"])
            self._delete_server(server)
            self.assert_agreement(f"delete of {state}")
            self.assert_nothing_left()
        self.run_periodics()
        self.assert_agreement("the end")


class FailedDelete(operations.OperationsTestBase):
    """A server whose delete fails after Nova has freed its slot."""

    technology = technologies.WHOLE
    CAST_AS_CALL = False

    @pytest.mark.long
    def test_the_slot_has_another_server_in_error(self) -> None:
        """Nova's database has the slot twice when the service starts."""
        self.start_hosts("host1")
        deleted = self.boot(self.technology.small(self))
        (slot,) = self.slots(deleted)
        with mock.patch.object(
            manager.ComputeManager,
            "_delete_scheduler_instance_info",
            side_effect=OSError("no scheduler"),
        ):
            self.api.delete_server(deleted["id"])
            deleted = self._wait_for_state_change(deleted, "ERROR")
        servers = [
            self.boot(self.technology.small(self))
            for _ in self.technology.cards
        ]
        (owner,) = (s for s in servers if self.slots(s) == [slot])
        self.reset_state(owner)
        accel = self.restart().driver._accel
        self.run_periodics()
        self.assertEqual((), accel.claims_of(deleted["id"]))
        self.assertEqual(1, len(accel.claims_of(owner["id"])))
        self._delete_server(deleted)
        self.reboot_hard(owner)
        self.assert_agreement("delete and hard reboot")
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()


globals().update(
    technologies.matrix(Deleted, technologies.MDEV, also=(technologies.WHOLE,))
)
