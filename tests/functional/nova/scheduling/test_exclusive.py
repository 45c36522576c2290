# SPDX-License-Identifier: Apache-2.0
"""A server with a card to itself, in real services."""

from typing import Any

import pytest
from nova.tests import fixtures as nova_fixtures

from nova_accel import errors
from nova_accel.model import flavors
from placement_sync.fleet import compute_rpc
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")
HALF = harness.vgpu_group("_A", "8Q")
WHOLE = 16384
KEY = f"{flavors.NAMESPACE}packing"
ALONE = SMALL | {
    "resources_A:CUSTOM_GPU_MEMORY_MB": str(WHOLE),
    KEY: flavors.Packing.EXCLUSIVE.value,
}


class Exclusive(scheduled.ScheduledTestBase):
    def test_no_neighbour_while_the_server_exists(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(ALONE)
        (provider,) = self.allocations(server)
        self.assertEqual(1, len(self.mdevs_of(server)))
        self.restart()
        self.run_periodics()
        for neighbour in [self.boot(HALF) for _ in range(2)]:
            self.assertNotIn(provider, self.allocations(neighbour))
        self.boot(HALF, expected_state="ERROR")
        # A card with servers is no card to oneself.
        self.boot(ALONE, expected_state="ERROR")
        self._delete_server(server)
        self.assertIn(provider, self.allocations(self.boot(SMALL)))

    @pytest.mark.long
    def test_a_flavor_that_takes_a_part_gets_no_card(self) -> None:
        self.start_host(harness.TWO_T4[0])
        specs = SMALL | {KEY: flavors.Packing.EXCLUSIVE.value}
        self.boot(specs, expected_state="ERROR")
        self.assertIn(
            "packing exclusive needs the whole device, and the flavor takes"
            f" 4096 of {WHOLE} CUSTOM_GPU_MEMORY_MB",
            self.messages(),
        )

    @pytest.mark.long
    def test_no_profile_is_attached_beside_it(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.boot(ALONE)
        guest: Any = self.boot({})
        rpc = compute_rpc.ComputeRpc(())
        words = {"server": guest["id"], "profile": "T4-4Q"}
        with self.assertRaises(errors.ServiceError):
            rpc.call("host1", "attach", False, **words)
        self.assertEqual(
            WHOLE, self.usages(harness.T4)["CUSTOM_GPU_MEMORY_MB"]
        )

    @pytest.mark.long
    def test_quota_counts_the_whole_card(self) -> None:
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        keystone = self.useFixture(nova_fixtures.UnifiedLimitsFixture())
        keystone.create_registered_limit(
            resource_name="servers", default_limit=10
        )
        keystone.create_registered_limit(
            resource_name="class:CUSTOM_GPU_MEMORY_MB", default_limit=WHOLE
        )
        self.start_host(*harness.TWO_T4)
        self.boot(ALONE)
        self.assertRaisesRegex(Exception, "over limit", self.boot, SMALL)
