# SPDX-License-Identifier: Apache-2.0
"""GET /allocation_candidates: a provider per card beside one per VF.

    python -m tests.benchmark.candidates [--hosts 1000 --vfs 16 --mariadb]

The same hosts full of GPUs are created in Placement in this library's form,
then in Nova's, and the same servers are requested: with one vGPU on any
host, with two on a few hosts. A real Placement runs in a process of its own
and is called over HTTP. The output has the median seconds, the candidates
and the bytes of the answer, and the ratio of Nova's to this library's.

Nova asks with a limit of 1000 ([scheduler] max_placement_results), and
Placement computes all candidates before it applies the limit. Two vGPUs of n
VFs are n * (n - 1) candidates a host, hence the few hosts.
"""

import argparse
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import requests

from nova_accel.model import names
from placement_sync.client import nova_client
from tests.benchmark import clouds, placement_calls
from tests.functional.sync.support import servers

# Resources of a server besides its vGPUs.
_REST = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
_VGPU_MB = 8192
LIMIT = 1000
# A longer request needs no exact time.
_SECONDS = 1800.0

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One request of a server."""

    name: str
    vgpus: int
    limit: int = 0

    def query(self, layout: clouds.Layout) -> str:
        """Return the query that Nova sends for a flavor with groups."""
        amounts = {names.GPU_CLASS: 1}
        if not layout.vfs:
            amounts[names.GPU_MEMORY_CLASS] = _VGPU_MB
        traits = [clouds.PROFILE_TRAIT]
        if self.vgpus > 1:
            traits.append(clouds.SAMPLE)
        parts = [f"resources={_amounts(_REST)}"]
        for suffix in ("_A", "_B")[: self.vgpus]:
            parts.append(f"resources{suffix}={_amounts(amounts)}")
            parts.append(f"required{suffix}={','.join(traits)}")
        if self.vgpus > 1:
            parts.append("group_policy=none")
        if self.limit:
            parts.append(f"limit={self.limit}")
        return f"/allocation_candidates?{'&'.join(parts)}"


CASES = (
    Case(name=f"one vGPU, limit {LIMIT}", vgpus=1, limit=LIMIT),
    Case(name="one vGPU, no limit", vgpus=1),
    Case(name=f"two vGPUs, limit {LIMIT}", vgpus=2, limit=LIMIT),
    Case(name="two vGPUs, no limit", vgpus=2),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Measurements of one layout in one case."""

    seconds: float = 0.0
    candidates: int = 0
    size: int = 0
    providers: int = 0


def _amounts(resources: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{units}" for name, units in resources.items())


def request_candidates(server: servers.Server, path: str, runs: int) -> Result:
    """Return the median of several runs."""
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        answer = requests.get(
            server.url + path,
            headers={
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement "
                + nova_client.MICROVERSION,
            },
            timeout=_SECONDS,
        )
        took.append(time.perf_counter() - began)
        answer.raise_for_status()
    decoded = answer.json()
    return Result(
        seconds=statistics.median(took),
        candidates=len(decoded["allocation_requests"]),
        providers=len(decoded["provider_summaries"]),
        size=len(answer.content),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of hosts, of hosts for two vGPUs, and of runs per case."""

    hosts: int
    pairs: int
    runs: int


def measure(
    layout: clouds.Layout, size: Size, is_mariadb: bool, report: Report
) -> Iterator[Result]:
    """Yield the number of providers, then a result per case."""
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(pathlib.Path(where), is_mariadb) as server,
    ):
        cloud = clouds.Cloud(server, layout)
        for count in cloud.fill(size.hosts, size.pairs):
            report(f"{layout.name}: {count} of {size.hosts} hosts")
        yield Result(providers=cloud.providers)
        for case in CASES:
            report(f"{layout.name}: {case.name}")
            yield request_candidates(server, case.query(layout), size.runs)


def compare(
    layouts: Sequence[clouds.Layout],
    size: Size,
    is_mariadb: bool,
    report: Report,
) -> Iterator[str]:
    """Yield the lines of the table."""
    accel_results, nova_results = (
        list(measure(layout, size, is_mariadb, report)) for layout in layouts
    )
    yield f"{'':30}{layouts[1].name:>14}{layouts[0].name:>14}{'ratio':>9}"
    yield _row(
        "providers",
        nova_results[0].providers,
        accel_results[0].providers,
        ",d",
    )
    for case, accel, nova in zip(
        CASES, accel_results[1:], nova_results[1:], strict=True
    ):
        yield case.name
        yield _row("  seconds", nova.seconds, accel.seconds, ".3f")
        yield _row("  candidates", nova.candidates, accel.candidates, ",d")
        yield _row("  summaries", nova.providers, accel.providers, ",d")
        yield _row("  bytes", nova.size, accel.size, ",d")


def _row(label: str, nova_value: float, accel_value: float, form: str) -> str:
    ratio = f"{nova_value / accel_value:8.1f}x" if accel_value else "      --"
    return f"{label:30}{nova_value:>14{form}}{accel_value:>14{form}}{ratio:>9}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--vfs", type=int, default=16, help="per card")
    parser.add_argument(
        "--pairs", type=int, default=4, help="hosts asked for two vGPUs"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mariadb", action="store_true")
    options = parser.parse_args(words)
    lines = compare(
        (
            clouds.accel_layout(options.cards),
            clouds.nova_layout(options.cards, options.vfs),
        ),
        Size(hosts=options.hosts, pairs=options.pairs, runs=options.runs),
        options.mariadb,
        clouds.progress,
    )
    for number, line in enumerate(lines):
        if not number:
            clouds.progress("")
            print(
                f"\n{options.hosts} hosts of {options.cards} cards of"
                f" {options.vfs} VFs, two vGPUs on {options.pairs} of them"
            )
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
