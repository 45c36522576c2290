# SPDX-License-Identifier: Apache-2.0
"""Claims of several schedulers that choose at the same time.

    python -m tests.benchmark.schedule.claims [--best-hosts 8]

Two nova-schedulers of several workers, each a process with Nova's
SchedulerManager, schedule servers over a Placement of two processes on
MariaDB or PostgreSQL. The cards have partitions of one size, so all workers
prefer the same, fullest card.

A row has the claims of one side: ``conflicts`` are answers of Placement to
claims that Nova repeats, since another allocation was written at the same
time; ``failed`` are claims of cards that other workers had filled meanwhile,
after which Nova takes the next host. ``overfull`` are cards that Placement
gave to more servers than they have room for.
"""

import argparse
import contextlib
import dataclasses
import functools
import glob
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy
from nova import exception
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_accel.model import names
from tests.benchmark import clouds
from tests.benchmark.schedule import costs, goals
from tests.functional.sync.support import servers

SCHEDULERS, PLACEMENTS = 2, 2
#: Answer of Placement to a claim that Nova repeats.
_CONFLICT = "placement.concurrent_update"
# Placement's default; the tests' server does not retry.
_OPTIONS = ("placement.allocation_conflict_retry_count=10",)
_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claims:
    """Servers of one worker or several, and the claims for them."""

    servers: int = 0
    refused: int = 0
    claims: int = 0
    conflicts: int = 0
    failed: int = 0
    overfull: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Claims") -> "Claims":
        return Claims(
            **{
                field.name: getattr(self, field.name)
                + getattr(other, field.name)
                for field in dataclasses.fields(Claims)
            }
        )


class ClaimingAdapter(costs.CountingAdapter):
    """Client of Placement that counts claims."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.counts = Claims()

    def request(self, url: str, method: str, **kwargs: Any) -> Any:
        answer = super().request(url, method, **kwargs)
        if method == "PUT" and url.startswith("/allocations/"):
            is_conflict = answer.status_code == 409 and (
                _CONFLICT in answer.text
            )
            self.counts += Claims(
                claims=1,
                conflicts=is_conflict,
                failed=not is_conflict and answer.status_code >= 400,
            )
        return answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Servers that one worker schedules, through one Placement."""

    side: str
    url: str
    hosts: Mapping[str, str]
    servers: int
    pause: float
    best_hosts: int


def run_worker(work: Work, barrier: Any, results: Any) -> None:
    """Schedule servers once all workers are ready, and put the counts."""
    logging.getLogger(None).logger.setLevel("CRITICAL")
    cloud = costs.CountedCloud(work.url, work.hosts)
    cloud.client = client = ClaimingAdapter(work.url)
    cloud.report = report.SchedulerReportClient(client)
    side = costs.Side(work.side, cloud, work.best_hosts)
    refused = 0
    barrier.wait()
    began = time.perf_counter()
    for _ in range(work.servers):
        time.sleep(random.expovariate(1) * work.pause)
        try:
            side.boot(costs.FLAVOR)
        except exception.NoValidHost:
            refused += 1
    results.put(
        client.counts
        + Claims(
            servers=work.servers,
            refused=refused,
            seconds=time.perf_counter() - began,
        )
    )


def run_side(side: str, options: argparse.Namespace) -> Claims:
    """Return the claims of all workers on a new cloud."""
    with (
        tempfile.TemporaryDirectory() as where,
        DATABASES[options.database](pathlib.Path(where)) as database,
        contextlib.ExitStack() as stack,
    ):
        placements = [
            stack.enter_context(
                servers.start(
                    database, pathlib.Path(where) / f"words{n}", _OPTIONS
                )
            )
            for n in range(PLACEMENTS)
        ]
        layout = clouds.accel_layout(options.cards, "equal")
        cloud = clouds.Cloud(placements[0], layout)
        for count in cloud.fill(options.hosts):
            clouds.progress(f"{count} of {options.hosts} hosts")
        workers = SCHEDULERS * options.workers
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(workers), context.Queue()
        processes = [
            context.Process(
                target=run_worker,
                args=(
                    Work(
                        side=side,
                        url=placements[n % PLACEMENTS].url,
                        hosts=cloud.hosts,
                        servers=options.servers,
                        pause=options.pause,
                        best_hosts=options.best_hosts,
                    ),
                    barrier,
                    results,
                ),
            )
            for n in range(workers)
        ]
        for process in processes:
            process.start()
        total = Claims()
        for _ in processes:
            total += results.get()
        for process in processes:
            process.join()
        return total + Claims(overfull=count_overfull(database))


def count_overfull(database: str) -> int:
    """Return the number of cards with more allocations than capacity."""
    engine = sqlalchemy.create_engine(database)
    memory = (
        "SELECT SUM(used) FROM allocations JOIN resource_classes ON"
        " resource_classes.id = resource_class_id WHERE name = :name"
        " GROUP BY resource_provider_id"
    )
    with engine.connect() as connection:
        used = [
            int(row[0])
            for row in connection.execute(
                sqlalchemy.text(memory), {"name": names.GPU_MEMORY_CLASS}
            )
        ]
    engine.dispose()
    return sum(each > clouds.MEMORY_MB for each in used)


@contextlib.contextmanager
def postgresql(place: pathlib.Path) -> Iterator[str]:
    """Run a PostgreSQL, and yield the URL of a database in it.

    It has a socket below ``place`` and no port, and doesn't wait for disks.
    """
    (initdb,) = [
        shutil.which("initdb"),
        *sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")),
    ][-1:]
    user = "postgres" if os.geteuid() == 0 else None
    data = place / "database"
    data.mkdir()
    if user:
        shutil.chown(data, user)
        place.chmod(0o755)
    run = functools.partial(
        subprocess.run, check=True, capture_output=True, user=user, cwd=data
    )
    run([initdb, "-D", data / "data", "-A", "trust", "-U", "postgres"])
    program = pathlib.Path(str(initdb)).with_name("postgres")
    words = ["-D", str(data / "data"), "-k", str(data), "-h", "", "-F"]
    with subprocess.Popen(  # noqa: S603
        [program, *words, "-c", "max_connections=300"],
        user=user,
        cwd=data,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            url = f"postgresql+psycopg2://postgres@/%s?host={data}"
            _create_database(url % "postgres")
            yield url % "placement"
        finally:
            running.send_signal(signal.SIGINT)


def _create_database(url: str) -> None:
    """Wait for PostgreSQL and create the database."""
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    until = time.monotonic() + _SECONDS
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(
                    sqlalchemy.text("CREATE DATABASE placement")
                )
            break
        except sqlalchemy.exc.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    engine.dispose()


DATABASES = {"mariadb": servers.mariadb, "postgresql": postgresql}


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=DATABASES, default="mariadb")
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument(
        "--workers", type=int, default=2, help="of each scheduler"
    )
    parser.add_argument(
        "--servers", type=int, default=50, help="of each worker"
    )
    parser.add_argument(
        "--pause", type=float, default=2, help="mean seconds of a worker"
    )
    parser.add_argument(
        "--best-hosts", type=int, default=1, help="Nova's host_subset_size"
    )
    parser.add_argument("--sides", default=f"{costs.ALONE},{costs.ACCEL}")
    parser.add_argument(
        "--check", action="store_true", help="fail if the goal is missed"
    )
    options = parser.parse_args(words)
    fields = [field.name for field in dataclasses.fields(Claims)]
    print(f"{options.database:12}" + "".join(f"{f:>12}" for f in fields))
    limit, has_missed = goals.FAILED_CLAIMS[-1].limit, False
    for side in options.sides.split(","):
        total = run_side(side, options)
        values = dataclasses.astuple(total)
        cells = "".join(f"{value:12.4g}" for value in values)
        print(f"{side:12}{cells}", flush=True)
        has_missed |= total.failed > limit * total.claims
    return int(options.check and has_missed)


if __name__ == "__main__":
    sys.exit(main())
