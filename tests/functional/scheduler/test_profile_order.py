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


@pytest.fixture
def world(cloud: scheduling.Cloud, scheduler: scheduling.Scheduler) -> World:
    return World(cloud, scheduler)


def test_no_later_choice_is_taken_while_an_earlier_one_fits(
    world: World,
) -> None:
    """And one that fits first costs the queries of a plain flavor."""
    chooser = random.Random(41)  # noqa: S311
    taken = []
    for _ in range(examples(100)):
        servers = [
            world.boot(scheduled.vgpus(chooser.choice(LOADS)))
            for _ in range(chooser.randrange(2, 9))
        ]
        choices = chooser.sample(CHOICES, chooser.randrange(2, 5))
        plain, costs = [], []
        for name in choices:
            world.list_reads()
            plain.append(world.boot(scheduled.vgpus(name)))
            costs.append(len(world.list_reads()))
            world.delete(plain[-1])
        fitting = [
            n for n, server in zip(choices, plain, strict=True) if server
        ]
        server = world.boot(
            {
                **scheduled.vgpus(choices[0]),
                profile_order.KEY: ",".join(choices),
            }
        )
        reads = world.list_reads()
        queries = list(filter(_CANDIDATES.match, reads))
        assert bool(server) == bool(fitting), choices
        if server:
            model, units = world.find_profile(server)
            assert f"{fitting[0]}".startswith(f"{model}-")
            assert units == scheduled.charges(fitting[0])
            step = choices.index(fitting[0])
            taken.append(step)
            assert len(queries) == step + 1
            assert step or len(reads) == costs[0]
        world.delete(server, *servers)
    assert {0, 1} <= set(taken)


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
