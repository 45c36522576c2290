# SPDX-License-Identifier: Apache-2.0
"""A later pass does releases that fail, or that Nova does not call."""

import contextlib
import pkgutil
import threading
from typing import Any

import pytest
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from oslo_messaging import exceptions as messaging

from tests.functional.nova.support import (
    harness,
    libvirtd,
    operations,
    releases,
    technologies,
)
from virt_hooks.guest import libvirt_guest

_VGPU = technologies.MDEV.small


class Releases(operations.OperationsTestBase):
    """Releases that a later pass does, with one technology."""

    __test__ = False
    technology: technologies.Technology
    CAST_AS_CALL = False

    def assert_released(self, host: str = "host1") -> None:
        self.run_periodics()
        self.assert_nothing_left(host)
        for uuid in self.providers(host):
            for record in self._get_provider_inventory(uuid).values():
                self.assertEqual(0, record["reserved"])

    def resets(self, host: str = "host1") -> list[str]:
        return [
            write["path"].split("/")[-2]
            for write in self.hosts[host].writes()
            if write["path"].endswith("/reset")
        ]

    def assert_clean(self, functions: set[str], since: int = 0) -> None:
        """Check that plain functions were reset since a server had them.

        :param since: how many resets there were while the server ran.
        """
        if self.technology is technologies.WHOLE:
            self.assertTrue(functions <= {*self.resets()[since:]})

    def lose_libvirt(self, times: int) -> None:
        """Let libvirt fail the query that a release begins with."""
        stock = libvirt_guest.is_holding
        failures = [times]

        def fail(*arguments: Any) -> bool:
            if failures[0]:
                failures[0] -= 1
                raise libvirtd.failed("broken pipe", "SYSTEM_ERROR")
            return stock(*arguments)

        self.stub_out("virt_hooks.guest.libvirt_guest.is_holding", fail)

    def test_a_release_that_libvirt_interrupts(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        functions = {*self.functions_of(server)}
        self.lose_libvirt(1)
        self._delete_server(server)
        claims = self.computes["host1"].driver._accel.claims()
        self.assertTrue(claims, "the release failed")
        self.assert_released()
        self.assert_clean(functions)

    @pytest.mark.long
    def test_a_pass_does_not_wait_for_a_card_at_work(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        self.lose_libvirt(1)
        self._delete_server(server)
        accel = self.computes["host1"].driver._accel
        claims = accel.claims()
        passes = threading.Thread(target=self.run_periodics, daemon=True)
        with accel._locks.hold({claim.provider for claim in claims}):
            passes.start()
            passes.join(30)
            self.assertFalse(passes.is_alive())
            self.assertEqual(claims, accel.claims())
        self.assert_released()

    @pytest.mark.long
    def test_delete_while_a_start_runs(self) -> None:
        """Nova does not serialise the two."""
        functions = self.delete_during_start(
            f"{libvirtd.__name__}.Domain.createWithFlags"
        )
        self.assertEqual([], self.connection().listAllDomains())
        self.assert_released()
        self.assert_clean(functions)

    @pytest.mark.long
    def test_delete_before_a_start_defines_the_guest(self) -> None:
        """The guest runs nevertheless, and ends outside Nova."""
        functions = self.delete_during_start(
            "nova.virt.libvirt.host.Host.write_instance_config"
        )
        count = len(self.resets())
        for domain in list(self.connection().listAllDomains()):
            domain.destroy()
            domain.undefine()
        self.assert_released()
        self.assert_clean(functions, since=count)

    def delete_during_start(self, where: str) -> set[str]:
        """Delete a server while its start waits; return its functions.

        :param where: the function before which the start waits.
        """
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        functions = {*self.functions_of(server)}
        self._stop_server(server)
        reached, deleted = threading.Event(), threading.Event()
        stock = pkgutil.resolve_name(where)

        def wait(*args: Any, **kwargs: Any) -> Any:
            reached.set()
            deleted.wait(30)
            return stock(*args, **kwargs)

        self.stub_out(where, wait)
        compute = self.computes["host1"].manager
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor", "resources"]
        )

        def start() -> None:
            # The server is gone: the start may fail.
            with contextlib.suppress(Exception):
                compute.driver.power_on(self.context, instance, [], {})

        starts = threading.Thread(target=start)
        starts.start()
        self.assertTrue(reached.wait(30))
        try:
            self._delete_server(server)
        finally:
            deleted.set()
            starts.join(30)
        return functions

    def connection(self) -> Any:
        return self.computes["host1"].driver._host.get_connection()

    @pytest.mark.long
    def test_evacuated_and_the_host_returns(self) -> None:
        self.start_hosts("host1", "host2")
        self.power_off_to_move()
        server = self.boot(self.technology.small(self), host="host1")
        functions = {*self.functions_of(server)}
        self.computes["host1"].stop()
        self.force_down(True)
        self.be_on("host2")
        self._evacuate_server(server, {"host": "host2"}, expected_host="host2")
        self.be_on("host1")
        self.restart()
        self.force_down(False)
        self.assert_released("host1")
        self.assert_clean(functions)

    @pytest.mark.long
    def test_confirming_a_resize_in_place_fails(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        self.power_off_to_move()
        server = self.boot(self.technology.small(self), host="host1")
        functions = {*self.functions_of(server)}
        self.resize(server, self.technology.other(self))
        self.stub_out(
            "nova.virt.libvirt.driver.LibvirtDriver._cleanup_resize", _busy
        )
        self.api.post_server_action(server["id"], {"confirmResize": None})
        self._wait_for_state_change(server, "ERROR")
        self.run_periodics()
        self.assert_no_leaks("a confirmation that failed")
        self.assert_clean(functions)
        self.api.delete_server(server["id"])
        # The harness takes a server in ERROR for one that is not deleted.
        self.until(lambda: self.assertEqual([], self.api.get_servers()))
        self.assert_released()

    @pytest.mark.long
    def test_reverting_a_resize_in_place_fails(self) -> None:
        """The old flavor has no accelerators, so no later change releases."""
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        self.power_off_to_move()
        server = self.boot({}, host="host1")
        self.resize(server, self.technology.small(self))
        functions = {*self.functions_of(server)}
        self.lose_libvirt(1)
        self._revert_resize(server)
        claims = self.computes["host1"].driver._accel.claims()
        self.assertTrue(claims, "the release failed")
        self.assert_released()
        self.assert_clean(functions)


def _busy(*_: Any, **__: Any) -> None:
    raise OSError(16, "Device or resource busy")


globals().update(
    technologies.matrix(
        Releases,
        technologies.WHOLE,
        also=(
            technologies.MDEV,
            technologies.TYPED_VF,
            technologies.PLAIN_VF,
            technologies.REGION,
        ),
    )
)


class OtherClaims(operations.OperationsTestBase):
    """Claims of mdevs that Nova and the library see differently."""

    technology = technologies.MDEV

    @pytest.mark.long
    @pytest.mark.skipif(
        not releases.is_on_threads(), reason="one release is enough"
    )
    def test_a_card_that_is_away_at_a_restart(self) -> None:
        self.start_hosts("host1")
        server = self.boot(_VGPU(self))
        (provider, _, slot) = self.slots(server)[0]
        (card,) = (
            c
            for c in (harness.T4, harness.T4_B)
            if self.provider(c) == provider
        )
        self._stop_server(server)
        self.hosts["host1"].unplug(card)
        self.restart()
        self.run_periodics()
        self.hosts["host1"].plug()
        self.run_periodics()
        claims = self.computes["host1"].driver._accel.claims()
        self.assertEqual(
            [(provider, slot)], [(c.provider, c.slot) for c in claims]
        )
        self._start_server(server)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_slot_of_an_unknown_guest_is_not_offered(self) -> None:
        """Deleted through the API while nova-compute was down."""
        self.start_hosts("host1")
        server = self.boot(_VGPU(self))
        (provider, name, slot) = self.slots(server)[0]
        self.computes["host1"].stop()
        self.force_down(True)
        self._delete_server(server)
        self.force_down(False)
        self.restart()
        tree = self.computes["host1"].driver.provider_tree
        offered = {
            resource.identifier
            for resource in tree.data(provider).resources[name]
        }
        self.assertNotIn(slot, offered)
        self.assertTrue(offered)

    @pytest.mark.long
    def test_a_resize_in_place_whose_end_is_not_saved(self) -> None:
        """Nova has deleted the allocations of the old flavor."""
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts("host1")
        self.power_off_to_move()
        server = self.boot(_VGPU(self), host="host1")
        save, save_migration = objects.Instance.save, objects.Migration.save

        def fail(instance: Any, *args: Any, **kwargs: Any) -> None:
            if instance.vm_state in ("resized", "error"):
                raise messaging.MessagingTimeout("no reply")
            save(instance, *args, **kwargs)

        def fail_migration(migration: Any) -> None:
            if migration.status == "error":
                raise messaging.MessagingTimeout("no reply")
            save_migration(migration)

        self.stub_out("nova.objects.Instance.save", fail)
        self.stub_out("nova.objects.Migration.save", fail_migration)
        with contextlib.suppress(client.OpenStackApiException):
            self.resize(server, {})
        self.assertEqual({}, self.allocations(server))
        self.assertTrue(self.computes["host1"].driver._accel.claims())
        self.run_periodics()
        self.assert_nothing_left()

    @pytest.mark.long
    def test_the_answer_to_the_last_save_of_a_spawn_is_lost(self) -> None:
        """Nova leaves the guest running: its device stays reserved."""
        self.start_hosts("host1")
        stock, failures = objects.Instance.save, [1]

        def save(instance: Any, *args: Any, **kwargs: Any) -> None:
            stock(instance, *args, **kwargs)
            if instance.vm_state == "active" and failures[0]:
                failures[0] -= 1
                raise messaging.MessagingTimeout("no answer")

        self.stub_out("nova.objects.Instance.save", save)
        server = self.boot(_VGPU(self), expected_state="ERROR")
        self.run_periodics()
        domains = self.computes["host1"].driver._host.get_connection()
        (guest,) = domains.listAllDomains()
        self.assertEqual(server["id"], guest.UUIDString())
        self.assertEqual({}, self.allocations(server))
        reserved = [
            sum(reserved for _, reserved in self.amounts(card).values())
            for card in (harness.T4, harness.T4_B)
        ]
        self.assertEqual([0, 4096 + 1], sorted(reserved))
        self.assertEqual(
            fakelibvirt.VIR_DOMAIN_RUNNING, guest.info()[0], "Nova's to end"
        )
