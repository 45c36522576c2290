# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter in a real scheduler, before real computes."""

from typing import Any

import fixtures
from nova.scheduler import request_filter

from tests.functional.nova import base


class Scheduler(base.AccelTestBase):
    def _setup_scheduler_service(self) -> Any:
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.scheduler.request_filter.ALL_REQUEST_FILTERS",
                list(request_filter.ALL_REQUEST_FILTERS),
            )
        )
        scheduler = base.CONF.filter_scheduler
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "filters.accelerator_filter.AcceleratorFilter",
            ],
            enabled_filters=[
                *scheduler.enabled_filters,
                "AcceleratorFilter",
            ],
            group="filter_scheduler",
        )
        return self.start_service("scheduler")

    def test_two_servers_at_once_on_two_cards(self) -> None:
        """Nova alone offers both the same card (its bug 1874664)."""
        self.start_host(*base.TWO_T4)
        flavor = self._create_flavor(
            extra_spec=base.vgpu_group("_A", "16Q"), memory_mb=256, vcpu=1
        )
        body = self._build_server(
            image_uuid=base.IMAGE, flavor_id=flavor, networks="none"
        )
        self.api.post_server({"server": {**body, "min_count": 2}})
        servers = [
            self._wait_for_state_change(server, "ACTIVE")
            for server in self.api.get_servers()
        ]
        self.assertEqual(2, len(servers))
        parents = {
            mdev["parent"] for mdev in self.hosts["host1"].mdevs().values()
        }
        self.assertEqual({base.T4, base.T4_B}, parents)
        for card in parents:
            self.assertEqual(1, self.usages(card)["VGPU"])

        refused = self.boot(
            base.vgpu_group("_A", "16Q"), expected_state="ERROR"
        )
        self.assertIn(
            base.vgpu_trait("16Q"), refused["fault"]["message"]
        )
        for server in (*servers, refused):
            self._delete_server(server)
        self.assert_nothing_left()
