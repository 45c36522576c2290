# SPDX-License-Identifier: Apache-2.0
"""GET /allocation_candidates: a provider per card beside one per VF.

    python -m tests.benchmark.candidates [--hosts 1000 --vfs 16 --mariadb]

The same hosts full of GPUs are told to Placement in this library's form,
then in Nova's, and the same servers are asked for: with one vGPU on any
host, with two on a few of them. Placement is the real one, in a process of
its own, over real HTTP. Printed are the median seconds, the candidates and
the bytes of the answer, and how many times less ours are.

Nova asks with a limit of 1000 ([scheduler] max_placement_results), and
Placement works all candidates out before it cuts them off. Two vGPUs of n
VFs are n * (n - 1) candidates a host, hence the few hosts.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import requests

from filters.fit import fact_reader
from nova_accel.model import names
from tests.benchmark import clouds, placement_calls
from tests.functional.sync.support import servers

# What a server wants besides its vGPUs.
_REST = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
_VGPU_MB = 8192
LIMIT = 1000
# A request that takes longer says enough.
_SECONDS = 1800.0

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is asked for."""

    name: str
    vgpus: int
    limit: int = 0

    def query(self, layout: clouds.Layout) -> str:
        """Return the query, as Nova puts it for a flavor with groups."""
        amounts = {names.GPU_CLASS: 1}
        if not layout.vfs:
            amounts[names.GPU_MEMORY_CLASS] = _VGPU_MB
        traits = [clouds.WANTED]
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
    """One side of a row."""

    seconds: float = 0.0
    candidates: int = 0
    size: int = 0
    providers: int = 0


def _amounts(resources: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{units}" for name, units in resources.items())


def ask(server: servers.Server, path: str, runs: int) -> Result:
    """Return the median of several runs."""
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        answer = requests.get(
            server.url + path,
            headers={
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement "
                + fact_reader.MICROVERSION,
            },
            timeout=_SECONDS,
        )
        took.append(time.perf_counter() - began)
        answer.raise_for_status()
    found = answer.json()
    return Result(
        seconds=statistics.median(took),
        candidates=len(found["allocation_requests"]),
        providers=len(found["provider_summaries"]),
        size=len(answer.content),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: hosts, those with pairs, runs of each case."""

    hosts: int
    pairs: int
    runs: int


def measure(
    layout: clouds.Layout, size: Size, is_mariadb: bool, tell: Tell
) -> Iterator[Result]:
    """Yield how many providers there are, then a result per case."""
    with (
        tempfile.TemporaryDirectory() as where,
        placement_calls.running(pathlib.Path(where), is_mariadb) as server,
    ):
        cloud = clouds.Cloud(server, layout)
        for count in cloud.fill(size.hosts, size.pairs):
            tell(f"{layout.name}: {count} of {size.hosts} hosts")
        yield Result(providers=cloud.providers)
        for case in CASES:
            tell(f"{layout.name}: {case.name}")
            yield ask(server, case.query(layout), size.runs)


def compare(
    layouts: Sequence[clouds.Layout],
    size: Size,
    is_mariadb: bool,
    tell: Tell,
) -> Iterator[str]:
    """Yield the lines of the table."""
    ours, theirs = (
        list(measure(layout, size, is_mariadb, tell)) for layout in layouts
    )
    yield f"{'':30}{layouts[1].name:>14}{layouts[0].name:>14}{'ratio':>9}"
    yield _row("providers", theirs[0].providers, ours[0].providers, ",d")
    for case, mine, other in zip(CASES, ours[1:], theirs[1:], strict=True):
        yield case.name
        yield _row("  seconds", other.seconds, mine.seconds, ".3f")
        yield _row("  candidates", other.candidates, mine.candidates, ",d")
        yield _row("  providers told", other.providers, mine.providers, ",d")
        yield _row("  bytes", other.size, mine.size, ",d")


def _row(what: str, theirs: float, mine: float, form: str) -> str:
    ratio = f"{theirs / mine:8.1f}x" if mine else "      --"
    return f"{what:30}{theirs:>14{form}}{mine:>14{form}}{ratio:>9}"


def progress(words: str) -> None:
    """Say on one line of the terminal how far it is."""
    print(f"\r{words:50}\r", end="", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
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
    asked = parser.parse_args(given)
    lines = compare(
        (clouds.ours(asked.cards), clouds.novas(asked.cards, asked.vfs)),
        Size(hosts=asked.hosts, pairs=asked.pairs, runs=asked.runs),
        asked.mariadb,
        progress,
    )
    for number, line in enumerate(lines):
        if not number:
            progress("")
            print(
                f"\n{asked.hosts} hosts of {asked.cards} cards of"
                f" {asked.vfs} VFs, two vGPUs on {asked.pairs} of them"
            )
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
