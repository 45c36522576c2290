# SPDX-License-Identifier: Apache-2.0
"""nova-compute ends during a spawn, and is restarted.

The spawning thread blocks for ever, which to all others is its end. Nova
puts such a server into ERROR, and its user deletes it.
"""

import threading
from collections.abc import Iterator
from typing import Any

import fixtures
import pytest
from nova import objects
from nova.compute import build_results, vm_states

from nova_accel.host.execute import privileged
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import builds, harness, libvirtd

PATIENCE_S = 120


class Killed(builds.Builds):
    def block_first_call(
        self, owner: Any, name: str, is_before: bool
    ) -> tuple[fixtures.MockPatchObject, threading.Event]:
        """Return a patch that blocks the first caller of a function."""
        real = getattr(owner, name)
        reached, ended = threading.Event(), threading.Event()
        self.ended = ended

        def call(*arguments: Any) -> Any:
            is_first = not reached.is_set()
            result = None
            if not (is_first and is_before):
                result = real(*arguments)
            if is_first:
                reached.set()
                ended.wait()
                raise SystemExit
            return result

        return fixtures.MockPatchObject(owner, name, call), reached

    def kill(
        self, resources: dict[str, int], card: str, *boundary: Any
    ) -> objects.Instance:
        """Return a server whose spawn ended there; restart the service."""
        patch, reached = self.block_first_call(*boundary)
        instance = self.create_instance(resources, card)
        thread = threading.Thread(
            target=self.build, args=(instance, {}), daemon=True
        )
        # Before Nova's database and the kernel are gone.
        self.addCleanup(thread.join, PATIENCE_S)
        self.addCleanup(self.ended.set)
        with patch:
            thread.start()
            assert reached.wait(PATIENCE_S)
        self.restart()
        self.stub_services()
        failed = objects.Instance.get_by_uuid(
            self.context, instance.uuid, expected_attrs=["resources"]
        )
        self.assertEqual(vm_states.ERROR, failed.vm_state)
        return failed

    def list_boundaries(self, write: str) -> Iterator[tuple[Any, str, bool]]:
        """Yield the boundaries between the steps of a spawn."""
        yield privileged, write, True
        yield privileged, write, False
        yield libvirtd.Connection, "defineXML", False
        yield libvirtd.Domain, "createWithFlags", False

    def check_boundaries(
        self,
        resources: dict[str, int],
        card: str,
        write: str,
        extra_specs: dict[str, str],
        *cards: Any,
    ) -> None:
        self.prepare(extra_specs, *cards)
        for boundary in self.list_boundaries(write):
            self.check_boundary(resources, card, boundary)

    def check_boundary(
        self, resources: dict[str, int], card: str, boundary: Any
    ) -> None:
        first = self.kill(resources, card, *boundary)
        self.run_periodics()
        driver = self.manager.driver
        claims = driver._accel.claims()
        self.assertEqual(claims, driver._accel.claims_of(first.uuid))
        # It keeps its slot, and room for its device, until its delete.
        self.assertEqual(1, len(claims))
        partitions = self.list_partitions()
        self.assertLessEqual(partitions, {claim.handle for claim in claims})
        results: dict[str, str] = {}
        second = self.create_instance(resources, card)
        self.build(second, results)
        self.assertEqual(build_results.ACTIVE, results[second.uuid])
        self.assertEqual(len(partitions) + 1, len(self.list_partitions()))
        for instance in (first, second):
            self.delete(instance)
        self.assertEqual(frozenset(), self.list_partitions())
        self.run_periodics()
        self.assert_nothing_left()

    def test_mdev(self) -> None:
        self.check_boundaries(
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096},
            harness.T4,
            "create_mdev",
            harness.vgpu_group("_A", "4Q"),
            harness.TWO_T4[0],
        )

    @pytest.mark.long
    def test_typed_vf(self) -> None:
        self.check_boundaries(
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192},
            test_typed_vfs.L40S,
            "set_vgpu_type",
            test_typed_vfs.typed_group("8Q"),
            test_typed_vfs.CARD,
        )
