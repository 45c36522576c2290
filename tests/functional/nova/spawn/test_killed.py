# SPDX-License-Identifier: Apache-2.0
"""nova-compute ends during a spawn, and is restarted.

Its thread stands still for ever, which for all others is its end. Nova
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
    def standing_still(
        self, owner: Any, name: str, is_before: bool
    ) -> tuple[fixtures.MockPatchObject, threading.Event]:
        """Return what lets the first caller of a function stand still."""
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
        self, resources: dict[str, int], card: str, *where: Any
    ) -> objects.Instance:
        """Return a server whose spawn ended there; restart the service."""
        patch, reached = self.standing_still(*where)
        instance = self.record(resources, card)
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
        self.stand_in()
        found = objects.Instance.get_by_uuid(
            self.context, instance.uuid, expected_attrs=["resources"]
        )
        self.assertEqual(vm_states.ERROR, found.vm_state)
        return found

    def places(self, write: str) -> Iterator[tuple[Any, str, bool]]:
        """Yield the boundaries between the steps of a spawn."""
        yield privileged, write, True
        yield privileged, write, False
        yield libvirtd.Connection, "defineXML", False
        yield libvirtd.Domain, "createWithFlags", False

    def look(
        self,
        resources: dict[str, int],
        card: str,
        write: str,
        extra_specs: dict[str, str],
        *cards: Any,
    ) -> None:
        self.be_ready(extra_specs, *cards)
        for where in self.places(write):
            self.look_at(resources, card, where)

    def look_at(
        self, resources: dict[str, int], card: str, where: Any
    ) -> None:
        first = self.kill(resources, card, *where)
        self.run_periodics()
        driver = self.manager.driver
        claims = driver._accel.claims()
        self.assertEqual(claims, driver._accel.claims_of(first.uuid))
        # It has its slot until it is deleted, and room for what it had not.
        self.assertEqual(1, len(claims))
        made = self.made()
        self.assertLessEqual(made, {claim.handle for claim in claims})
        results: dict[str, str] = {}
        second = self.record(resources, card)
        self.build(second, results)
        self.assertEqual(build_results.ACTIVE, results[second.uuid])
        self.assertEqual(len(made) + 1, len(self.made()))
        for instance in (first, second):
            self.delete(instance)
        self.assertEqual(frozenset(), self.made())
        self.run_periodics()
        self.assert_nothing_left()

    def test_mdev(self) -> None:
        self.look(
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096},
            harness.T4,
            "create_mdev",
            harness.vgpu_group("_A", "4Q"),
            harness.TWO_T4[0],
        )

    @pytest.mark.long
    def test_typed_vf(self) -> None:
        self.look(
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192},
            test_typed_vfs.L40S,
            "set_vgpu_type",
            test_typed_vfs.typed_group("8Q"),
            test_typed_vfs.CARD,
        )
