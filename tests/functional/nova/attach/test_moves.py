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
    """Let a newer release have written what is attached to a server."""
    instance.system_metadata[f"{attachment.KEY_PREFIX}0"] = '{"version":99}'
    instance.save()


class FailingMoves(attaching.AttachingTestBase, test_middle.Failing):
    """Two hosts, and a server on the first."""

    technology = technologies.MDEV

    def start_one(self) -> Any:
        self.start_hosts("host1", "host2")
        return self.boot(FOUR, host="host1")

    def refused_by_nova(
        self, server: Any, body: Any, status: str = "ACTIVE"
    ) -> str:
        """Let Nova refuse late; return why."""
        self.api.post_server_action(server["id"], body)
        told = ""

        def is_told() -> None:
            nonlocal told
            told = self.reason(server)
            self.assertNotEqual("", told)

        self.until(is_told)
        self._wait_for_server_parameter(
            server, {"OS-EXT-STS:task_state": None, "status": status}
        )
        return told

    def test_evacuation(self) -> None:
        """The server keeps its record, as it keeps its slots."""
        server = self.start_one()
        self.attach(server, PROFILE)
        held = sorted(self.mdevs_of(server))
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self.no_guest("host2")
        self.api.post_server_action(server["id"], {"evacuate": {}})
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_nothing_left("host2")
        self.mend()
        self.be_on("host1")
        self.restart("host1")
        self.force_down(False)
        self.brought_back(server)
        self.assertEqual(held, sorted(self.mdevs_of(server)))
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)
        self.deleted(server)

    def test_rebuild_after_a_migration_that_was_refused(self) -> None:
        server = self.start_one()
        self.attach(server, PROFILE)
        held = sorted(self.mdevs_of(server))
        self.be_on("host1")
        told = self.refused_by_nova(server, {"migrate": None})
        self.assertIn("nova-accel server detach", told)
        self.rebuild(server)
        self.assertEqual(held, sorted(self.mdevs_of(server)))
        self.assertEqual(1, len(self.attachments(server)))
        self.assert_agreement("rebuild", is_passed=True)
        self.reboot_hard(server)
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)

    def test_rebuild_after_a_migration_that_failed(self) -> None:
        """With nothing attached: it has what it holds where it is."""
        server = self.start_one()
        self.rebuilt_after_failed_move(server, {"migrate": None})

    def test_attach_after_a_migration_that_failed(self) -> None:
        """What was attached on the new host stays, in Nova's tracker too."""
        server = self.start_one()
        self.no_guest("host2")
        self.tried(server, "migrate")
        self.brought_back(server)
        self.attach(server, PROFILE)
        mdevs = sorted(self.mdevs_of(server, "host2"))
        self.run_periodics()
        held = {(p, slot) for p, _, slot in self.slots(server)}
        self.assertEqual(2, len(held))
        self.assertEqual(held, self.assigned("host2"))
        self.rebuild(server)
        self.assertEqual(mdevs, sorted(self.mdevs_of(server, "host2")))
        self.assert_agreement("rebuild", False, "host2")
        self.detach(server)
        self.assert_agreement("detach", False, "host2")

    def test_rebuild_after_a_resize_in_place_that_failed(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        server = self.boot(FOUR, host="host1")
        flavor = self._create_flavor(
            memory_mb=256, disk=1, extra_spec=harness.vgpu_group("_A", "8Q")
        )
        body = {"resize": {"flavorRef": flavor}}
        self.rebuilt_after_failed_move(server, body)

    def rebuilt_after_failed_move(self, server: Any, body: Any) -> None:
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
            told = self.refused_by_nova(server, body)
        self.assertIn("no place for the disk", told)
        self.rebuild(server)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.assert_agreement("rebuild", is_passed=True)

    @pytest.mark.long
    def test_a_record_that_can_not_be_read(self) -> None:
        """The server stays, and runs on; a delete gives all back."""
        server = self.start_one()
        self.be_on("host1")
        break_record(self.instance(server))
        told = self.refused_by_nova(server, {"migrate": None})
        self.assertIn("a newer nova-accel may have written it", told)
        self.deleted(server)

    @pytest.mark.long
    def test_offloading_of_one_that_is_shelved(self) -> None:
        """It can't be detached as it is: the reason says what comes first."""
        server = self.start_one()
        self.attach(server, PROFILE)
        self.be_on("host1")
        self.shelve(server)
        body = {"shelveOffload": None}
        told = self.refused_by_nova(server, body, "SHELVED")
        self.assertIn("unshelve it, then run `nova-accel server", told)
        self.unshelve(server)
        self.detach(server)
        self.assert_agreement("detach", is_passed=True)


class TypedFunctions(attaching.AttachingTestBase):
    """Functions whose type tells what was theirs."""

    technology = technologies.TYPED_VF

    @pytest.mark.long
    def test_delete_with_a_record_that_can_not_be_read(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        break_record(self.instance(server))
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
