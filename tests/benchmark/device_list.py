# SPDX-License-Identifier: Apache-2.0
"""``openstack accel device list`` beside ``openstack resource provider list``.

    python -m tests.benchmark.device_list [--hosts 1000 --cards 8 --every 2]

Both commands run as processes of their own, with one real Placement over
HTTP, and print JSON; the second one is that of osc-placement. Every n-th card
has a server. The output has the median seconds, those of the start of the
client, and the requests that Placement counted.
"""

import argparse
import dataclasses
import json
import os
import pathlib
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
    "resource provider list": ("resource", "provider", "list", "-f", "json"),
    "accel device list": ("accel", "device", "list", "-f", "json"),
    "accel device list --long": (
        *("accel", "device", "list", "--long", "-f", "json"),
    ),
    "accel host list": ("accel", "host", "list", "-f", "json"),
}
_BASE = "resource provider list"

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Median seconds of a command, its requests and its rows."""

    seconds: float
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

    def measure(self, words: Sequence[str], runs: int) -> Cost:
        """Return the cost of a command; its first run is not counted."""
        program = [sys.executable, "-m", "openstackclient.shell", *words]
        seconds = []
        for _ in range(runs + 1):
            self._server.clear()
            began = time.perf_counter()
            output = subprocess.run(  # noqa: S603
                program,
                check=True,
                capture_output=True,
                env=self._environment,
            ).stdout
            seconds.append(time.perf_counter() - began)
        return Cost(
            seconds=statistics.median(seconds[1:]),
            requests=len(self._server.requests()),
            rows=len(json.loads(output)) if "json" in words else 0,
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
    client = Client(server, place)
    costs = {}
    for name, words in COMMANDS.items():
        report(name)
        costs[name] = client.measure(words, options.runs)
    report("")
    yield f"{'':28}{'seconds':>9}{'ratio':>8}{'requests':>10}{'rows':>8}"
    for name, cost in costs.items():
        ratio = cost.seconds / costs[_BASE].seconds
        yield (
            f"{name:28}{cost.seconds:9.2f}{ratio:8.2f}{cost.requests:10}"
            f"{cost.rows:8}"
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
