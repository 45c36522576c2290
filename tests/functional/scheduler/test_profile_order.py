# SPDX-License-Identifier: Apache-2.0
"""Law of ordered profiles: the first choice that fits, at its own cost."""

import random
import re

import pytest
from nova import exception

from nova_accel.catalog import profile_order
from tests.functional.scheduler import scheduling
from tests.support.examples import examples
from tests.support.scheduler import scheduled

cloud = scheduling.cloud
scheduler = scheduling.scheduler
# Nova's own query, by its limit.
_CANDIDATES = re.compile("/allocation_candidates.*[?&]limit=1000&")
# Equal amounts on two models, and another amount.
CHOICES = ("L40S-24Q", "A40-24Q", "L40S-16Q", "A40-8Q")
LOADS = ("L40S-48Q", "L40S-24Q", "L40S-8Q", "A40-48Q", "A40-16Q", "A40-8Q")


class World:
    """Hosts of two models with random servers."""

    def __init__(
        self, cloud: scheduling.Cloud, scheduler: scheduling.Scheduler
    ) -> None:
        self.cloud, self.scheduler = cloud, scheduler
        self.models: dict[str, str] = {}
        for host, cards in {
            "host1": ("L40S", "L40S"),
            "host2": ("A40", "L40S"),
            "host3": ("A40",),
        }.items():
            cloud.add_host(host)
            for number, gpu in enumerate(cards):
                card = cloud.add_card(host, f"0000:4{number}:00.0", gpu=gpu)
                self.models[card] = gpu

    def boot(self, specs: dict[str, str]) -> str:
        """Return the uuid of a server, "" if it has no host."""
        try:
            (server,) = self.scheduler.boot(specs)
        except exception.NoValidHost:
            return ""
        return server

    def delete(self, *servers: str) -> None:
        for server in filter(None, servers):
            self.cloud.call("DELETE", f"/allocations/{server}")

    def find_profile(self, server: str) -> tuple[str, dict[str, int]]:
        """Return the model and the units that a server has got."""
        body = self.cloud.call("GET", f"/allocations/{server}")
        (part,) = [
            (self.models[uuid], each["resources"])
            for uuid, each in body["allocations"].items()
            if uuid in self.models
        ]
        return part

    def list_reads(self) -> list[str]:
        """Return the paths that were read since the last call."""
        paths = list(self.cloud.read_paths)
        self.cloud.read_paths.clear()
        return paths

    def change(self, chooser: random.Random, servers: list[str]) -> None:
        """Delete some servers, and start others."""
        for _ in range(min(chooser.randrange(5), len(servers))):
            self.delete(servers.pop(chooser.randrange(len(servers))))
        for _ in range(chooser.randrange(1, 6)):
            if server := self.boot(scheduled.vgpus(chooser.choice(LOADS))):
                servers.append(server)

    def find_costs(self) -> dict[str, int]:
        """Return the queries for each plain flavor that fits."""
        costs = {}
        for name in CHOICES:
            self.list_reads()
            if server := self.boot(scheduled.vgpus(name)):
                costs[name] = len(self.list_reads())
                self.delete(server)
        return costs

    def check(self, choices: list[str], costs: dict[str, int]) -> int:
        """Check which choice a server gets; return its number, or -1.

        :param costs: as of ``find_costs``.
        """
        fitting = [n for n, name in enumerate(choices) if name in costs]
        self.list_reads()
        server = self.boot(
            {
                **scheduled.vgpus(choices[0]),
                profile_order.KEY: ",".join(choices),
            }
        )
        reads = self.list_reads()
        assert bool(server) == bool(fitting), choices
        if not server:
            return -1
        step = fitting[0]
        model, units = self.find_profile(server)
        self.delete(server)
        assert choices[step].startswith(f"{model}-")
        assert units == scheduled.charges(choices[step])
        assert len(list(filter(_CANDIDATES.match, reads))) == step + 1
        assert step or len(reads) == costs[choices[0]]
        return step


@pytest.fixture
def world(cloud: scheduling.Cloud, scheduler: scheduling.Scheduler) -> World:
    return World(cloud, scheduler)


def test_no_later_choice_is_taken_while_an_earlier_one_fits(
    world: World,
) -> None:
    """And one that fits first costs the queries of a plain flavor.

    Each cloud is the one before with some other servers.
    """
    chooser = random.Random(41)  # noqa: S311
    taken: set[int] = set()
    servers: list[str] = []
    for _ in range(examples(100)):
        world.change(chooser, servers)
        costs = world.find_costs()
        for _ in range(4):
            choices = chooser.sample(CHOICES, chooser.randrange(2, 5))
            taken.add(world.check(choices, costs))
    assert {0, 1} <= taken


def test_all_servers_of_a_request_get_the_same_choice(world: World) -> None:
    specs = {
        **scheduled.vgpus("A40-48Q"),
        profile_order.KEY: "A40-48Q,L40S-48Q",
    }
    servers = world.scheduler.boot(specs, count=3)
    assert {world.find_profile(server)[0] for server in servers} == {"L40S"}


def test_a_type_that_no_host_ever_offered_is_skipped(world: World) -> None:
    """Placement refuses a query with a trait that it does not know."""
    specs = {
        **scheduled.vgpus("T4-4Q"),
        profile_order.KEY: "T4-4Q,H100-80C,A40-8Q",
    }
    server = world.boot(specs)
    assert world.find_profile(server)[0] == "A40"
    paths = [p for p in world.cloud.read_paths if "H100_80C" in p]
    assert [p.partition("?")[0] for p in paths] == ["/traits"]
