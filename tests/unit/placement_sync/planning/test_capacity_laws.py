# SPDX-License-Identifier: Apache-2.0
"""Servers of a plan start on the hosts, and one more does not.

The hosts are those of the judge of AcceleratorFilter: each server is claimed
with the code of nova-compute, and each refusal is tried with every candidate.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from random import Random

import hypothesis
import pytest
from hypothesis import strategies

from nova_accel.catalog import loader
from nova_accel.model import flavors, names, providers
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import (
    flavor_specs,
    offered_devices,
    room,
)
from placement_sync.planning import snapshot
from placement_sync.planning.capacity import capacity_plan, captured_hosts
from tests.support.scheduler import judged_hosts
from tests.support.scheduler.judged_placement import SERVER, Placement

pytestmark = pytest.mark.slow
TYPES = offered_devices.VgpuTypes(loader.load())
SEEDS = strategies.integers(min_value=0, max_value=1 << 32)
# Which of two equal GPU instances of an operator gets a partition depends on
# their handles, and of an mdev type the host drops the trait when it is full.
_UNKNOWN = ("CUSTOM_ACCELERATOR_PLACE_", "CUSTOM_ACCELERATOR_PROFILE_")


class Site:
    """Hosts of the judge, their Placement, and a plan's snapshot of it."""

    def __init__(self, seed: int, hosts: int = 3) -> None:
        self.chance = Random(seed)  # noqa: S311
        self.hosts = {
            host.root.uuid: host
            for host in (
                judged_hosts.Host.random(f"host{n}", self.chance)
                for n in range(hosts)
            )
        }
        self.placement = Placement()
        self.snapshot = snapshot.CloudSnapshot(TYPES)
        for host in self.hosts.values():
            self.placement.publish(host.tree())
            self.snapshot.add_host(captured_hosts.build_host(host.tree()))
        self.planner = capacity_plan.CapacityPlanner(self.snapshot)

    def draw(self, groups: int = 1) -> dict[str, str]:
        """Return extra specs of a request that a device may serve."""
        devices = [d for h in self.hosts.values() for d in h.devices]
        specs: dict[str, str] = {}
        for suffix in "ABC"[:groups]:
            device = self.chance.choice(devices)
            profile = self.chance.choice(device.profiles)
            traits = [profile.trait]
            if device.region is not None:
                traits = [
                    trait
                    for trait in device.traits
                    if trait.startswith(names.FUNCTION_PREFIX)
                ]
            specs |= {
                f"resources_{suffix}:{name}": str(amount)
                for name, amount in profile.charges.items()
            } | {f"trait_{suffix}:{trait}": "required" for trait in traits}
        packing = self.chance.choice(
            [p for p in flavors.Packing if p is not flavors.Packing.EXCLUSIVE]
        )
        policy = self.chance.choice(["none", "isolate"])
        return {
            **specs,
            "accelerator:packing": packing.value,
            "group_policy": policy,
        }

    def plan(
        self, specs: Mapping[str, str], count: int | None = None
    ) -> capacity_plan.RequestResult:
        """Plan servers, and start them on the hosts; return the result."""
        before = len(self.planner.placed)
        request = capacity_plan.CapacityRequest(
            name="servers",
            count=count,
            request=capacity_plan.PlacementRequest(
                choices=(simulation.SimulatedRequest(specs=specs),)
            ),
        )
        (result,) = self.planner.plan([request]).results
        groups = list_groups(specs)
        for server, choice in self.planner.placed[before:]:
            claimed = {
                **choice.candidate,
                "allocations": {
                    uuid: part
                    for uuid, part in choice.candidate["allocations"].items()
                    if uuid != choice.host
                },
            }
            assert self.placement.claim(server.uuid, claimed)
            host = self.hosts[choice.host]
            allocations = self.placement.allocations[server.uuid]
            assert host.start(server.uuid, groups, allocations) == ""
            self.placement.publish(host.tree())
        assert result.fits == len(self.planner.placed) - before
        return result

    def find_servable(self, specs: Mapping[str, str]) -> str:
        """Return a host that could start one more server, "" without one."""
        groups = list_groups(specs)
        is_isolated = specs["group_policy"] == flavor_specs.ISOLATE
        for root, listed in self.placement.candidates(groups).items():
            for candidate in listed:
                used = [
                    uuid
                    for suffix, (uuid,) in candidate["mappings"].items()
                    if suffix
                ]
                if is_isolated and len(set(used)) < len(used):
                    continue
                allocations = {
                    uuid: part["resources"]
                    for uuid, part in candidate["allocations"].items()
                    if part["resources"] != SERVER
                }
                host = self.hosts[root].copy()
                if not host.start("judge", groups, allocations):
                    return f"{host.name}: {candidate['mappings']}"
        return ""


def list_groups(specs: Mapping[str, str]) -> Sequence[flavors.RequestGroup]:
    return [group for group in flavors.parse_groups(specs) if group.suffix]


@hypothesis.given(seed=SEEDS)
def test_servers_of_a_plan_start_and_one_more_does_not(seed: int) -> None:
    site = Site(seed)
    for number, count in itertools.product(range(2), (2, None)):
        specs = site.draw(1 + number)
        result = site.plan(specs, count)
        if not (count and result.fits == count):
            assert site.find_servable(specs) == ""
            assert result.blocked


@hypothesis.given(seed=SEEDS)
def test_a_plan_of_one_profile_is_the_room_of_capacity_show(seed: int) -> None:
    site = Site(seed)
    for _ in range(3):
        specs = site.draw()
        most = room.count_room(
            flavor_specs.read(specs),
            site.snapshot.build_fleet().cloud,
            {},
            TYPES.geometry,
        )
        assert site.plan(specs, site.chance.randint(1, 3)).fits <= most
        most = room.count_room(
            flavor_specs.read(specs),
            site.snapshot.build_fleet().cloud,
            {},
            TYPES.geometry,
        )
        assert site.plan(specs).fits == most


@hypothesis.given(seed=SEEDS)
def test_planned_cards_are_what_their_hosts_publish(seed: int) -> None:
    site = Site(seed)
    for _ in range(4):
        site.plan(site.draw(site.chance.randint(1, 2)), 2)
    for uuid, host in site.hosts.items():
        planned = site.snapshot.hosts[uuid].devices
        for node in host.tree().nodes:
            device = planned[node.uuid]
            assert device.capacities == _with_used(
                providers.build_capacities(node.inventories), site, node.uuid
            )
            assert _list_certain(device.traits) == _list_certain(node.traits)


def _with_used(
    capacities: Mapping[str, providers.ClassCapacity], site: Site, uuid: str
) -> dict[str, providers.ClassCapacity]:
    return {
        name: dataclasses.replace(
            capacity, used=site.placement.used(uuid, name)
        )
        for name, capacity in capacities.items()
    }


def _list_certain(traits: frozenset[str]) -> set[str]:
    return {t for t in traits if not t.startswith(_UNKNOWN)} - {
        "CUSTOM_GPU_MTTY"
    }
