# SPDX-License-Identifier: Apache-2.0
"""Moves and rebuilds of servers with attached profiles fail safely."""

from typing import Any
from unittest import mock

import pytest
from nova import exception
from nova.virt.libvirt import driver

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.operations import (
    test_middle,
)
from tests.functional.nova.support import harness, technologies

PROFILE = "T4-4Q"
FOUR = harness.vgpu_group("_A", "4Q")


def break_record(instance: Any) -> None:
    """Write an attachment record as a newer release would."""
    instance.system_metadata[f"{attachment.KEY_PREFIX}0"] = '{"version":99}'
    instance.save()


class FailingMoves(attaching.AttachingTestBase, test_middle.Failing):
    """Two hosts, and a server on the first."""

    technology = technologies.MDEV

    def boot_server(self, *hosts: str) -> Any:
        self.start_hosts("host1", "host2")
        return self.boot(FOUR, host="host1")

    def refused_by_nova(
        self, server: Any, body: Any, status: str = "ACTIVE"
    ) -> str:
        """Return the reason of a refusal after Nova's API has accepted."""
        self.api.post_server_action(server["id"], body)
        reason = ""

        def has_reason() -> None:
            nonlocal reason
            reason = self.reason(server)
            self.assertNotEqual("", reason)

        self.until(has_reason)
        self._wait_for_server_parameter(
            server, {"OS-EXT-STS:task_state": None, "status": status}
        )
        return reason

    @pytest.mark.long
    def test_evacuation(self) -> None:
        """The server keeps its record and its slots."""
        server = self.boot_server()
        self.attach(server, PROFILE)
        mdevs = sorted(self.mdevs_of(server))
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self.refuse_guests("host2")
        self.api.post_server_action(server["id"], {"evacuate": {}})
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_nothing_left("host2")
        self.heal_hosts()
        self.be_on("host1")
        self.restart("host1")
        self.force_down(False)
        self.recover(server)
        self.assertEqual(mdevs, sorted(self.mdevs_of(server)))
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)
        self.delete_and_check(server)

    @pytest.mark.long
    def test_rebuild_after_a_migration_that_was_refused(self) -> None:
        server = self.boot_server()
        self.attach(server, PROFILE)
        mdevs = sorted(self.mdevs_of(server))
        self.be_on("host1")
        reason = self.refused_by_nova(server, {"migrate": None})
        self.assertIn("openstack accel server detach", reason)
        self.rebuild(server)
        self.assertEqual(mdevs, sorted(self.mdevs_of(server)))
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_agreement("rebuild", is_passed=True)
        self.reboot_hard(server)
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)

    @pytest.mark.long
    def test_rebuild_after_a_migration_that_failed(self) -> None:
        """Without attachments the server keeps its devices."""
        server = self.boot_server()
        self.rebuild_after_failed_move(server, {"migrate": None})

    @pytest.mark.long
    def test_attach_after_a_migration_that_failed(self) -> None:
        """An attachment on the new host stays, in Nova's tracker too."""
        server = self.boot_server()
        self.refuse_guests("host2")
        self.fail_operation(server, "migrate")
        self.recover(server)
        self.attach(server, PROFILE)
        mdevs = sorted(self.mdevs_of(server, "host2"))
        self.run_periodics()
        slots = {(p, slot) for p, _, slot in self.slots(server)}
        self.assertEqual(2, len(slots))
        self.assertEqual(slots, self.assigned("host2"))
        self.rebuild(server)
        self.assertEqual(mdevs, sorted(self.mdevs_of(server, "host2")))
        self.assert_agreement("rebuild", False, "host2")
        self.detach(server)
        self.assert_agreement("detach", False, "host2")

    @pytest.mark.long
    def test_rebuild_after_a_resize_in_place_that_failed(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(FOUR, host="host1")
        flavor = self._create_flavor(
            memory_mb=256, disk=1, extra_spec=harness.vgpu_group("_A", "8Q")
        )
        body = {"resize": {"flavorRef": flavor}}
        self.rebuild_after_failed_move(server, body)

    def rebuild_after_failed_move(self, server: Any, body: Any) -> None:
        """Fail a move at its source, then rebuild: same mdevs as before."""
        mdevs = self.mdevs_of(server)

        def fail(*_: Any, **__: Any) -> None:
            raise exception.InstanceFaultRollback(
                exception.ResizeError(reason="no place for the disk")
            )

        self.be_on("host1")
        with mock.patch.object(
            driver.LibvirtDriver, "migrate_disk_and_power_off", fail
        ):
            reason = self.refused_by_nova(server, body)
        self.assertIn("no place for the disk", reason)
        self.rebuild(server)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.assert_agreement("rebuild", is_passed=True)

    @pytest.mark.long
    def test_a_record_that_can_not_be_read(self) -> None:
        """The server runs on; its delete releases everything."""
        server = self.boot_server()
        self.be_on("host1")
        break_record(self.instance(server))
        reason = self.refused_by_nova(server, {"migrate": None})
        self.assertIn("a newer nova-accel may have written it", reason)
        self.delete_and_check(server)


class TypedFunctions(attaching.AttachingTestBase):
    """Typed VFs of a server whose record is unreadable."""

    technology = technologies.TYPED_VF

    @pytest.mark.long
    def test_delete_with_a_record_that_can_not_be_read(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        break_record(self.instance(server))
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
