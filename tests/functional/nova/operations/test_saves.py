# SPDX-License-Identifier: Apache-2.0
"""Resizes whose new host can't save the server leave usable slots.

Nova's handlers of that error save the server, with what the failed save
was to store.
"""

from typing import Any
from unittest import mock

import pytest
from nova import objects
from nova.compute import manager
from oslo_db import exception as db_exception

from tests.functional.nova.operations import test_middle
from tests.functional.nova.support import harness

#: Servers of four GB that a card has room for; all its vGPUs have one size.
_ROOM = 4


class Saves(test_middle.Failing):
    """A server that is resized from four GB to eight."""

    def fail_resize(self, server: Any, at: int) -> bool:
        """Fail a save of the driver's part or before; see if there is one.

        :param at: number of the save, from 1.
        """
        count = 0
        stock_finish = manager.ComputeManager._finish_resize
        stock_save = objects.Instance.save

        def save(instance: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise db_exception.DBConnectionError
            stock_save(instance, *args, **kwargs)

        def finish(*arguments: Any, **words: Any) -> Any:
            with mock.patch.object(objects.Instance, "save", save):
                return stock_finish(*arguments, **words)

        flavor = self.flavor(harness.vgpu_group("_A", "8Q"))
        with mock.patch.object(
            manager.ComputeManager, "_finish_resize", finish
        ):
            self.api.post_server_action(
                server["id"], {"resize": {"flavorRef": flavor}}
            )
            self.until(lambda: self.assertIn(*self.list_end(server)))
        return count >= at

    def list_end(self, server: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return a server's state, and those that a resize ends in."""
        got = self.api.get_server(server["id"])
        ends = (("ERROR", None), ("VERIFY_RESIZE", None))
        return (got["status"], got["OS-EXT-STS:task_state"]), ends

    def check_each_save(self) -> None:
        """Fail each save; check that the old card then has room for others.

        The next pass releases the old slot.
        """
        at = 1
        while True:
            server = self.boot(harness.vgpu_group("_A", "4Q"), host="host1")
            if not self.fail_resize(server, at):
                break
            self.run_periodics()
            self.assert_no_leaks(f"save {at}")
            others = [
                self.boot(harness.vgpu_group("_A", "4Q"), host="host1")
                for _ in range(_ROOM)
            ]
            for each in (*others, server):
                self.api.delete_server(each["id"])
            self.until(lambda: self.assertEqual([], self.api.get_servers()))
            self.run_periodics()
            for host in self.hosts:
                self.assert_nothing_left(host)
            at += 1
        self.assertGreater(at, 1)

    @pytest.mark.long
    def test_to_another_host(self) -> None:
        for name in ("host1", "host2"):
            self.start_host(harness.TWO_T4[0], name=name)
        self.check_each_save()

    @pytest.mark.long
    def test_in_place(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        self.check_each_save()
