# SPDX-License-Identifier: Apache-2.0
"""Moves that fail in their middle."""

import contextlib
from typing import Any

import pytest
from nova.tests.functional.api import client

from nova_accel.host import drains
from tests.functional.nova import base, operations, technologies

pytestmark = pytest.mark.each_release

EIGHT = "mdev_supported_types/nvidia-233/create"


class Failures(operations.OperationsTestBase):
    technology = technologies.MDEV

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()

    def tried(self, server: Any, body: dict[str, Any]) -> None:
        """Ask for a move that fails; in the harness a cast is a call."""
        with contextlib.suppress(client.OpenStackApiException):
            self.api.post_server_action(server["id"], body)
        self._wait_for_state_change(server, "ERROR")

    def test_a_move_to_a_card_that_was_just_drained(self) -> None:
        self.start_hosts("host1", "host2")
        server = self.boot(base.vgpu_group("_A", "4Q"), host="host1")
        self.run_periodics()
        for card in (base.T4, base.T4_B):
            drains.Drains(self.state_dir("host2")).put(card, "a loud fan")
        self.tried(server, {"migrate": None})
        self.assertIn("is drained: a loud fan", self.reason(server))
        self.assertEqual({}, self.hosts["host2"].mdevs())

    def test_a_resize_in_place_of_which_the_new_part_fails(self) -> None:
        """Nova gives up what it had; a hard reboot tries the new part."""
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(base.vgpu_group("_A", "4Q"))
        for card in (base.T4, base.T4_B):
            self.hosts["host1"].fail(f"class/mdev_bus/{card}/{EIGHT}", "EIO")
        flavor = self.flavor(base.vgpu_group("_A", "8Q"))
        self.tried(server, {"resize": {"flavorRef": flavor}})
        self.assertIn("EIO (", self.reason(server))
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.hosts["host1"].heal()
        self._reboot_server(server, hard=True)
        # Nova itself remembers the old slot with the new allocation.
        self.assertEqual(
            set(self.mdevs_of(server)), set(self.hosts["host1"].mdevs())
        )
        self.assertEqual(1, len(self.hosts["host1"].mdevs()))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_a_host_that_was_restarted_while_a_server_is_rescued(
        self,
    ) -> None:
        """The kernel has forgotten the mdev; the guest's own XML has not."""
        self.start_hosts("host1")
        server = self.boot(base.vgpu_group("_A", "4Q"))
        (mdev,) = self.mdevs_of(server)
        self.rescue(server)
        self.hosts["host1"].reboot()
        self.restart()
        self.unrescue(server)
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self.assertEqual([mdev], self.mdevs_of(server))
        self._delete_server(server)
        self.assert_nothing_left()
