# SPDX-License-Identifier: Apache-2.0
"""Law of ordered profiles: the first choice that fits, at its own cost."""

import collections
import random
import re

import pytest
from nova import exception

from nova_accel.catalog import profile_order
from tests.functional.scheduler import drawn_clouds, scheduling
from tests.support.examples import IS_WHOLE
from tests.support.scheduler import scheduled

scheduler = scheduling.scheduler
# Nova's own query, by its limit.
_CANDIDATES = re.compile("/allocation_candidates.*[?&]limit=1000&")
# Equal amounts on two models, and another amount.
CHOICES = ("L40S-24Q", "A40-24Q", "L40S-16Q", "A40-8Q", "A40-48Q")


class Requests:
    """Servers of one cloud, and what each has got and cost."""

    def __init__(
        self, cloud: scheduling.Cloud, scheduler: scheduling.Scheduler
    ) -> None:
        self.cloud, self.scheduler = cloud, scheduler

    def boot(self, specs: dict[str, str]) -> tuple[str, list[str]]:
        """Return the type that a server has got, and Nova's reads.

        The type is one of ``CHOICES``, "" without a host. The server is
        deleted again.
        """
        self.cloud.read_paths.clear()
        try:
            (server,) = self.scheduler.boot(specs)
        except exception.NoValidHost:
            return "", list(self.cloud.read_paths)
        reads = list(self.cloud.read_paths)
        name = find_type(server)
        drawn_clouds.delete(server)
        return name, reads


def find_type(server: str) -> str:
    """Return the type of ``CHOICES`` that a server has allocated."""
    units, traits = drawn_clouds.read_card(server)
    (name,) = [
        name
        for name in CHOICES
        if scheduled.charges(name) == units and scheduled.trait(name) in traits
    ]
    return name


@pytest.fixture
def requests(
    cloud: scheduling.Cloud, scheduler: scheduling.Scheduler
) -> Requests:
    return Requests(cloud, scheduler)


def order(*choices: str) -> dict[str, str]:
    """Return the extra specs of a flavor with choices."""
    return {
        **scheduled.vgpus(choices[0]),
        profile_order.KEY: ",".join(choices),
    }


def test_no_later_choice_is_taken_while_an_earlier_one_fits(
    requests: Requests,
) -> None:
    """And one that fits first costs the queries of a plain flavor.

    An earlier choice fits if a server of a plain flavor gets a host.
    """
    chooser = random.Random(41)  # noqa: S311
    drawn = drawn_clouds.DrawnCloud(requests.cloud)
    taken: collections.Counter[int] = collections.Counter()
    for _ in range(1000 if IS_WHOLE else 40):
        drawn.draw(chooser)
        choices = chooser.sample(CHOICES, chooser.randrange(2, 5))
        name, reads = requests.boot(order(*choices))
        step = choices.index(name) if name else len(choices)
        for earlier in choices[:step]:
            assert requests.boot(scheduled.vgpus(earlier))[0] == "", choices
        if step == 0:
            plain = requests.boot(scheduled.vgpus(name))
            assert plain[0] == name
            assert len(reads) == len(plain[1])
        if name:
            assert len(list(filter(_CANDIDATES.match, reads))) == step + 1
        taken[step] += 1
    print(f"clouds by the choice that fits: {sorted(taken.items())}")
    assert {0, 1} <= taken.keys()


def test_all_servers_of_a_request_get_the_same_choice(
    requests: Requests,
) -> None:
    for number, gpu in enumerate(("A40", "L40S", "L40S", "L40S")):
        requests.cloud.add_host(f"host{number}")
        address = f"0000:4{number}:00.0"
        requests.cloud.add_card(f"host{number}", address, gpu=gpu)
    servers = requests.scheduler.boot(order("A40-24Q", "L40S-24Q"), count=5)
    assert {find_type(server) for server in servers} == {"L40S-24Q"}


def test_a_type_that_no_host_ever_offered_is_skipped(
    requests: Requests,
) -> None:
    """Placement refuses a query with a trait that it does not know."""
    scheduling.one_host(requests.cloud, ("0000:41:00.0",), gpu="A40")
    name, reads = requests.boot(order("T4-4Q", "H100-80C", "A40-8Q"))
    assert name == "A40-8Q"
    paths = [path for path in reads if "H100_80C" in path]
    assert [path.partition("?")[0] for path in paths] == ["/traits"]
