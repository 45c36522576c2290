# SPDX-License-Identifier: Apache-2.0
"""Placement gives a card to more servers than have room.

With its default retries it does so where several schedulers claim a card at
the same time.
"""

from typing import Any

import fixtures
import pytest
from nova.scheduler.client import report

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness

WHOLE = harness.vgpu_group("_A", "16Q")


class Overfull(scheduled.ScheduledTestBase):
    """Another server gets the card between choice and claim."""

    def setUp(self) -> None:
        super().setUp()
        self.host = ""
        stock = report.SchedulerReportClient.claim_resources

        def claim(*arguments: Any, **named: Any) -> Any:
            if self.host:
                return stock(*arguments, **named)
            (self.host,) = (
                host
                for host, root in self.compute_rp_uuids.items()
                if root in arguments[3]["allocations"]
            )
            self.first = self.boot(WHOLE, host=self.host)
            self.set_ratio(2.0)
            try:
                return stock(*arguments, **named)
            finally:
                self.set_ratio(1.0)

        self.useFixture(
            fixtures.MonkeyPatch(
                f"{report.__name__}.SchedulerReportClient.claim_resources",
                claim,
            )
        )

    def set_ratio(self, ratio: float) -> None:
        """Let Placement allocate the card of the first host so often."""
        card = self.provider(harness.T4, self.host)
        path = f"/resource_providers/{card}/inventories"

        def write() -> None:
            body = self.placement.get(path).body
            for record in body["inventories"].values():
                record["allocation_ratio"] = ratio
            self.assertEqual(200, self.placement.put(path, body).status)

        self.until(write)

    @pytest.mark.long
    def test_the_second_server_gets_the_next_host(self) -> None:
        for name in ("host1", "host2"):
            self.start_host(harness.TWO_T4[0], name=name)

        second = self.boot(WHOLE)

        other = {"host1": "host2", "host2": "host1"}[self.host]
        self.assertEqual(other, second["OS-EXT-SRV-ATTR:host"])
        for server, host in ((self.first, self.host), (second, other)):
            (mdev,) = self.mdevs_of(server, host)
            self.assertEqual({mdev}, {*self.hosts[host].mdevs()})
            self.assertEqual(1, self.usages(harness.T4, host)["VGPU"])
        self.assertIn("no room on its host", self.messages())
