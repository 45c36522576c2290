# SPDX-License-Identifier: Apache-2.0
"""Servers through Nova's SchedulerManager and a real Placement over HTTP.

    python -m tests.benchmark.schedule [--hosts 1000,4000 --before DIR]

Each case has one cloud of this library's layout. ``alone`` are Nova's own
filters and weighers, ``accel`` has AcceleratorFilter and AcceleratorWeigher
too; their requests take turns. With ``--before`` another checkout's packages
run the same cases in a process of their own, for a row ``before``.

The rows have the least of several requests, which other programs have
disturbed least: seconds of the request, seconds of the processor in
nova-scheduler, in filter and weigher alone and in Placement, requests to
Placement and their bytes. Every
second card has a server at a place that its traits show; of doubtful cards no
trait does, and in a full cloud all memory is allocated.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from keystoneauth1 import adapter, session, token_endpoint
from nova import conf, exception
from nova.scheduler import request_filter
from nova.scheduler.client import report
from oslo_config import fixture as config_fixture

from filters import accelerator_filter, accelerator_weigher
from nova_accel.model import names
from tests.benchmark import clouds, placement_calls
from tests.functional.scheduler import scheduling

ALONE, ACCEL, BEFORE = "alone", "accel", "before"
_PACKAGES = ("filters", "nova_accel", "placement_sync", "virt_hooks")
MEMORY_MB = 8192
FLAVOR = {
    "resources_A:VGPU": "1",
    f"resources_A:{names.GPU_MEMORY_CLASS}": str(MEMORY_MB),
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
    used_mb: int = MEMORY_MB
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
    own: float
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
            f"{self.own:9.3f}{self.placement:11.3f}{self.requests:10.1f}{self.megabytes:9.2f}"
        )


HEADER = (
    f"  {'':8}{'seconds':>9}{'scheduler':>11}{'own':>9}{'Placement':>11}"
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
    """A scheduler on a cloud, with or without filter and weigher.

    :param best_hosts: Nova's ``host_subset_size``.
    """

    def __init__(
        self, name: str, cloud: CountedCloud, best_hosts: int = 1
    ) -> None:
        self._cloud = cloud
        self._best_hosts = best_hosts
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
                host_subset_size=self._best_hosts,
            )
            report.PLACEMENTCLIENT = self._cloud.report
            request_filter.ALL_REQUEST_FILTERS = self._request_filters
            try:
                yield
            finally:
                request_filter.ALL_REQUEST_FILTERS = novas

    def boot(self, specs: Mapping[str, str]) -> None:
        """Schedule a server.

        :raises nova.exception.NoValidHost: there is no host for it.
        """
        with self._active():
            self._scheduler.boot(dict(specs))

    def run(self, case: Case) -> None:
        """Make one request, and record its cost."""
        client = self._cloud.client
        client.requests = client.bytes = 0
        gc.collect()
        gc.freeze()  # This process has more objects than nova-scheduler.
        with self._active(), time_own_methods() as spent:
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
                    own=sum(spent),
                    placement=read_children() - others,
                    requests=client.requests,
                    megabytes=client.bytes / 1e6,
                )
            )

    def least(self) -> Cost:
        """Return the least values of all requests but the first one."""
        return Cost(
            **{
                field.name: min(
                    getattr(cost, field.name) for cost in self.costs[1:]
                )
                for field in dataclasses.fields(Cost)
            }
        )


@contextlib.contextmanager
def time_own_methods() -> Iterator[list[float]]:
    """Yield a list that gets the processor time of each own call."""
    spent: list[float] = []

    def time_calls(stock: Any) -> Any:
        def call(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return stock(*arguments)
            finally:
                spent.append(time.thread_time() - began)

        return call

    with contextlib.ExitStack() as stack:
        for kind, name in (
            (accelerator_filter.AcceleratorFilter, "filter_all"),
            (accelerator_weigher.AcceleratorWeigher, "weigh_objects"),
        ):
            timed = time_calls(getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, timed))
        yield spent


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


def measure(
    case: Case, hosts: int, options: argparse.Namespace
) -> dict[str, Cost]:
    """Return the cost of each side."""
    if case.servers > 1:
        case = dataclasses.replace(case, servers=options.servers)
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(
            pathlib.Path(where), options.mariadb
        ) as server,
    ):
        cloud = clouds.Cloud(server, clouds.accel_layout(options.cards))
        for count in cloud.fill(hosts):
            clouds.progress(f"{count} of {hosts} hosts")
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
        return {name: side.least() for name, side in sides.items()}


def measure_before(
    name: str, hosts: int, options: argparse.Namespace
) -> dict[str, Cost]:
    """Return the cost with the packages of another checkout."""
    here = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as where:
        for package in _PACKAGES:
            source = pathlib.Path(options.before).resolve() / package
            (pathlib.Path(where) / package).symlink_to(source)
        (pathlib.Path(where) / "tests").symlink_to(here / "tests")
        words = [
            *("--cases", name, "--hosts", str(hosts), "--json"),
            *("--cards", str(options.cards), "--runs", str(options.runs)),
            *("--servers", str(options.servers)),
            *("--sides", ACCEL, *(["--mariadb"] * options.mariadb)),
        ]
        done = subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-m", "tests.benchmark.schedule", *words],
            cwd=where,
            stdout=subprocess.PIPE,
            check=True,
        )
    measured = json.loads(done.stdout)[str(hosts)][name]
    return {BEFORE: Cost(**measured[ACCEL])}
