# SPDX-License-Identifier: Apache-2.0
"""The seam into nova-scheduler, as each release of Nova has it."""

from typing import Any

import fixtures
import pytest
from nova.scheduler import request_filter
from nova.scheduler.client import report

from filters import accelerator_filter, candidate_capture
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness


@pytest.mark.each_release
class Capture(scheduled.ScheduledTestBase):
    """Nova's answer is captured, and its claims are counted."""

    weighers = ("filters.accelerator_weigher.AcceleratorWeigher",)

    def record(self) -> list[str]:
        """Return a list of what the next requests will call, in order."""
        calls: list[str] = []

        def add_request(ctxt: Any, spec: Any) -> bool:
            calls.append("request filter")
            return False

        request_filter.ALL_REQUEST_FILTERS.append(add_request)
        for owner, name in (
            (candidate_capture, "store"),
            (accelerator_filter.AcceleratorFilter, "filter_all"),
        ):
            self.useFixture(
                fixtures.MockPatchObject(
                    owner, name, _recording(getattr(owner, name), calls)
                )
            )
        return calls

    @pytest.mark.oldest
    def test_the_answer_comes_between_request_filter_and_filter(self) -> None:
        self.start_host(*harness.TWO_T4)
        self.assertEqual(
            "",
            candidate_capture.find_difference(
                report.SchedulerReportClient.get_allocation_candidates
            ),
        )
        calls = self.record()
        for specs in (harness.vgpu_group("_A", "4Q"), {}):
            calls.clear()
            self.boot(specs)
            self.assertEqual(["request filter", "store"], calls[:2])
            self.assertEqual({"filter_all"}, set(calls[2:]))

    @pytest.mark.long
    def test_claims_of_a_request_are_counted(self) -> None:
        """Nova offers both servers the same card (its bug 1874664)."""
        self.start_host(*harness.TWO_T4)
        flavor = self._create_flavor(
            extra_spec=harness.vgpu_group("_A", "16Q"), memory_mb=256, vcpu=1
        )
        body = self._build_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        self.api.post_server({"server": {**body, "min_count": 2}})
        for server in self.api.get_servers():
            self._wait_for_state_change(server, "ACTIVE")
        for card in (harness.T4, harness.T4_B):
            self.assertEqual(1, self.usages(card)["VGPU"])


def _recording(stock: Any, calls: list[str]) -> Any:
    def record(*args: Any) -> Any:
        calls.append(stock.__name__)
        return stock(*args)

    return record
