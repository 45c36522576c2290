# SPDX-License-Identifier: Apache-2.0
"""Accelerators under Nova's unified limits.

Keystone is a fixture of Nova's own tests here; the lab has the real one.
"""

from typing import Any

import fixtures
import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client

from nova_accel import errors
from placement_sync.fleet import compute_rpc
from tests.functional.nova.support import harness
from virt_hooks.attach import attach_allocations

SMALL = harness.vgpu_group("_A", "4Q")
MIB = 4096
ACCELERATORS = ["class:VGPU", "class:CUSTOM_GPU_MEMORY_MB"]


class Quota(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.keystone = self.useFixture(nova_fixtures.UnifiedLimitsFixture())
        self.register("servers", 10)

    def register(self, name: str, amount: int) -> None:
        self.keystone.create_registered_limit(
            resource_name=name, default_limit=amount
        )

    def set_strategy(self, strategy: str, *names: str) -> None:
        self.flags(
            group="quota",
            unified_limits_resource_strategy=strategy,
            unified_limits_resource_list=list(names),
        )

    def refusal(self, specs: dict[str, str]) -> str:
        """Return why a server of a flavor is forbidden."""
        raised: Any = self.assertRaises(
            client.OpenStackApiException, self.boot, specs
        )
        self.assertEqual(403, raised.response.status_code)
        return str(raised.response.json()["forbidden"]["message"])

    def describe_excess(
        self, name: str, limit: int, usage: int, delta: int
    ) -> str:
        return (
            f"Resource {name} is over limit of {limit} due to current usage"
            f" {usage} and delta {delta}"
        )

    def test_the_fourth_vgpu_is_refused_at_three(self) -> None:
        self.register("class:VGPU", 3)
        self.start_host(harness.TWO_T4[0])
        servers = [self.boot(SMALL) for _ in range(3)]
        expected = self.describe_excess("class:VGPU", 3, 3, 1)
        self.assertIn(expected, self.refusal(SMALL))
        # The limit does not apply to a server without accelerators.
        self.boot({})
        self._delete_server(servers[0])
        self.boot(SMALL)
        self.assertIn(expected, self.refusal(SMALL))

    def attach(self, server: Any) -> str:
        """Attach a profile; return why nova-compute refuses, or ""."""
        rpc = compute_rpc.ComputeRpc(())
        words = {"server": server["id"], "profile": "T4-4Q"}
        try:
            rpc.call("host1", "attach", False, **words)
        except errors.ServiceError as error:
            return str(error)
        return ""

    def test_a_hot_attach_is_refused_at_the_limit(self) -> None:
        self.register("class:VGPU", 2)
        self.register("class:CUSTOM_GPU_MEMORY_MB", 2 * MIB)
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        self.assertEqual("", self.attach(server))
        reason = self.attach(server)
        self.assertIn(self.describe_excess("class:VGPU", 2, 2, 1), reason)
        self.assertIn("class:CUSTOM_GPU_MEMORY_MB", reason)
        record = self.api.get_server(server["id"])
        self.assertEqual("ACTIVE", record["status"])
        self.assertIsNone(record["OS-EXT-STS:task_state"])

    @pytest.mark.long
    def test_two_hot_attaches_do_not_exceed_the_limit_together(self) -> None:
        self.register("class:VGPU", 3)
        self.register("class:CUSTOM_GPU_MEMORY_MB", 9 * MIB)
        self.start_host(harness.TWO_T4[0])
        first, second = self.boot(SMALL), self.boot(SMALL)
        before = self.allocations(first)
        stock = attach_allocations.AttachAllocations.try_allocate
        others = [second]
        refusals = []

        def allocate(*arguments: Any) -> bool:
            # The other one is checked and allocated in between.
            if others:
                refusals.append(self.attach(others.pop()))
            return stock(*arguments)

        self.useFixture(
            fixtures.MonkeyPatch(
                "virt_hooks.attach.attach_allocations.AttachAllocations"
                ".try_allocate",
                allocate,
            )
        )
        reason = self.attach(first)
        self.assertEqual([""], refusals)
        self.assertIn(self.describe_excess("class:VGPU", 3, 4, 0), reason)
        self.assertEqual(before, self.allocations(first))
        self.assertEqual(3, self.usages(harness.T4)["VGPU"])
        record = self.api.get_server(first["id"])
        self.assertIsNone(record["OS-EXT-STS:task_state"])
        self.assertEqual(
            [], [n for n, _, _ in self.slots(first)][1:], "no second slot"
        )

    @pytest.mark.long
    def test_limits_that_cant_be_read_refuse_a_hot_attach(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot({})
        error = ksa_exceptions.ConnectFailure("no route")
        self.keystone.mock_sdk_adapter.registered_limits.side_effect = error
        reason = self.attach(server)
        project = server["tenant_id"]
        self.assertIn(f"limits of project {project} can't be read", reason)
        self.assertIn("[oslo_limit] in nova.conf", reason)
        record = self.api.get_server(server["id"])
        self.assertIsNone(record["OS-EXT-STS:task_state"])

    @pytest.mark.long
    def test_framebuffer_is_counted_in_mib(self) -> None:
        name = "class:CUSTOM_GPU_MEMORY_MB"
        self.register(name, 3 * MIB)
        self.start_host(*harness.TWO_T4)
        self.boot(SMALL)
        # Of several groups the sum counts.
        two = {
            **SMALL,
            **harness.vgpu_group("_B", "8Q"),
            "group_policy": "none",
        }
        expected = self.describe_excess(name, 3 * MIB, MIB, 3 * MIB)
        self.assertIn(expected, self.refusal(two))
        self.boot(harness.vgpu_group("_A", "8Q"))
        self.assertIn(
            self.describe_excess(name, 3 * MIB, 3 * MIB, MIB),
            self.refusal(SMALL),
        )

    @pytest.mark.long
    def test_unregistered_limits(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.boot(SMALL)
        self.set_strategy("require", "servers", *ACCELERATORS)
        message = self.refusal(SMALL)
        self.assertIn(self.describe_excess("class:VGPU", 0, 1, 1), message)
        self.set_strategy("ignore", "class:VCPU", "class:MEMORY_MB")
        message = self.refusal(SMALL)
        self.assertIn(self.describe_excess("class:VGPU", 0, 1, 1), message)
        self.set_strategy(
            "ignore",
            *("class:VCPU", "class:MEMORY_MB", "class:DISK_GB"),
            *("server_metadata_items", "server_injected_files"),
            *ACCELERATORS,
        )
        self.boot(SMALL)
        self.register("class:VGPU", 0)
        self.assertIn(
            self.describe_excess("class:VGPU", 0, 2, 1), self.refusal(SMALL)
        )
