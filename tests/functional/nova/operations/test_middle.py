# SPDX-License-Identifier: Apache-2.0
"""Operations that fail in the kernel or after it are undone.

Each server is then brought back by what Nova's users have, mostly a hard
reboot. Casts are casts here: where they are calls, as in Nova's harness,
the failure at one end of a move fails the other end too.
"""

from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova.compute import manager
from nova.db.main import api as db
from oslo_utils.fixture import uuidsentinel as uuids

from tests.functional.nova.support import (
    harness,
    libvirtd,
    operations,
    technologies,
)

_CREATE = "mdev_supported_types/nvidia-232/create"
_DOMAIN = f"{libvirtd.__name__}.Domain"


class Failing(operations.OperationsTestBase):
    """Hosts on which something is made to fail."""

    technology = technologies.MDEV
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()
        self._stock = {
            name: getattr(libvirtd.Domain, name)
            for name in (
                "createWithFlags",
                "destroy",
                "undefine",
                "undefineFlags",
            )
        }

    # -- what fails --------------------------------------------------------

    def no_mdev(self, host: str) -> None:
        """No mdev can be made on a host."""
        for card in (harness.T4, harness.T4_B):
            self.hosts[host].fail(f"class/mdev_bus/{card}/{_CREATE}", "EIO")

    def forgets(self, host: str) -> None:
        """A host has lost its mdevs, and none can be made."""
        self.hosts[host].reboot()
        self.no_mdev(host)

    def no_guest(self, host: str) -> None:
        """No guest can be started on a host."""
        self._refuse(host, "createWithFlags")

    def no_end(self, host: str) -> None:
        """No guest can be ended on a host."""
        self._refuse(host, "destroy")

    def no_undefining(self, host: str) -> None:
        """No domain can be removed from a host."""
        self._refuse(host, "undefine")
        self._refuse(host, "undefineFlags")

    def _refuse(self, host: str, name: str) -> None:
        connected = self.computes[host].driver._host.get_connection()
        stock = self._stock[name]

        def refuse(domain: Any, *flags: int) -> None:
            if domain._connection is connected:
                raise libvirtd.failed("qemu ended unexpectedly")
            stock(domain, *flags)

        self.stub_out(f"{_DOMAIN}.{name}", refuse)

    def mend(self) -> None:
        for host in self.hosts.values():
            host.heal()
        for name, stock in self._stock.items():
            self.stub_out(f"{_DOMAIN}.{name}", stock)

    # -- what is done ------------------------------------------------------

    def booted(self, *hosts: str) -> Any:
        self.start_hosts(*(hosts or ("host1",)))
        return self.boot(self.technology.small(self), host="host1")

    def tried(
        self,
        server: Any,
        word: str,
        state: str = "ERROR",
        body: dict[str, str] | None = None,
    ) -> None:
        """Do what fails; afterwards nothing is held that is not booked."""
        self.api.post_server_action(server["id"], {word: body})
        self._wait_for_server_parameter(
            server, {"status": state, "OS-EXT-STS:task_state": None}
        )
        # What was left behind the host's next pass finds.
        self.run_periodics()
        self.assert_no_more(word, *self.computes)

    def not_begun(self, server: Any, word: str, body: Any = None) -> None:
        """Fail a move where Nova's new host would begin with it.

        The server is that host's by then.
        """

        def fail(*_: Any, **__: Any) -> None:
            raise oslo_messaging.MessagingTimeout("no reply")

        path = f"/os-migrations?instance_uuid={server['id']}"

        def has_failed() -> None:
            found = self.api.api_get(path).body["migrations"]
            self.assertEqual(["error"], [m["status"] for m in found])

        with mock.patch.object(
            manager.ComputeManager, "_finish_resize_helper", fail
        ):
            self.api.post_server_action(server["id"], {word: body})
            self.until(has_failed)
            self._wait_for_server_parameter(
                server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None}
            )
        self.run_periodics()

    def brought_back(self, server: Any) -> None:
        self.mend()
        host = self.host_of(server)
        self.be_on(host)
        self._reboot_server(server, hard=True)
        self.assert_agreement("hard reboot", False, host)
        self.run_periodics()
        self.assert_agreement("hard reboot and a pass", False, host)
        self.assert_no_more("hard reboot")

    def deleted(self, server: Any) -> None:
        self.mend()
        self.api.delete_server(server["id"])
        # One in ERROR is for a moment what Nova's harness takes for refused.
        self.until(
            lambda: self.assertNotIn(
                server["id"], [s["id"] for s in self.api.get_servers()]
            )
        )
        self.run_periodics()
        for host in self.hosts:
            self.assert_nothing_left(host)


class MiddleInPlace(Failing):
    """A server that stays on its host."""

    def test_rescue(self) -> None:
        server = self.booted()
        for fails in (self.no_guest, self.forgets):
            self.make_place(server)
            fails("host1")
            self.tried(server, "rescue")
            self.brought_back(server)
        self.deleted(server)

    def test_rebuild(self) -> None:
        """Nova gives up what is booked; it is booked again."""
        server = self.booted()
        booked = self.allocations(server)
        for fails in (self.no_guest, self.forgets, self.no_end):
            fails("host1")
            self.tried(server, "rebuild", body={"imageRef": harness.IMAGE})
            self.assertEqual(booked, self.allocations(server))
            self.brought_back(server)
        fails("host1")
        self.tried(server, "rebuild", body={"imageRef": harness.IMAGE})
        self.deleted(server)

    def test_restart_after_a_rebuild(self) -> None:
        """nova-compute ends before it has booked again."""
        server = self.booted()
        booked = self.allocations(server)
        self.no_guest("host1")
        self.api.post_server_action(
            server["id"], {"rebuild": {"imageRef": harness.IMAGE}}
        )
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.until(lambda: self.assertEqual({}, self.allocations(server)))
        self.restart()
        self.run_periodics()
        self.assertEqual(booked, self.allocations(server))
        self.brought_back(server)
        self.deleted(server)

    def test_a_rebuilt_server_whose_slot_another_one_has(self) -> None:
        """Nova frees the slots of a server whose delete fails in the end."""
        server = self.booted()
        driver = self.computes["host1"].driver
        driver._rebuilt_servers._allocations.put(
            server["id"], self.allocations(server)
        )
        self._delete_server_allocations(server["id"])
        held = driver._accel.slots_of(server["id"])
        driver._accel.store.transfer(server["id"], str(uuids.other), held)
        self.run_periodics()
        self.run_periodics()
        self.assertEqual({}, self.allocations(server))
        self.assertEqual({}, driver._rebuilt_servers._allocations.read())
        self.assertIn("are not restored", self.messages())
        self.deleted(server)

    def test_resize(self) -> None:
        """Nova keeps what it booked for the new size, and no more."""
        self.flags(allow_resize_to_same_host=True)
        server = self.booted()
        flavor = self.flavor(self.technology.other(self))
        self.not_begun(server, "resize", {"flavorRef": flavor})
        booked = self.allocations(server)
        self.reboot_hard(server)
        self.run_periodics()  # what it had is its migration's until then
        self.assert_agreement("hard reboot and a pass")
        self.assertEqual(booked, self.allocations(server))
        self.deleted(server)

    @pytest.mark.long
    def test_unshelve(self) -> None:
        server = self.booted()
        self.offload(server)
        for fails in (self.no_guest, self.no_mdev):
            fails("host1")
            self.tried(server, "unshelve", "SHELVED_OFFLOADED")
            self.assert_nothing_left()
            self.mend()
        self.unshelve(server)
        self.assert_agreement("unshelve", is_passed=True)
        self.deleted(server)


class MiddleOfMoves(Failing):
    """A server that goes to another host."""

    @pytest.mark.long
    def test_migrate_to_a_host_that_is_not_asked_again(self) -> None:
        """The source is restarted before it has looked."""
        server = self.booted("host1", "host2")
        self.no_mdev("host2")
        self.api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_state_change(server, "ERROR")
        self.be_on("host1")
        self.restart()
        self.run_periodics()
        self.assert_no_more("restart")
        self.deleted(server)

    def test_migrate_to_a_host_that_does_not_begin(self) -> None:
        """The server is active there, with the slots that it had."""
        server = self.booted("host1", "host2")
        self.not_begun(server, "migrate")
        self.assertEqual("host2", self.host_of(server))
        self.assertEqual({}, self.hosts["host2"].mdevs())
        self.brought_back(server)
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.deleted(server)

    def test_evacuate(self) -> None:
        server = self.booted("host1", "host2")
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        for fails in (self.no_guest, self.no_mdev):
            fails("host2")
            self.api.post_server_action(server["id"], {"evacuate": {}})
            self._wait_for_server_parameter(
                server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
            )
            self.assert_no_more("evacuate", "host2")
            self.assert_nothing_left("host2")
            self.mend()
        self.api.post_server_action(server["id"], {"evacuate": {}})
        self._wait_for_server_parameter(
            server, {"OS-EXT-SRV-ATTR:host": "host2", "status": "ACTIVE"}
        )
        self.assert_agreement("evacuate", False, "host2")
        self.be_on("host1")
        self.restart()
        self.force_down(False)
        self.assert_agreement("return", is_passed=True)
        self.deleted(server)

    def test_revert(self) -> None:
        server = self.booted("host1", "host2")
        for fails in (self.no_guest, self.forgets):
            self.migrate(server)
            self.be_on("host1")
            fails("host1")
            self.tried(server, "revertResize")
            self.assertEqual("host1", self.host_of(server))
            self.brought_back(server)
        self.deleted(server)


class LeftBehind(Failing):
    """A server whose old host is not told that its move failed."""

    __test__ = False

    def test_migrate(self) -> None:
        """What it had on its source is booked no more, so it is given back."""
        server = self.booted("host1", "host2")
        self.no_guest("host2")
        self.tried(server, "migrate")
        self.assertEqual("host2", self.host_of(server))
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.brought_back(server)
        self.deleted(server)

    def test_migrate_and_archive(self) -> None:
        """Nova's database knows nothing of it when its source looks."""
        server = self.booted("host1", "host2")
        self.no_guest("host2")
        self.api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.api.delete_server(server["id"])
        # In ERROR, which Nova's harness takes for a refusal.
        self.until(lambda: self.assertEqual([], self.api.get_servers()))
        db.archive_deleted_rows(context=self.context, max_rows=1000)
        self.run_periodics()
        self.assert_nothing_left("host1")

    def test_confirm(self) -> None:
        """The domain stays on the source, and has nothing any more."""
        server = self.booted("host1", "host2")
        self.migrate(server)
        self.be_on("host1")
        self.no_undefining("host1")
        self.tried(server, "confirmResize")
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.brought_back(server)
        self.deleted(server)


globals().update(
    technologies.matrix(
        LeftBehind, technologies.MDEV, also=(technologies.WHOLE,)
    )
)
