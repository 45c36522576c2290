# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter beside Nova's NUMATopologyFilter, per host.

    python -m tests.benchmark.filter_cost [--hosts 1000 --cards 8]

Both get the same hosts with two NUMA cells each, the same candidates, from
a real Placement over HTTP, and a guest with a NUMA topology of its own.
Every second card has a server already, at the place in its traits.
AcceleratorFilter is measured with Nova's captured answer, and for a flavor
without accelerators. Its request filter, which runs before Nova's own query
of candidates, is a part of each pass; a row has it alone.
The output has the medians of the whole time and of the time waiting for
Placement; decoding the JSON of the answers is no wait.
"""

import argparse
import copy
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests
from nova import context, objects
from nova.scheduler import host_manager
from nova.scheduler.filters.numa_topology_filter import NUMATopologyFilter

from filters import accelerator_filter, candidate_capture
from nova_accel.model import names
from placement_sync.client import nova_client
from tests.benchmark import clouds, placement_calls
from tests.functional.scheduler import scheduling
from tests.functional.sync.support import servers

# Memory of each vGPU, of new servers and of existing ones.
_MEMORY_MB = 8192
FLAVOR = {
    "resources_A:VGPU": "1",
    f"resources_A:{names.GPU_MEMORY_CLASS}": str(_MEMORY_MB),
    f"trait_A:{clouds.PROFILE_TRAIT}": "required",
    "hw:numa_nodes": "1",
}
_CHARGES = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: _MEMORY_MB}
_VCPUS, _RAM_MB = 4, 4096

Candidates = dict[str, list[Any]]
Report = Callable[[str], None]


class Placement:
    """Client of Placement that counts its calls."""

    def __init__(self, server: servers.Server) -> None:
        self._url = server.url
        self._session = requests.Session()
        self._session.headers.update(
            {
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement "
                + nova_client.MICROVERSION,
            }
        )
        self.calls = 0
        self.seconds = 0.0

    def get(self, path: str) -> Any:
        """Return the decoded answer."""
        began = time.perf_counter()
        answer = self._session.get(self._url + path)
        self.seconds += time.perf_counter() - began
        self.calls += 1
        answer.raise_for_status()
        return answer.json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and Placement calls of one pass over the hosts.

    ``request_calls`` are those of the request filter.
    """

    seconds: float
    waiting: float = 0.0
    calls: int = 0
    request_calls: int = 0


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
    """Return the HostState of nova-scheduler for a host."""
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


class PassTimer:
    """Measures passes of both filters.

    :param candidates: allocation candidates by host name.
    :param summaries: Placement's summaries of their providers.
    """

    def __init__(
        self,
        placement: Placement,
        candidates: Candidates,
        summaries: candidate_capture.Summaries,
        runs: int,
    ) -> None:
        self._placement = placement
        self._summaries = summaries
        self._candidates = candidates
        self._runs = runs

    def novas(self) -> Cost:
        """Return the cost of Nova's filter."""
        nova_filter = NUMATopologyFilter()
        return self._median(lambda: nova_filter)

    def captured(self) -> Cost:
        """Return the cost with Nova's captured answer."""
        accel_filter = self._make_filter()
        return self._median(lambda: accel_filter)

    def request_filter(self) -> Cost:
        """Return the cost of the request filter alone."""
        return self._median(lambda: None)

    def without(self) -> Cost:
        """Return the cost for a flavor without accelerators."""
        accel_filter = self._make_filter()
        return self._median(lambda: accel_filter, {"hw:numa_nodes": "1"})

    def _make_filter(self) -> Any:
        return accelerator_filter.AcceleratorFilter(self._placement.get)

    def _pass(self, measured: Any, extra_specs: dict[str, str]) -> Cost:
        hosts = [
            host(name, str(number), several)
            for number, (name, several) in enumerate(self._candidates.items())
        ]
        spec = guest(extra_specs)
        placement = self._placement
        placement.calls, placement.seconds = 0, 0.0
        began = time.perf_counter()
        if not isinstance(measured, NUMATopologyFilter):
            accelerator_filter.refuse_malformed_request(None, spec)
            candidate_capture.store(spec, dict(self._summaries))
        request_calls = placement.calls
        if measured is not None:
            passed = list(measured.filter_all(hosts, spec))
            assert len(passed) == len(hosts)
        return Cost(
            seconds=time.perf_counter() - began,
            waiting=placement.seconds,
            calls=placement.calls,
            request_calls=request_calls,
        )

    def _median(
        self, make: Callable[[], Any], extra_specs: dict[str, str] = FLAVOR
    ) -> Cost:
        costs = [self._pass(make(), extra_specs) for _ in range(self._runs)]
        return Cost(
            seconds=statistics.median(c.seconds for c in costs),
            waiting=statistics.median(c.waiting for c in costs),
            calls=costs[-1].calls,
            request_calls=costs[-1].request_calls,
        )


def fetch(
    placement: Placement, cloud: clouds.Cloud, limit: int
) -> tuple[Candidates, candidate_capture.Summaries]:
    """Return each host's candidates, as Nova requests them, and summaries."""
    path = (
        "/allocation_candidates?resources=VCPU:4,MEMORY_MB:4096"
        f"&resources_A=VGPU:1,{names.GPU_MEMORY_CLASS}:{_MEMORY_MB}"
        f"&required_A={clouds.PROFILE_TRAIT}"
    )
    if limit:
        path += f"&limit={limit}"
    candidates_of: Candidates = {}
    answer = placement.get(path)
    for candidate in answer["allocation_requests"]:
        (root,) = cloud.hosts.keys() & candidate["allocations"].keys()
        candidates_of.setdefault(cloud.hosts[root], []).append(candidate)
    return candidates_of, answer["provider_summaries"]


def compare(
    cloud: clouds.Cloud, hosts: int, limit: int, runs: int, report: Report
) -> Iterator[str]:
    """Yield the lines of the table."""
    for count in cloud.fill(hosts):
        report(f"{count} of {hosts} hosts")
    allocated = cloud.allocate(2, _CHARGES, clouds.PLACE_TRAIT)
    placement = Placement(cloud.server)
    candidates_of, summaries = fetch(placement, cloud, limit)
    number = sum(map(len, candidates_of.values()))
    yield (
        f"{hosts} hosts, {allocated} of their cards in use;"
        f" {number} candidates on {len(candidates_of)} hosts"
    )
    yield (
        f"{'':34}{'seconds':>9}{'waiting':>9}{'calls':>7}"
        f"{'us/host':>9}{'ratio':>8}"
    )
    timer = PassTimer(placement, candidates_of, summaries, runs)
    report("Nova's filter")
    nova_cost = timer.novas()
    yield _row("NUMATopologyFilter", nova_cost, nova_cost, len(candidates_of))
    for label, measure in (
        ("request filter alone", timer.request_filter),
        ("captured candidates", timer.captured),
        ("flavor without accelerators", timer.without),
    ):
        report(label)
        yield _row(label, measure(), nova_cost, len(candidates_of))


def _row(label: str, cost: Cost, nova_cost: Cost, hosts: int) -> str:
    """Return a row; the ratio is of the time without waiting."""
    own = cost.seconds - cost.waiting
    return (
        f"{label:34}{cost.seconds:9.4f}{cost.waiting:9.4f}{cost.calls:7d}"
        f"{own / hosts * 1e6:9.1f}{own / nova_cost.seconds:8.3f}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument(
        "--limit", type=int, default=1000, help="0: all candidates"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mariadb", action="store_true")
    options = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(
            pathlib.Path(where), options.mariadb
        ) as server,
    ):
        cloud = clouds.Cloud(server, clouds.accel_layout(options.cards))
        for line in compare(
            cloud, options.hosts, options.limit, options.runs, clouds.progress
        ):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
