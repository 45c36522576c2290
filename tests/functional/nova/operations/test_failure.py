# SPDX-License-Identifier: Apache-2.0
"""Failed moves leave nothing behind."""

from typing import Any
from unittest import mock

import pytest
from nova import exception
from nova.virt.libvirt import driver

from tests.functional.nova.support import harness, operations, technologies

EIGHT = "mdev_supported_types/nvidia-233/create"


class Failures(operations.OperationsTestBase):
    technology = technologies.MDEV
    # As they are: where they are calls, as in Nova's harness, a failure at
    # one end of a move fails the other end too.
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()

    def fail_move(self, server: Any, body: dict[str, Any]) -> None:
        """Ask for a move that fails."""
        self.api.post_server_action(server["id"], body)
        self._wait_for_state_change(server, "ERROR")

    @pytest.mark.long
    def test_a_resize_in_place_whose_new_partition_fails(self) -> None:
        """Nova drops the old slots; a hard reboot creates the partition.

        It has the old flavor's profile, because Nova restores that flavor.
        """
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        for card in (harness.T4, harness.T4_B):
            self.hosts["host1"].fail(f"class/mdev_bus/{card}/{EIGHT}", "EIO")
        flavor = self.flavor(harness.vgpu_group("_A", "8Q"))
        self.fail_move(server, {"resize": {"flavorRef": flavor}})
        self.assertIn("EIO (", self.messages())
        self.assertNotIn("EIO", self.reason(server))
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.hosts["host1"].heal()
        self._reboot_server(server, hard=True)
        self.assert_agreement("hard reboot", is_passed=True)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_resize_in_place_that_its_host_refuses(self) -> None:
        """The server has its old slot, which no other server gets."""
        self.flags(allow_resize_to_same_host=True)
        self.start_host(harness.TWO_T4[0], name="host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        mdevs = self.mdevs_of(server)
        larger = self._create_flavor(
            memory_mb=512, disk=1, extra_spec=harness.vgpu_group("_A", "4Q")
        )
        error = exception.InstanceFaultRollback(
            exception.ResizeError(reason="no place for the disk")
        )
        with mock.patch.object(
            driver.LibvirtDriver,
            "migrate_disk_and_power_off",
            side_effect=error,
        ):
            self.api.post_server_action(
                server["id"], {"resize": {"flavorRef": larger}}
            )
            self.until(lambda: self.assertTrue(self.reason(server)))
        self._wait_for_server_parameter(
            server, {"OS-EXT-STS:task_state": None, "status": "ACTIVE"}
        )
        self.run_periodics()
        for _ in range(3):
            self.boot(harness.vgpu_group("_A", "4Q"))
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.assert_agreement("three more servers", is_passed=True)

    @pytest.mark.long
    def test_a_host_that_was_restarted_while_a_server_is_rescued(
        self,
    ) -> None:
        """The kernel has forgotten the mdev; the guest's own XML has not."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        (mdev,) = self.mdevs_of(server)
        self.rescue(server)
        self.hosts["host1"].reboot()
        self.restart()
        self.unrescue(server)
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self.assertEqual([mdev], self.mdevs_of(server))
        self._delete_server(server)
        self.assert_nothing_left()
