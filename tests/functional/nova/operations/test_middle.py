# SPDX-License-Identifier: Apache-2.0
"""Operations that fail in the kernel or after it are undone.

Each server then recovers by an operation of Nova's users, mostly a hard
reboot. Casts are casts here: where they are calls, as in Nova's harness,
the failure at one end of a move fails the other end too.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import objects
from nova.compute import manager, rpcapi, task_states, vm_states
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

    # -- failures ----------------------------------------------------------

    def refuse_mdevs(self, host: str) -> None:
        """Let a host refuse to create mdevs."""
        for card in (harness.T4, harness.T4_B):
            self.hosts[host].fail(f"class/mdev_bus/{card}/{_CREATE}", "EIO")

    def lose_mdevs(self, host: str) -> None:
        """Remove a host's mdevs, and let it refuse to create others."""
        self.hosts[host].reboot()
        self.refuse_mdevs(host)

    def refuse_guests(self, host: str) -> None:
        """Let a host refuse to start guests."""
        self._refuse(host, "createWithFlags")

    def refuse_destroy(self, host: str) -> None:
        """Let a host refuse to end guests."""
        self._refuse(host, "destroy")

    def refuse_undefine(self, host: str) -> None:
        """Let a host refuse to undefine domains."""
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

    def heal_hosts(self) -> None:
        for host in self.hosts.values():
            host.heal()
        for name, stock in self._stock.items():
            self.stub_out(f"{_DOMAIN}.{name}", stock)

    # -- operations --------------------------------------------------------

    def fail_evacuation(self, server: Any) -> None:
        """Evacuate a server to host2, which fails, and heal that host."""
        self.api.post_server_action(server["id"], {"evacuate": {}})
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.assert_no_leaks("evacuate", "host2")
        self.assert_nothing_left("host2")
        self.heal_hosts()

    def evacuate_to_second(self, server: Any) -> None:
        self.api.post_server_action(server["id"], {"evacuate": {}})
        self._wait_for_server_parameter(
            server, {"OS-EXT-SRV-ATTR:host": "host2", "status": "ACTIVE"}
        )

    def boot_server(self, *hosts: str) -> Any:
        self.start_hosts(*(hosts or ("host1",)))
        return self.boot(self.technology.small(self), host="host1")

    def fail_operation(
        self,
        server: Any,
        word: str,
        state: str = "ERROR",
        body: dict[str, str] | None = None,
    ) -> None:
        """Do an operation that fails; check that it leaks no claim."""
        self.api.post_server_action(server["id"], {word: body})
        self._wait_for_server_parameter(
            server, {"status": state, "OS-EXT-STS:task_state": None}
        )
        # The host's next pass releases leftovers.
        self.run_periodics()
        self.assert_no_leaks(word, *self.computes)

    def fail_before_finish(
        self, server: Any, word: str, body: Any = None
    ) -> None:
        """Fail a move where Nova's new host would begin it.

        The server belongs to the new host by then.
        """

        def fail(*_: Any, **__: Any) -> None:
            raise oslo_messaging.MessagingTimeout("no reply")

        path = f"/os-migrations?instance_uuid={server['id']}"

        def has_failed() -> None:
            migrations = self.api.api_get(path).body["migrations"]
            self.assertEqual(["error"], [m["status"] for m in migrations])

        with mock.patch.object(
            manager.ComputeManager, "_finish_resize_helper", fail
        ):
            self.api.post_server_action(server["id"], {word: body})
            self.until(has_failed)
            self._wait_for_server_parameter(
                server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None}
            )
        self.run_periodics()

    def recover(self, server: Any) -> None:
        self.heal_hosts()
        host = self.host_of(server)
        self.be_on(host)
        self._reboot_server(server, hard=True)
        self.assert_agreement("hard reboot", False, host)
        self.run_periodics()
        self.assert_agreement("hard reboot and a pass", False, host)
        self.assert_no_leaks("hard reboot")

    def delete_and_check(self, server: Any) -> None:
        self.heal_hosts()
        self.api.delete_server(server["id"])
        # Nova's harness takes a server in ERROR for a refused delete.
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

    def lose_noted_allocations(self, server: Any) -> dict[str, Any]:
        """Remove allocations as a failed rebuild does; return them."""
        allocations = self.allocations(server)
        hooks = self.computes["host1"].driver._hooks
        hooks.rebuilt_servers._allocations.put(server["id"], allocations)
        self._delete_server_allocations(server["id"])
        return allocations

    @pytest.mark.long
    def test_rescue(self) -> None:
        server = self.boot_server()
        for fails in (self.refuse_guests, self.lose_mdevs):
            self.make_directory(server)
            fails("host1")
            self.fail_operation(server, "rescue")
            self.recover(server)
        self.delete_and_check(server)

    @pytest.mark.long
    def test_rebuild(self) -> None:
        """Nova removes the allocations; the library restores them."""
        server = self.boot_server()
        allocations = self.allocations(server)
        for fails in (
            self.refuse_guests,
            self.lose_mdevs,
            self.refuse_destroy,
        ):
            fails("host1")
            self.fail_operation(
                server, "rebuild", body={"imageRef": harness.IMAGE}
            )
            self.assertEqual(allocations, self.allocations(server))
            self.recover(server)
        fails("host1")
        self.fail_operation(
            server, "rebuild", body={"imageRef": harness.IMAGE}
        )
        self.delete_and_check(server)

    @pytest.mark.long
    def test_restart_after_a_rebuild(self) -> None:
        """nova-compute ends before it has restored the allocations."""
        server = self.boot_server()
        allocations = self.allocations(server)
        self.refuse_guests("host1")
        self.api.post_server_action(
            server["id"], {"rebuild": {"imageRef": harness.IMAGE}}
        )
        self._wait_for_server_parameter(
            server, {"status": "ERROR", "OS-EXT-STS:task_state": None}
        )
        self.until(lambda: self.assertEqual({}, self.allocations(server)))
        self.restart()
        self.run_periodics()
        self.assertEqual(allocations, self.allocations(server))
        self.recover(server)
        self.delete_and_check(server)

    @pytest.mark.long
    def test_allocations_that_can_not_be_restored_at_once(self) -> None:
        """They are reserved then, and no allocation of them has room."""
        self.technology = technologies.WHOLE
        server = self.boot_server()
        driver = self.computes["host1"].driver
        allocations = self.lose_noted_allocations(server)
        driver._hooks.missing_allocations._next_check = 0
        with mock.patch.object(
            driver.virtapi.reportclient, "claim_resources", return_value=False
        ):
            self.run_periodics()
        self.assertNotEqual({}, driver._accel.unallocated)
        self.assertEqual({}, self.allocations(server))
        self.run_periodics()
        self.assertEqual(allocations, self.allocations(server))
        self.run_periodics()
        self.assert_agreement("restored")
        self.delete_and_check(server)

    @pytest.mark.long
    def test_a_pass_while_a_rebuilt_server_is_offloaded(self) -> None:
        """Nova removes the allocations before the server has no host.

        In between it updates its provider tree, which takes seconds.
        """
        server = self.boot_server()
        allocations = self.lose_noted_allocations(server)
        for state, task, expected in (
            (vm_states.ACTIVE, task_states.SHELVING_OFFLOADING, {}),
            (vm_states.SHELVED_OFFLOADED, None, {}),
            (vm_states.ACTIVE, None, allocations),
        ):
            instance = objects.Instance.get_by_uuid(
                nova_context.get_admin_context(), server["id"]
            )
            instance.vm_state, instance.task_state = state, task
            instance.save()
            self.run_periodics()
            self.assertEqual(expected, self.allocations(server))
        self.delete_and_check(server)

    @pytest.mark.long
    def test_a_rebuilt_server_whose_slot_was_reassigned(self) -> None:
        """Nova frees the slots of a server whose delete fails in the end."""
        server = self.boot_server()
        driver = self.computes["host1"].driver
        self.lose_noted_allocations(server)
        slots = driver._accel.slots_of(server["id"])
        driver._accel.store.transfer(server["id"], str(uuids.other), slots)
        self.run_periodics()
        self.run_periodics()
        self.assertEqual({}, self.allocations(server))
        self.assertEqual({}, driver._hooks.rebuilt_servers._allocations.read())
        self.assertIn("are not restored", self.messages())
        self.delete_and_check(server)

    def test_resize(self) -> None:
        """Nova keeps only the allocations for the new size."""
        self.fail_resize_and_recover(self.reboot_hard)

    @pytest.mark.long
    def test_resize_and_rebuild(self) -> None:
        self.fail_resize_and_recover(self.rebuild)

    def fail_resize_and_recover(
        self, recover: Callable[[Any], object]
    ) -> None:
        """Fail a resize; check that the slot then follows the allocation."""
        self.flags(allow_resize_to_same_host=True)
        server = self.boot_server()
        flavor = self.flavor(self.technology.other(self))
        self.fail_before_finish(server, "resize", {"flavorRef": flavor})
        allocations = self.allocations(server)
        recover(server)
        self.run_periodics()  # until then its migration has the old slots
        self.assert_agreement(recover.__name__)
        self.assertEqual(allocations, self.allocations(server))
        self.delete_and_check(server)

    @pytest.mark.long
    def test_unshelve(self) -> None:
        server = self.boot_server()
        self.offload(server)
        for fails in (self.refuse_guests, self.refuse_mdevs):
            fails("host1")
            self.fail_operation(server, "unshelve", "SHELVED_OFFLOADED")
            self.assert_nothing_left()
            self.heal_hosts()
        self.unshelve(server)
        self.assert_agreement("unshelve", is_passed=True)
        self.delete_and_check(server)


class MiddleOfMoves(Failing):
    """A server that goes to another host."""

    @pytest.mark.long
    def test_migrate_fails_and_the_source_restarts(self) -> None:
        """The source is restarted before its next pass."""
        server = self.boot_server("host1", "host2")
        self.refuse_mdevs("host2")
        self.api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_state_change(server, "ERROR")
        self.be_on("host1")
        self.restart()
        self.run_periodics()
        self.assert_no_leaks("restart")
        self.delete_and_check(server)

    @pytest.mark.long
    def test_migrate_to_a_host_that_does_not_begin(self) -> None:
        """The server is active there, with the slots that it had."""
        server = self.boot_server("host1", "host2")
        self.fail_before_finish(server, "migrate")
        self.assertEqual("host2", self.host_of(server))
        self.assertEqual({}, self.hosts["host2"].mdevs())
        self.recover(server)
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.delete_and_check(server)

    @pytest.mark.long
    def test_evacuate(self) -> None:
        server = self.boot_server("host1", "host2")
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        for fails in (self.refuse_guests, self.refuse_mdevs):
            fails("host2")
            self.fail_evacuation(server)
        self.evacuate_to_second(server)
        self.assert_agreement("evacuate", False, "host2")
        self.be_on("host1")
        self.restart()
        self.force_down(False)
        self.assert_agreement("return", is_passed=True)
        self.delete_and_check(server)

    @pytest.mark.long
    def test_revert(self) -> None:
        server = self.boot_server("host1", "host2")
        for fails in (self.refuse_guests, self.lose_mdevs):
            self.migrate(server)
            self.be_on("host1")
            fails("host1")
            self.fail_operation(server, "revertResize")
            self.assertEqual("host1", self.host_of(server))
            self.recover(server)
        self.delete_and_check(server)

    @pytest.mark.long
    def test_the_source_restarts_in_a_revert(self) -> None:
        """Nova's message to the source waits while that is restarted."""
        server = self.boot_server("host1", "host2")
        mdevs = self.mdevs_of(server)
        self.migrate(server)
        self.be_on("host1")
        waiting: list[tuple[Any, ...]] = []
        stock = rpcapi.ComputeAPI.finish_revert_resize
        with mock.patch.object(
            rpcapi.ComputeAPI,
            "finish_revert_resize",
            lambda *message: waiting.append(message),
        ):
            self.api.post_server_action(server["id"], {"revertResize": None})
            self.until(lambda: self.assertEqual(1, len(waiting)))
            self.restart()
            self.run_periodics()
        accel = self.computes["host1"].driver._accel
        self.assertEqual(
            mdevs, [c.handle for c in accel.claims_of(server["id"])]
        )
        stock(*waiting[0])
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.assert_agreement("revert", is_passed=True)
        self.delete_and_check(server)


class LeftBehind(Failing):
    """A server whose old host gets no message that its move failed."""

    __test__ = False

    @pytest.mark.long
    def test_migrate_and_archive(self) -> None:
        """The server is archived before the next pass of its source."""
        server = self.boot_server("host1", "host2")
        self.refuse_guests("host2")
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

    @pytest.mark.long
    def test_confirm(self) -> None:
        """The domain stays on the source, without devices."""
        server = self.boot_server("host1", "host2")
        self.migrate(server)
        self.be_on("host1")
        self.refuse_undefine("host1")
        self.fail_operation(server, "confirmResize")
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.recover(server)
        self.delete_and_check(server)


globals().update(
    technologies.matrix(
        LeftBehind, technologies.MDEV, also=(technologies.WHOLE,)
    )
)
