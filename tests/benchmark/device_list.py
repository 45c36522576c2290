# SPDX-License-Identifier: Apache-2.0
"""``openstack accel device list`` beside ``openstack resource provider list``.

    python -m tests.benchmark.device_list [--hosts 1000 --cards 8 --every 2]

Both commands run as processes of their own, with one real Placement over
HTTP; the second one is that of osc-placement. They print tables, or JSON with
``--format json``. Every n-th card has a server. The commands run in turn, so
that a busy machine slows all of them. The output has the median seconds of
the clock, those of the client's CPU, both as ratios to ``resource provider
list``, and the requests that Placement counted.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from nova_accel.model import names
from tests.benchmark import clouds, placement_calls
from tests.functional.sync.support import servers

_UNITS = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 8192}
_CLOUD = "bench"
_HELP = "client alone"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    _HELP: ("complete",),
    "resource provider list": ("resource", "provider", "list"),
    "accel device list": ("accel", "device", "list"),
    "accel device list --long": ("accel", "device", "list", "--long"),
    "accel host list": ("accel", "host", "list"),
}
_BASE = "resource provider list"
_TABLE = "table"

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a command, its requests and its rows.

    ``cpu`` are the seconds of the client's CPU, user and system.
    """

    seconds: float
    cpu: float
    requests: int
    rows: int


class Client:
    """Runs ``openstack`` with the credentials of a Placement."""

    def __init__(self, server: servers.Server, place: pathlib.Path) -> None:
        self._server = server
        path = place / "clouds.yaml"
        cloud = {
            "auth_type": "admin_token",
            "auth": {"endpoint": server.url, "token": "admin"},
            "placement_endpoint_override": server.url,
        }
        path.write_text(json.dumps({"clouds": {_CLOUD: cloud}}))
        self._environment = {
            **os.environ,
            "OS_CLIENT_CONFIG_FILE": str(path),
            "OS_CLOUD": _CLOUD,
        }

    def measure(self, words: Sequence[str]) -> Cost:
        """Return the cost of one run of a command."""
        program = [sys.executable, "-m", "openstackclient.shell", *words]
        self._server.clear()
        began, cpu_began = time.perf_counter(), _read_cpu()
        output = subprocess.run(  # noqa: S603
            program,
            check=True,
            capture_output=True,
            env=self._environment,
        ).stdout
        return Cost(
            seconds=time.perf_counter() - began,
            cpu=_read_cpu() - cpu_began,
            requests=len(self._server.requests()),
            rows=_count_rows(output.decode()),
        )

    def measure_all(
        self, style: str, runs: int, report: Report
    ) -> dict[str, Cost]:
        """Return the median costs of all commands, by name.

        The first run of each command is not counted.

        :param style: of the output, ``table`` or ``json``.
        """
        costs: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
        for number in range(runs + 1):
            for name, words in COMMANDS.items():
                report(f"run {number} of {runs}: {name}")
                options = () if name == _HELP else ("-f", style)
                costs[name].append(self.measure((*words, *options)))
        return {name: _build_median(each[1:]) for name, each in costs.items()}


def _count_rows(output: str) -> int:
    """Return the rows of a table or a list in JSON, else 0."""
    if output.startswith("["):
        return len(json.loads(output))
    lines = output.splitlines()
    return max(0, sum(line.startswith("|") for line in lines) - 1)


def _read_cpu() -> float:
    """Return the seconds of the CPU of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _build_median(costs: Sequence[Cost]) -> Cost:
    return dataclasses.replace(
        costs[-1],
        seconds=statistics.median(cost.seconds for cost in costs),
        cpu=statistics.median(cost.cpu for cost in costs),
    )


def compare(
    server: servers.Server,
    place: pathlib.Path,
    options: argparse.Namespace,
    report: Report,
) -> Iterator[str]:
    """Yield the lines of the output."""
    cloud = clouds.Cloud(server, clouds.accel_layout(options.cards))
    for number in cloud.fill(options.hosts):
        report(f"{number} of {options.hosts} hosts")
    used = cloud.allocate(options.every, _UNITS) if options.every else 0
    yield (
        f"{options.hosts} hosts, {options.hosts * options.cards} cards,"
        f" {used} of them in use"
    )
    costs = Client(server, place).measure_all(
        options.format, options.runs, report
    )
    report("")
    yield (
        f"{'':28}{'seconds':>9}{'ratio':>8}{'client CPU':>12}{'ratio':>8}"
        f"{'requests':>10}{'rows':>8}"
    )
    base = costs[_BASE]
    for name, cost in costs.items():
        yield (
            f"{name:28}{cost.seconds:9.2f}{cost.seconds / base.seconds:8.2f}"
            f"{cost.cpu:12.2f}{cost.cpu / base.cpu:8.2f}"
            f"{cost.requests:10}{cost.rows:8}"
        )


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument(
        "--every", type=int, default=2, help="n: each n-th card is in use"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--format", choices=(_TABLE, "json"), default=_TABLE)
    parser.add_argument("--mariadb", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as where:
        place = pathlib.Path(where)
        with placement_calls.running(place, options.mariadb) as server:
            for line in compare(server, place, options, clouds.progress):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
