# SPDX-License-Identifier: Apache-2.0
"""A delete releases a server's function just before its guest starts.

Nova holds no lock of a server in most operations that start guests. Here the
delete comes where the guest is about to be defined: the guest then runs with
a function whose claim and note are gone.
"""

import contextlib
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.tests.functional.api import client

from tests.functional.nova.support import (
    libvirtd,
    operations,
    technologies,
)


class Overlap(operations.OperationsTestBase):
    technology = technologies.WHOLE

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()

    @contextlib.contextmanager
    def deleted_before_start(self, server: Any) -> Iterator[None]:
        """End the server as a delete does, before its guest is defined."""
        define = libvirtd.Connection.defineXML
        deletes: list[threading.Thread] = []

        def delete(host: str) -> None:
            instance = objects.Instance.get_by_uuid(
                self.context,
                server["id"],
                expected_attrs=["resources", "flavor", "migration_context"],
            )
            instance.task_state = task_states.DELETING
            driver = self.computes[host].driver
            driver.destroy(self.context, instance, [], {})

        def define_late(connection: Any, xml: str) -> Any:
            if server["id"] in xml and not deletes:
                thread = threading.Thread(
                    target=delete, args=(connection.hostname,)
                )
                deletes.append(thread)
                thread.start()
                thread.join()
            return define(connection, xml)

        self.stub_out(f"{libvirtd.__name__}.Connection.defineXML", define_late)
        yield
        self.stub_out(f"{libvirtd.__name__}.Connection.defineXML", define)
        self.assertEqual(1, len(deletes))

    def notes(self, host: str) -> list[str]:
        """Return the functions that have to be scrubbed."""
        place = Path(self.state_dir(host), "unreleased")
        files = sorted(path.stem for path in place.glob("*.json"))
        return [urllib.parse.unquote(name) for name in files]

    def check(
        self,
        operate: Callable[[Any], None],
        prepare: Callable[[Any], None] = lambda _: None,
        host: str = "host1",
    ) -> None:
        """Check that the function of the guest is not offered, nor lost."""
        self.start_hosts(*sorted({"host1", host}))
        server = self.boot(self.technology.small(self), host="host1")
        prepare(server)
        with (
            self.deleted_before_start(server),
            contextlib.suppress(client.OpenStackApiException, AssertionError),
        ):
            operate(server)
        domain = self.domain(server, host)
        self.assertTrue(domain.isActive())
        (card,) = self.functions_of(server, host)
        self.assertEqual([card], self.notes(host))
        accel = self.computes[host].driver._accel
        self.assertEqual(
            [card], [c.handle for c in accel.claims_of(server["id"])]
        )
        self.assertEqual({"PGPU": (1, 1)}, self.amounts(card, host))
        self.run_periodics()
        self.assertEqual([card], self.notes(host))
        instance = objects.Instance.get_by_uuid(self.context, server["id"])
        instance.task_state, instance.vm_state = None, vm_states.ACTIVE
        instance.save()
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual([], self.notes(host))
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(card, host))
        self.assert_nothing_left(host)

    def test_hard_reboot(self) -> None:
        self.check(self.reboot_hard)

    @pytest.mark.long
    def test_start(self) -> None:
        self.check(self.start, self.stop)

    @pytest.mark.long
    def test_rescue(self) -> None:
        self.check(self.rescue)

    @pytest.mark.long
    def test_unrescue(self) -> None:
        self.check(self.unrescue, self.rescue)

    @pytest.mark.long
    def test_resume(self) -> None:
        self.check(self.resume, self.suspend)

    @pytest.mark.long
    def test_rebuild(self) -> None:
        self.check(self.rebuild)

    @pytest.mark.long
    def test_unshelve(self) -> None:
        self.check(self.unshelve, self.offload)

    @pytest.mark.long
    def test_migration(self) -> None:
        self.check(self.migrate, host="host2")

    @pytest.mark.long
    def test_revert(self) -> None:
        self.start_hosts("host2")
        self.check(self.revert, self.migrate)

    @pytest.mark.long
    def test_spawn(self) -> None:
        """The server is new: its domain is the only one of the host."""
        self.start_hosts("host1")
        define = libvirtd.Connection.defineXML
        states: list[str] = []

        def define_late(connection: Any, xml: str) -> Any:
            if not states:
                states.append("")
                (instance,) = objects.InstanceList.get_by_host(
                    self.context, "host1", expected_attrs=["resources"]
                )
                instance.task_state = task_states.DELETING
                driver = self.computes["host1"].driver
                with contextlib.suppress(exception.NovaException):
                    driver.destroy(self.context, instance, [], {})
            return define(connection, xml)

        self.stub_out(f"{libvirtd.__name__}.Connection.defineXML", define_late)
        server = self.boot(self.technology.small(self), host="host1")
        (card,) = self.functions_of(server)
        self.assertEqual([card], self.notes("host1"))
        accel = self.computes["host1"].driver._accel
        self.assertEqual(1, len(accel.claims_of(server["id"])))
        self._delete_server(server)
        self.assert_nothing_left()
