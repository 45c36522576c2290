# SPDX-License-Identifier: Apache-2.0
"""Start of nova-compute: invalid settings, failures, other services."""

import contextlib
import fcntl
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from nova import objects
from nova.compute import vm_states
from nova.tests.functional.api import client

from nova_accel.discovery import plugin
from nova_accel.model import names
from tests.functional.nova.support import (
    harness,
    libvirtd,
    operations,
    striking,
    technologies,
)
from virt_hooks import nova_driver
from virt_hooks.guest import libvirt_guest

STOCK = "libvirt.LibvirtDriver"


class Start(harness.AccelTestBase):
    def test_unknown_driver(self) -> None:
        stop = self.assertRaises(
            SystemExit, self.start_host, harness.TWO_T4[0], drivers=["mdve"]
        )
        self.assertEqual(1, stop.code)
        self.assertIn(
            "nova.conf [nova_accel] drivers = mdve: no such driver is"
            " installed; known are alveo, amd_mxgpu, dfl, intel_sriov, mdev,"
            " nvidia_mdev, nvidia_vfio, pci_passthrough, pci_vf, qat",
            self.stdlog.logger.output,
        )

    def test_malformed_device_spec(self) -> None:
        line = '{"adress": "0000:41:*"}'
        stop = self.assertRaises(
            SystemExit, self.start_host, harness.TWO_T4[0], device_spec=[line]
        )
        self.assertEqual(1, stop.code)
        self.assertIn(
            f"nova.conf [nova_accel] device_spec = {line}: unknown key"
            " 'adress'; use address",
            self.stdlog.logger.output,
        )

    def test_settings(self) -> None:
        self.start_host(
            *harness.TWO_T4,
            device_spec=[
                '{"address": "0000:3c:*", "use": "off"}',
                '{"vendor_id": "10de", "max_slots": 3}',
            ],
        )
        self.assertEqual({self.provider(harness.T4)}, set(self.providers()))
        self.assertEqual((3, 0), self.amounts(harness.T4)["VGPU"])

    @pytest.mark.long
    def test_slots_of_another_server(self) -> None:
        """A failed build or delete leaves them in Nova's database."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        failed = self.boot({})
        saved, record = (
            objects.Instance.get_by_uuid(
                self.context, booted["id"], expected_attrs=["resources"]
            )
            for booted in (server, failed)
        )
        record.resources = saved.resources
        for state, launched_at in (
            (vm_states.BUILDING, None),
            (vm_states.ERROR, record.launched_at),
        ):
            record.vm_state, record.launched_at = state, launched_at
            record.save()
            accel = self.restart().driver._accel
            self.assertEqual((), accel.claims_of(failed["id"]))
            self.assertEqual(1, len(accel.claims_of(server["id"])))

    def test_partial_files_of_a_killed_service_are_removed(self) -> None:
        self.start_host(harness.TWO_T4[0])
        paths = [
            Path(self.state_dir(), name, ".0123456789abcdef")
            for name in ("", "unreleased", "faulted", "bitstreams")
        ]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        half = paths[3].with_name("half-killed")
        half.touch()
        self.restart()
        remaining = [path for path in (*paths[:3], half) if path.exists()]
        self.assertEqual([], remaining)

    @pytest.mark.oldest
    def test_the_stock_driver_is_unchanged(self) -> None:
        """A host without accelerators is reported as by the stock driver."""
        self.flags(compute_driver=STOCK)
        stock = self.start_host(harness.TWO_T4[0], name="host1")
        self.assertEqual(
            "nova.virt.libvirt.driver", type(stock.driver).__module__
        )
        self.flags(compute_driver=self.COMPUTE_DRIVER)
        accelerated = self.start_host(name="host2")
        self.assertEqual(
            "virt_hooks.nova_driver", type(accelerated.driver).__module__
        )
        self.assertEqual({}, self.providers("host1"))
        self.assertEqual({}, self.providers("host2"))
        self.assertEqual([], self.hosts["host1"].writes())
        self.assertEqual(0, self.hosts["host1"].reads())
        roots = [self.compute_rp_uuids[n] for n in ("host1", "host2")]
        for read in (self._get_provider_inventory, self._get_provider_traits):
            first, second = map(read, roots)
            self.assertEqual(first, second)
        definitions = []
        for name in ("host1", "host2"):
            server = self.boot({}, host=name)
            text = self.domain(server, name).XMLDesc(0)
            definitions.append(
                text.replace(server["id"], "").replace(server["name"], "")
            )
        self.assertEqual(
            *(text.replace("00000002", "00000001") for text in definitions)
        )


class TwoServices(harness.AccelTestBase):
    """An old nova-compute in graceful shutdown, and its successor."""

    @contextlib.contextmanager
    def other_service(self) -> Iterator[None]:
        """Hold the lock of another nova-compute of the host."""
        path = Path(self.state_dir(), "nova-compute.lock")
        path.unlink(missing_ok=True)
        path.write_text("4711 another")
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def undo_spawn(self, server: Any) -> tuple[Any, Any]:
        """Undo the end of a spawn; return instance and resources."""
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["resources"]
        )
        resources, instance.resources = instance.resources, None
        instance.save()
        self.domain(server).destroy()
        self.domain(server).undefine()
        return instance, resources

    @pytest.mark.long
    def test_orphans_wait_for_the_other_service(self) -> None:
        self.start_host(harness.TWO_T4[0])
        active = self.boot(harness.vgpu_group("_A", "4Q"))
        unfinished = self.boot(harness.vgpu_group("_A", "4Q"))
        mdevs = set(self.hosts["host1"].mdevs())
        instance, resources = self.undo_spawn(unfinished)
        with self.other_service():
            self.restart()
            self.run_periodics()
            self.assertEqual(mdevs, set(self.hosts["host1"].mdevs()))
            self._reboot_server(active, hard=True)
            instance.resources = resources  # its spawn completes
            instance.save()
        self.run_periodics()
        self.assertEqual(mdevs, set(self.hosts["host1"].mdevs()))
        driver = self.computes["host1"].driver
        self.assertEqual(
            {active["id"], unfinished["id"]},
            {claim.consumer for claim in driver._accel.claims()},
        )
        self.assertIn("Another nova-compute", self.stdlog.logger.output)

    @pytest.mark.long
    def test_orphans_are_removed_after_the_other_service(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        mdevs = set(self.hosts["host1"].mdevs())
        self.undo_spawn(server)
        with self.other_service():
            self.restart()
            self.run_periodics()
            self.assertEqual(mdevs, set(self.hosts["host1"].mdevs()))
        self.run_periodics()
        self.assertEqual({}, self.hosts["host1"].mdevs())

    @pytest.mark.long
    def test_an_unclean_function_is_cleaned_for_a_server_that_comes(
        self,
    ) -> None:
        """A pass reads its slot from Nova's database before its spawn."""
        self.start_host(harness.GPU_CARDS[0])
        first = self.boot(harness.whole_gpu_group("_A"))
        functions = set(self.functions_of(first))
        with mock.patch.object(
            libvirt_guest, "is_holding", side_effect=libvirtd.failed("is away")
        ):
            self._delete_server(first)
        with self.other_service():
            driver = self.restart().driver
            self.assertFalse(driver._accel.is_alone)
            hooks = driver._hooks
            fetch = hooks.partitions.fetch_bitstreams

            def refresh_and_fetch(*arguments: Any, **words: Any) -> Any:
                hooks.passes.refresh()
                return fetch(*arguments, **words)

            hooks.partitions.fetch_bitstreams = refresh_and_fetch
            before = len(self.hosts["host1"].writes())
            second = self.boot(harness.whole_gpu_group("_A"))
        self.assertEqual(functions, set(self.functions_of(second)))
        wrote = self.hosts["host1"].writes()[before:]
        reset = {Path(w["path"]).parent.name for w in wrote}
        self.assertLessEqual(functions, reset)


class NotStarted(operations.OperationsTestBase):
    """The hooks can't be constructed: stock servers go on."""

    technology = technologies.MDEV

    @contextlib.contextmanager
    def broken_driver(self) -> Iterator[None]:
        """Let the package of a vendor driver fail when it is imported."""
        load = importlib.metadata.EntryPoint.load

        def fail(point: Any) -> Any:
            if point.group == plugin.GROUP and point.name == "qat":
                raise ImportError("No module named 'acme'")
            return load(point)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(importlib.metadata.EntryPoint, "load", fail)
            yield

    def live_stock(self) -> None:
        """Run operations on a server without accelerators."""
        server = self.boot({})
        self.reboot_hard(server)
        self.suspend(server)
        self.resume(server)
        self.rescue(server)
        self.unrescue(server)
        self.rebuild(server)
        self.run_periodics()
        self._delete_server(server)

    @pytest.mark.each_release
    def test_a_vendor_driver_that_can_not_be_imported(self) -> None:
        """Providers stay, reserved; servers with accelerators wait."""
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        doomed = self.boot(self.technology.small(self))
        before = self.stable_providers()
        mdevs = self.mdevs_of(server)
        with self.broken_driver():
            self.restart()
        self.run_periodics()
        log = self.messages()
        self.assertIn("nova-accel can't start", log)
        self.assertIn("No module named 'acme'", log)
        for card in (harness.T4, harness.T4_B):
            self.assertIn(names.FAULTED_TRAIT, self.traits(card))
            for total, reserved in self.amounts(card).values():
                self.assertEqual(total, reserved)
        self.assertEqual(before.keys(), self.providers().keys())
        self.live_stock()
        for word, body in (("suspend", None), ("reboot", {"type": "HARD"})):
            # In Nova's harness a cast is a call.
            with contextlib.suppress(client.OpenStackApiException):
                self.api.post_server_action(server["id"], {word: body})
            self._wait_for_server_parameter(
                server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None}
            )
        self.assertEqual(2, self.messages().count(f"{server['id']} is refus"))
        self.assertNotIn("Error updating resources", self.messages())
        self.assertEqual(mdevs, self.mdevs_of(server))
        self._delete_server(doomed)
        self.assertIn(mdevs[0], self.hosts["host1"].mdevs())

        self.restart()
        self.run_periodics()
        self.reboot_hard(server)
        self.assertEqual(mdevs, self.mdevs_of(server))
        self.assert_agreement("the repaired service", is_passed=True)
        self._delete_server(server)
        self.run_periodics()
        self.assert_nothing_left()
        for card in (harness.T4, harness.T4_B):
            self.assertNotIn(names.FAULTED_TRAIT, self.traits(card))
            self.assertEqual(0, self.amounts(card)["VGPU"][1])

    @pytest.mark.long
    def test_a_server_that_the_scheduler_sends_all_the_same(self) -> None:
        """Nova reschedules it: it never starts without its device."""
        self.start_hosts("host1")
        with self.broken_driver():
            self.restart()
        server = self.boot(self.technology.small(self), expected_state="ERROR")
        fault = self.api.get_server(server["id"])["fault"]["message"]
        self.assertNotIn("acme", fault)
        self._delete_server(server)

    def test_any_function_that_fails(self) -> None:
        """Each function that the constructor calls raises once."""
        self.start_hosts("host1")
        virtapi = self.computes["host1"].driver.virtapi
        functions = striking.all_functions()
        with striking.traced(functions) as called:
            self.assertTrue(nova_driver.AccelLibvirtDriver(virtapi).is_started)
        constructors = [name for name in called if name.endswith("__init__")]
        self.assertGreater(len(constructors), 20)
        outcomes = set()
        for name in sorted(called):
            with striking.struck([(name, functions[name])]):
                driver = nova_driver.AccelLibvirtDriver(virtapi)
                outcomes.add(driver.is_started)
        self.assertIn(False, outcomes)
