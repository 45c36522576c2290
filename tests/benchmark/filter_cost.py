# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter beside Nova's NUMATopologyFilter, per host.

    python -m tests.benchmark.filter_cost [--hosts 1000 --cards 8]

Both get the same hosts with two NUMA cells each, the same candidates, from
a real Placement over real HTTP, and a guest with a NUMA topology of its
own. On every second card runs a server already. Ours is measured with
nothing remembered; with what a busy scheduler remembers, which costs one
call; and for a flavor without accelerators. Printed are the medians, and
what of them was spent waiting for Placement.
"""

import argparse
import copy
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests
from nova import context, objects
from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter

from filters import accelerator_filter
from filters.fit import fact_reader
from nova_accel.model import names
from tests.benchmark import clouds, placement_calls
from tests.functional.scheduler import scheduling
from tests.functional.sync.support import servers

# What the servers ask for, and those that run already have.
_MEMORY_MB = 8192
FLAVOR = {
    "resources_A:VGPU": "1",
    f"resources_A:{names.GPU_MEMORY_CLASS}": str(_MEMORY_MB),
    f"trait_A:{clouds.WANTED}": "required",
    "hw:numa_nodes": "1",
}
_HELD = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: _MEMORY_MB}
_VCPUS, _RAM_MB = 4, 4096
# Requests until all is remembered that may be: enough for 8,000 cards.
_MOST_REQUESTS = 300

Candidates = dict[str, list[Any]]
Tell = Callable[[str], None]


class Placement:
    """Asks a Placement, and counts."""

    def __init__(self, server: servers.Server) -> None:
        self._url = server.url
        self._session = requests.Session()
        self._session.headers.update(
            {
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement "
                + fact_reader.MICROVERSION,
            }
        )
        self.calls = 0
        self.seconds = 0.0

    def get(self, path: str) -> Any:
        """Return the decoded answer."""
        began = time.perf_counter()
        answer = self._session.get(self._url + path)
        answer.raise_for_status()
        found = answer.json()
        self.calls += 1
        self.seconds += time.perf_counter() - began
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one pass over the hosts took: seconds, and calls of Placement."""

    seconds: float
    waiting: float = 0.0
    calls: int = 0


def cells() -> Any:
    """Return a host's two NUMA cells."""
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                cpuset=set(range(64 * number, 64 * (number + 1))),
                pcpuset=set(),
                memory=512 * 1024,
                cpu_usage=16,
                memory_usage=65536,
                pinned_cpus=set(),
                siblings=[],
                mempages=[],
                socket=number,
            )
            for number in range(2)
        ]
    )


def host(name: str, uuid: str, candidates: list[Any]) -> Any:
    """Return a host as nova-scheduler has it."""
    state = host_manager.HostState(name, name, uuid)
    state.uuid = uuid
    state.numa_topology = cells()
    state.ram_allocation_ratio = 1.0
    state.cpu_allocation_ratio = 4.0
    state.allocation_candidates = copy.deepcopy(candidates)
    return state


def guest(extra_specs: dict[str, str]) -> Any:
    """Return a request for a guest with a NUMA topology."""
    ctxt = context.get_admin_context()
    spec = scheduling.make_spec(
        ctxt, extra_specs, ["d0c0ffee-0000-4000-8000-000000000001"]
    )
    spec.flavor.vcpus, spec.flavor.memory_mb = _VCPUS, _RAM_MB
    spec.numa_topology = objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=0,
                cpuset=set(range(_VCPUS)),
                pcpuset=set(),
                memory=_RAM_MB,
            )
        ]
    )
    return spec


class Bench:
    """The passes that are measured.

    :param candidates: those of each host, by the host's name.
    """

    def __init__(
        self, placement: Placement, candidates: Candidates, runs: int
    ) -> None:
        self._placement = placement
        self._candidates = candidates
        self._runs = runs

    def novas(self) -> Cost:
        """Return what Nova's filter takes."""
        theirs = numa_topology_filter.NUMATopologyFilter()
        return self._median(lambda: theirs)

    def cold(self) -> Cost:
        """Return what ours takes in a scheduler that has just started."""
        return self._median(self._ours)

    def warm(self) -> Cost:
        """Return what ours takes once nothing is left to remember."""
        mine = self._ours()
        for _ in range(_MOST_REQUESTS):
            if self._pass(mine, FLAVOR).calls == 1:
                break
        return self._median(lambda: mine)

    def without(self) -> Cost:
        """Return what ours takes for a flavor without accelerators."""
        mine = self._ours()
        return self._median(lambda: mine, {"hw:numa_nodes": "1"})

    def _ours(self) -> Any:
        return accelerator_filter.AcceleratorFilter(self._placement.get)

    def _pass(self, measured: Any, extra_specs: dict[str, str]) -> Cost:
        hosts = [
            host(name, str(number), several)
            for number, (name, several) in enumerate(self._candidates.items())
        ]
        spec = guest(extra_specs)
        asked = self._placement
        asked.calls, asked.seconds = 0, 0.0
        began = time.perf_counter()
        left = list(measured.filter_all(hosts, spec))
        took = time.perf_counter() - began
        assert len(left) == len(hosts)
        return Cost(seconds=took, waiting=asked.seconds, calls=asked.calls)

    def _median(
        self, make: Callable[[], Any], extra_specs: dict[str, str] = FLAVOR
    ) -> Cost:
        costs = [self._pass(make(), extra_specs) for _ in range(self._runs)]
        return Cost(
            seconds=statistics.median(c.seconds for c in costs),
            waiting=statistics.median(c.waiting for c in costs),
            calls=costs[-1].calls,
        )


def fetch(placement: Placement, cloud: clouds.Cloud, limit: int) -> Candidates:
    """Return each host's candidates, as Nova's scheduler asks for them."""
    path = (
        "/allocation_candidates?resources=VCPU:4,MEMORY_MB:4096"
        f"&resources_A=VGPU:1,{names.GPU_MEMORY_CLASS}:{_MEMORY_MB}"
        f"&required_A={clouds.WANTED}"
    )
    if limit:
        path += f"&limit={limit}"
    found: Candidates = {}
    for candidate in placement.get(path)["allocation_requests"]:
        (root,) = cloud.hosts.keys() & candidate["allocations"].keys()
        found.setdefault(cloud.hosts[root], []).append(candidate)
    return found


def compare(
    cloud: clouds.Cloud, hosts: int, limit: int, runs: int, tell: Tell
) -> Iterator[str]:
    """Yield the lines of the table."""
    for count in cloud.fill(hosts):
        tell(f"{count} of {hosts} hosts")
    booked = cloud.book(2, _HELD)
    placement = Placement(cloud.server)
    found = fetch(placement, cloud, limit)
    number = sum(map(len, found.values()))
    yield (
        f"{hosts} hosts, {booked} of their cards in use;"
        f" {number} candidates on {len(found)} hosts"
    )
    yield (
        f"{'':34}{'seconds':>9}{'waiting':>9}{'calls':>7}"
        f"{'us/host':>9}{'ratio':>8}"
    )
    bench = Bench(placement, found, runs)
    tell("Nova's filter")
    theirs = bench.novas()
    yield _row("NUMATopologyFilter", theirs, theirs, len(found))
    for what, measure in (
        ("empty cache", bench.cold),
        ("warm cache", bench.warm),
        ("flavor without accelerators", bench.without),
    ):
        tell(what)
        yield _row(what, measure(), theirs, len(found))


def _row(what: str, cost: Cost, theirs: Cost, hosts: int) -> str:
    """Return a line; the ratio is that of what is not waiting."""
    own = cost.seconds - cost.waiting
    return (
        f"{what:34}{cost.seconds:9.4f}{cost.waiting:9.4f}{cost.calls:7d}"
        f"{own / hosts * 1e6:9.1f}{own / theirs.seconds:8.3f}"
    )


def progress(words: str) -> None:
    """Say on one line of the terminal how far it is."""
    print(f"\r{words:50}\r", end="", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument(
        "--limit", type=int, default=1000, help="0: all candidates"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mariadb", action="store_true")
    asked = parser.parse_args(given)
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(pathlib.Path(where), asked.mariadb) as server,
    ):
        cloud = clouds.Cloud(server, clouds.ours(asked.cards))
        for line in compare(
            cloud, asked.hosts, asked.limit, asked.runs, progress
        ):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
