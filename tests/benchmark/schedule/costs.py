# SPDX-License-Identifier: Apache-2.0
"""Servers through Nova's SchedulerManager and a real Placement over HTTP.

    python -m tests.benchmark.schedule [--hosts 1000 --cards 8 --before DIR]

Each case has one cloud of this library's layout. ``alone`` are Nova's own
filters and weighers, ``accel`` has AcceleratorFilter and AcceleratorWeigher
too; their requests take turns. With ``--before`` another checkout's packages
run the same cases in a process of their own, for a row ``before``.

The rows have medians for one request: seconds of the request, seconds of the
processor in nova-scheduler and in Placement, requests to Placement and their
bytes. Every second card has a server at a place that its traits show; of
doubtful cards no trait does, and in a full cloud all memory is allocated.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystoneauth1 import adapter, session, token_endpoint
from nova import conf, exception
from nova.scheduler import request_filter
from nova.scheduler.client import report
from oslo_config import fixture as config_fixture

from nova_accel.model import names
from tests.benchmark import clouds, placement_calls
from tests.benchmark.schedule import goals
from tests.functional.scheduler import scheduling

ALONE, ACCEL, BEFORE = "alone", "accel", "before"
_PACKAGES = ("filters", "nova_accel", "placement_sync", "virt_hooks")
_MEMORY_MB = 8192
FLAVOR = {
    "resources_A:VGPU": "1",
    f"resources_A:{names.GPU_MEMORY_CLASS}": str(_MEMORY_MB),
    f"trait_A:{clouds.PROFILE_TRAIT}": "required",
}
_FILTERS = ("ComputeCapabilitiesFilter", "ServerGroupAntiAffinityFilter")
_WEIGHERS = ("nova.scheduler.weights.all_weighers",)
_WEIGHER = "filters.accelerator_weigher.AcceleratorWeigher"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A request and the state of the cloud's cards.

    Each ``every``-th card has a server with ``used_mb``.
    """

    specs: Mapping[str, str]
    servers: int = 1
    every: int = 2
    used_mb: int = _MEMORY_MB
    trait: str = clouds.PLACE_TRAIT
    is_refused: bool = False


CASES = {
    "single": Case(specs=FLAVOR),
    "multi-create": Case(specs=FLAVOR, servers=8),
    "plain flavor": Case(specs={}),
    "full cloud": Case(
        specs=FLAVOR,
        every=1,
        used_mb=clouds.MEMORY_MB,
        trait="",
        is_refused=True,
    ),
    "doubtful cards": Case(specs=FLAVOR, every=1, trait=""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one request: see the module."""

    seconds: float
    scheduler: float
    placement: float
    requests: float
    megabytes: float

    @property
    def processor(self) -> float:
        """Return the seconds of the processor in both services."""
        return self.scheduler + self.placement

    def row(self, label: str) -> str:
        """Return a row of the table."""
        return (
            f"  {label:8}{self.seconds:9.3f}{self.scheduler:11.3f}"
            f"{self.placement:11.3f}{self.requests:10.1f}{self.megabytes:9.2f}"
        )


HEADER = (
    f"  {'':8}{'seconds':>9}{'scheduler':>11}{'Placement':>11}"
    f"{'requests':>10}{'MB':>9}"
)


class CountingAdapter(adapter.Adapter):
    """Client of Placement that counts requests and bytes of answers."""

    def __init__(self, url: str) -> None:
        super().__init__(
            session.Session(auth=token_endpoint.Token(url, "admin")),
            endpoint_override=url,
            raise_exc=False,
            service_type="placement",
        )
        self.requests, self.bytes = 0, 0

    def request(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().request(*args, **kwargs)
        self.requests += 1
        self.bytes += len(answer.content or b"")
        return answer


class CountedCloud:
    """Hosts for a scheduler, and its client of Placement."""

    def __init__(self, url: str, hosts: Mapping[str, str]) -> None:
        self.hosts = hosts
        self.cells: dict[str, Any] = {}
        self.client = CountingAdapter(url)
        self.report = report.SchedulerReportClient(self.client)


class Side:
    """A scheduler on a cloud, with or without filter and weigher."""

    def __init__(self, name: str, cloud: CountedCloud) -> None:
        self._cloud = cloud
        self._has_filter = name != ALONE
        self._request_filters: list[Any] = []
        self.costs: list[Cost] = []
        with self._active():
            self._scheduler = scheduling.Scheduler(cloud)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        novas = request_filter.ALL_REQUEST_FILTERS
        with config_fixture.Config(conf.CONF) as config:
            accel = ["AcceleratorFilter"] if self._has_filter else []
            config.config(
                group="filter_scheduler",
                available_filters=[
                    "nova.scheduler.filters.all_filters",
                    scheduling.CLASS,
                ],
                enabled_filters=[*_FILTERS, *accel],
                weight_classes=[*_WEIGHERS, *([_WEIGHER] if accel else [])],
                track_instance_changes=False,
            )
            report.PLACEMENTCLIENT = self._cloud.report
            request_filter.ALL_REQUEST_FILTERS = self._request_filters
            try:
                yield
            finally:
                request_filter.ALL_REQUEST_FILTERS = novas

    def run(self, case: Case) -> None:
        """Make one request, and record its cost."""
        client = self._cloud.client
        client.requests = client.bytes = 0
        gc.collect()
        gc.freeze()  # This process has more objects than nova-scheduler.
        with self._active():
            began, own = time.perf_counter(), time.process_time()
            others = read_children()
            try:
                self._scheduler.boot(dict(case.specs), case.servers)
            except exception.NoValidHost:
                assert case.is_refused
            else:
                assert not case.is_refused
            self.costs.append(
                Cost(
                    seconds=time.perf_counter() - began,
                    scheduler=time.process_time() - own,
                    placement=read_children() - others,
                    requests=client.requests,
                    megabytes=client.bytes / 1e6,
                )
            )

    def median(self) -> Cost:
        """Return the medians of all requests but the first one."""
        return Cost(
            **{
                field.name: statistics.median(
                    getattr(cost, field.name) for cost in self.costs[1:]
                )
                for field in dataclasses.fields(Cost)
            }
        )


def read_children() -> float:
    """Return the processor time of this process's children, in seconds."""
    ticks = 0
    for process in os.listdir("/proc"):
        if process.isdigit():
            with contextlib.suppress(OSError):
                stat = pathlib.Path(f"/proc/{process}/stat").read_text()
                fields = stat.rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(case: Case, options: argparse.Namespace) -> dict[str, Cost]:
    """Return the cost of each side."""
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(
            pathlib.Path(where), options.mariadb
        ) as server,
    ):
        cloud = clouds.Cloud(server, clouds.accel_layout(options.cards))
        for count in cloud.fill(options.hosts):
            clouds.progress(f"{count} of {options.hosts} hosts")
        units = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: case.used_mb}
        cloud.allocate(case.every, units, case.trait)
        sides = {
            name: Side(name, CountedCloud(server.url, cloud.hosts))
            for name in options.sides.split(",")
        }
        for run in range(options.runs + 1):
            for name, side in sides.items():
                clouds.progress(f"{name} {run} of {options.runs}")
                side.run(case)
        return {name: side.median() for name, side in sides.items()}


def measure_before(name: str, options: argparse.Namespace) -> dict[str, Cost]:
    """Return the cost with the packages of another checkout."""
    here = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as where:
        for package in _PACKAGES:
            source = pathlib.Path(options.before).resolve() / package
            (pathlib.Path(where) / package).symlink_to(source)
        (pathlib.Path(where) / "tests").symlink_to(here / "tests")
        words = [
            *("--cases", name, "--hosts", str(options.hosts), "--json"),
            *("--cards", str(options.cards), "--runs", str(options.runs)),
            *("--sides", ACCEL, *(["--mariadb"] * options.mariadb)),
        ]
        done = subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-m", "tests.benchmark.schedule", *words],
            cwd=where,
            stdout=subprocess.PIPE,
            check=True,
        )
    measured = json.loads(done.stdout)[name]
    return {BEFORE: Cost(**measured[ACCEL])}


def find_missed(name: str, costs: Mapping[str, Cost]) -> Iterator[str]:
    """Yield the goals that a case misses."""
    alone, accel = costs[ALONE], costs[ACCEL]
    added = accel.requests - alone.requests
    if added > (limit := goals.REQUESTS[name][-1].limit):
        yield f"{name}: {added:.0f} requests are added, goal {limit:.0f}"
    for goal in goals.RATIOS.get(name, ())[-1:]:
        for what, ratio in (
            ("seconds", accel.seconds / alone.seconds),
            ("processor time", accel.processor / alone.processor),
        ):
            if ratio > goal.limit:
                yield f"{name}: {what} x {ratio:.2f}, goal {goal.limit}"


def parse_words(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sides", default=f"{ALONE},{ACCEL}")
    parser.add_argument("--before", help="another checkout")
    parser.add_argument("--mariadb", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--check", action="store_true", help="fail if a goal is missed"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    options = parse_words(words)
    measured: dict[str, dict[str, Cost]] = {}
    missed: list[str] = []
    if not options.json:
        print(f"{options.hosts} hosts, {options.cards} cards each")
    for name in options.cases.split(","):
        costs = measure(CASES[name], options)
        if options.before:
            costs |= measure_before(name, options)
        measured[name] = costs
        if not options.json:
            print(f"{name}\n{HEADER}")
            for label, cost in costs.items():
                print(cost.row(label), flush=True)
        if {ALONE, ACCEL} <= costs.keys():
            missed += find_missed(name, costs)
    if options.json:
        raw = {
            name: {label: dataclasses.asdict(c) for label, c in costs.items()}
            for name, costs in measured.items()
        }
        print(json.dumps(raw))
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print("\n".join([f"peak memory {peak} MiB", *missed]))
    return int(options.check and bool(missed))
