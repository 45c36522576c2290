# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter in a real scheduler, with real computes."""

from typing import Any

import pytest
from nova import objects

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.lab import fakehost


class Scheduler(scheduled.ScheduledTestBase):
    more_filters = ("NUMATopologyFilter",)

    def boot_many(self, specs: dict[str, str], count: int) -> list[Any]:
        """Return servers of one request, all of them active."""
        flavor = self._create_flavor(
            extra_spec=specs, memory_mb=256, vcpu=1, disk=1, ephemeral=0
        )
        body = self._build_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        self.api.post_server({"server": {**body, "min_count": count}})
        servers = [
            self._wait_for_state_change(server, "ACTIVE")
            for server in self.api.get_servers()
        ]
        self.assertEqual(count, len(servers))
        return servers

    def cells_of(self, server: Any) -> set[int]:
        """Return the host's cells that Nova gave to a guest."""
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["numa_topology"]
        )
        return {cell.id for cell in instance.numa_topology.cells}

    @pytest.mark.long
    def test_a_guest_s_card_is_on_its_numa_node(self) -> None:
        cards = (
            fakehost.NvidiaGpu(address=harness.T4, model="T4", numa_node=1),
            fakehost.NvidiaGpu(address=harness.T4_B, model="T4"),
        )
        self.start_host(*cards)
        nodes = {self.provider(c.address): c.numa_node for c in cards}
        specs = {
            **harness.vgpu_group("_A", "16Q"),
            "hw:numa_nodes": "1",
            "accelerator:numa_policy": "required",
        }

        servers = [self.boot(specs) for _ in cards]

        for server in servers:
            (provider,) = self.allocations(server)
            self.assertEqual({nodes[provider]}, self.cells_of(server))
        cells = set().union(*map(self.cells_of, servers))
        self.assertEqual({0, 1}, cells)
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_guest_away_from_the_only_card_is_refused(self) -> None:
        self.start_host(
            fakehost.NvidiaGpu(address=harness.T4, model="T4", numa_node=1)
        )
        specs = {**harness.vgpu_group("_A", "4Q"), "hw:numa_nodes": "1"}
        must = {**specs, "accelerator:numa_policy": "required"}

        near = self.boot(specs)
        (cell,) = self.cells_of(near)
        self._delete_server(near)

        # Nova takes the first of two equal cells.
        self.assertEqual(0, cell)
        self.boot(must, expected_state="ERROR")
        self.assert_nothing_left()

    @pytest.mark.each_release
    def test_servers_of_one_request_on_two_hosts(self) -> None:
        """Nova alone offers two the same card (its bug 1874664)."""
        self.start_host(*harness.TWO_T4)
        self.start_host(*harness.TWO_T4, name="host2")

        servers = self.boot_many(harness.vgpu_group("_A", "16Q"), 4)

        providers = [card for s in servers for card in self.allocations(s)]
        self.assertEqual(
            sorted(
                self.provider(card, host)
                for card in (harness.T4, harness.T4_B)
                for host in ("host1", "host2")
            ),
            sorted(providers),
        )
        for host in ("host1", "host2"):
            parents = {
                mdev["parent"] for mdev in self.hosts[host].mdevs().values()
            }
            self.assertEqual({harness.T4, harness.T4_B}, parents)
        refused = self.boot(
            harness.vgpu_group("_A", "16Q"), expected_state="ERROR"
        )
        self.assertIn(harness.vgpu_trait("16Q"), refused["fault"]["message"])
        for server in (*servers, refused):
            self._delete_server(server)
        for host in ("host1", "host2"):
            self.assert_nothing_left(host)
