# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler starts the servers of a plan of capacity, where it says.

Placement and Nova's scheduler with the library's filter and weigher are real.
Servers are created until there is no valid host, and each host reports its
cards after each of them, as nova-compute does.
"""

import collections
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from nova import conf, exception
from nova.scheduler.client import report

from filters import accelerator_filter, accelerator_weigher
from filters.fit import request_mix
from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.model import flavors, names, providers
from placement_sync.client import cloud_client, rest
from placement_sync.fleet.devices import fleet_reader
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import offered_devices
from placement_sync.planning import snapshot
from placement_sync.planning.capacity import capacity_plan
from tests.functional.scheduler import scheduling
from tests.functional.sync.support import servers
from tests.support.examples import IS_WHOLE
from tests.support.scheduler import judged_hosts

scheduler = scheduling.scheduler

# vCPUs and MiB of each server (scheduling.make_spec) and host.
NEEDS = {"VCPU": 2, "MEMORY_MB": 64}
HOST = {"VCPU": 64, "MEMORY_MB": 65536}
TYPES = offered_devices.VgpuTypes(loader.load())
WEIGHERS = [
    "nova.scheduler.weights.cpu.CPUWeigher",
    "nova.scheduler.weights.ram.RAMWeigher",
    "filters.accelerator_weigher.AcceleratorWeigher",
]
_MODELS: tuple[tuple[str, model.Layout, tuple[str, ...]], ...] = (
    ("L40S", model.Layout.MIXED, ("4Q", "12Q", "24Q")),
    ("L40S", model.Layout.EQUAL, ("8Q", "16Q")),
    ("A100", model.Layout.MIG, ("1-5C", "2-10C", "3-20C")),
)


class Site:
    """Hosts that report to a real Placement."""

    def __init__(self, cloud: scheduling.Cloud, seed: int) -> None:
        self.cloud = cloud
        self.chance = random.Random(seed)  # noqa: S311
        self.created: set[str] = set()
        self.hosts: dict[str, judged_hosts.Host] = {}
        self.model, layout, self.sizes = _MODELS[seed % len(_MODELS)]
        for number in range(3):
            host = judged_hosts.Host(
                f"host{number}",
                [
                    judged_hosts.nvidia_card(
                        f"0000:{card + 65:02x}:00.0",
                        self.model,
                        layout,
                        self.chance,
                    )
                    for card in range(self.chance.randint(1, 3))
                ],
            )
            root, _ = cloud.add_host(host.name)
            assert root == host.root.uuid
            self.hosts[root] = host
            self.report(host)

    def report(self, host: judged_hosts.Host) -> None:
        """Write a host's inventories and traits to Placement."""
        for node in host.tree().nodes:
            path = f"/resource_providers/{node.uuid}"
            if node.uuid not in self.created:
                self.created.add(node.uuid)
                self.cloud.call(
                    "POST",
                    "/resource_providers",
                    {
                        "name": node.name,
                        "uuid": node.uuid,
                        "parent_provider_uuid": node.parent,
                    },
                )
            for name in node.inventories:
                if name.startswith(names.CUSTOM):
                    self.cloud.call("PUT", f"/resource_classes/{name}")
            for trait in node.traits:
                if trait.startswith(names.CUSTOM):
                    self.cloud.call("PUT", f"/traits/{trait}")
            for part, content in (
                ("inventories", providers.as_dicts(node.inventories)),
                ("traits", sorted(node.traits)),
            ):
                generation = self.cloud.call("GET", path)["generation"]
                self.cloud.call(
                    "PUT",
                    f"{path}/{part}",
                    {
                        part: content,
                        "resource_provider_generation": generation,
                    },
                )

    def start(self, server: str, specs: Mapping[str, str]) -> str:
        """Start a scheduled server on its host; return the host's name."""
        allocations = {
            uuid: part["resources"]
            for uuid, part in self.cloud.call("GET", f"/allocations/{server}")[
                "allocations"
            ].items()
        }
        (root,) = allocations.keys() & self.hosts.keys()
        del allocations[root]
        groups = [g for g in flavors.parse_groups(specs) if g.suffix]
        host = self.hosts[root]
        assert host.start(server, groups, allocations) == ""
        self.report(host)
        return host.name

    def draw(self) -> dict[str, str]:
        """Return the extra specs of one or two vGPUs."""
        sizes = self.chance.choices(
            self.sizes, k=self.chance.choice([1, 1, 2])
        )
        return scheduling.vgpus(*(f"{self.model}-{size}" for size in sizes))

    def plan(
        self, requests: Iterable[tuple[Mapping[str, str], int | None]]
    ) -> capacity_plan.CapacityPlan:
        """Return the plan on what Placement has now."""
        client = cloud_client.from_endpoint(
            self.cloud.endpoint, service=rest.PLACEMENT
        )
        planned = snapshot.CloudSnapshot(TYPES, fleet_reader.read(client))
        return capacity_plan.CapacityPlanner(planned).plan(
            capacity_plan.CapacityRequest(
                name=f"request {number}",
                count=count,
                request=capacity_plan.PlacementRequest(
                    choices=(
                        simulation.SimulatedRequest(specs=specs, needs=NEEDS),
                    )
                ),
            )
            for number, (specs, count) in enumerate(requests)
        )


class Hosts(scheduling.ListedHosts):
    """Hosts with the CPUs and memory that Placement has left."""

    def get_host_states_by_uuids(
        self, context: object, uuids: Iterable[str], spec: object
    ) -> Iterator[Any]:
        states = super().get_host_states_by_uuids(context, uuids, spec)
        # Nova takes the first of equal hosts, and a plan that of this order.
        for state in sorted(states, key=lambda state: str(state.host)):
            usages = self.cloud.call(
                "GET", f"/resource_providers/{state.uuid}/usages"
            )["usages"]
            state.vcpus_total = HOST["VCPU"]
            state.vcpus_used = usages["VCPU"]
            state.total_usable_ram_mb = HOST["MEMORY_MB"]
            state.free_ram_mb = HOST["MEMORY_MB"] - usages["MEMORY_MB"]
            yield state


@pytest.fixture
def cloud(
    placement: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> scheduling.Cloud:
    accelerator_filter.refusals.cache_clear()
    served = scheduling.Cloud(placement.url)
    client = report.SchedulerReportClient(served.client)
    monkeypatch.setattr(report, "PLACEMENTCLIENT", client)
    return served


@pytest.fixture
def boots(
    cloud: scheduling.Cloud, scheduler: scheduling.Scheduler
) -> scheduling.Scheduler:

    conf.CONF.set_override(
        "weight_classes", WEIGHERS, group="filter_scheduler"
    )
    request_mix.shared.cache_clear()
    request_mix.shared_shares.cache_clear()
    scheduler.host_manager = Hosts(cloud)
    assert isinstance(
        scheduler.host_manager.weighers[-1],
        accelerator_weigher.AcceleratorWeigher,
    )
    return scheduler


@pytest.mark.parametrize("seed", range(6 if IS_WHOLE else 1))
def test_servers_start_where_they_are_planned(
    cloud: scheduling.Cloud, boots: scheduling.Scheduler, seed: int
) -> None:
    site = Site(cloud, seed)
    requests = [(site.draw(), 2), (site.draw(), 3), (site.draw(), None)]
    plan = site.plan(requests)

    started: list[int] = []
    hosts: list[dict[str, int]] = []
    for specs, count in requests:
        number = 0
        by_host: collections.Counter[str] = collections.Counter()
        while count is None or number < count:
            try:
                (server,) = boots.boot(specs)
            except exception.NoValidHost:
                break
            by_host[site.start(server, specs)] += 1
            number += 1
        started.append(number)
        hosts.append(dict(by_host))

    assert [result.fits for result in plan.results] == started
    assert [dict(result.by_host) for result in plan.results] == hosts
    assert sum(started) > 4
    # Nothing has room any more, and the plan says so, too.
    after = site.plan(requests[-1:])
    assert after.results[0].fits == 0 and after.results[0].blocked
