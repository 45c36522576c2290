# SPDX-License-Identifier: Apache-2.0
"""Traces of GPU clusters: nodes, requests, and arrivals drawn from them.

The CSV files are in the form of Alibaba's ``cluster-trace-gpu-v2023``. Columns
that the replay needs: of nodes ``sn``, ``cpu_milli``, ``memory_mib``, ``gpu``
and ``model``; of requests ``cpu_milli``, ``memory_mib``, ``num_gpu``,
``gpu_milli`` and, if they want some models only, ``gpu_spec``.
"""

import collections
import csv
import dataclasses
import pathlib
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence

# Units of one GPU in a trace.
GPU_MILLI = 1000
_LOAD = "130"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a trace; CPU in thousandths of a core, memory in MiB."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a trace: a share of one GPU, or several whole ones.

    ``models`` are those it accepts, empty for all.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """Return the requested thousandths of GPUs."""
        return self.gpus * self.gpu_milli


def _read_rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_nodes(path: pathlib.Path) -> list[Node]:
    """Return the nodes with GPUs, sorted by name."""
    nodes = [
        Node(
            name=row["sn"],
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            gpus=int(row["gpu"]),
            model=row["model"],
        )
        for row in _read_rows(path)
    ]
    return sorted((n for n in nodes if n.gpus), key=lambda n: n.name)


def read_requests(path: pathlib.Path) -> list[Request]:
    """Return the requests, in the order of the file."""
    return parse_requests(_read_rows(path))


def parse_requests(rows: Iterable[Mapping[str, str]]) -> list[Request]:
    """Return the requests of a file's rows."""
    return [_parse_request(row) for row in rows]


def _parse_request(row: Mapping[str, str]) -> Request:
    gpus = int(row["num_gpu"] or 0)
    share = int(float(row["gpu_milli"] or 0)) if gpus == 1 else GPU_MILLI
    return Request(
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        gpus=gpus,
        gpu_milli=share if gpus else 0,
        models=frozenset(filter(None, row.get("gpu_spec", "").split("|"))),
    )


def draw_arrivals(
    requests: Sequence[Request],
    capacity: int,
    load: float,
    chance: random.Random,
) -> list[Request]:
    """Return requests in random order that ask for ``load`` x ``capacity``.

    All requests of the trace arrive; then requests drawn from it are added,
    or taken out, as the simulator of FGD does (its option
    ``workload-tuning-ratio``).

    :param capacity: of all GPUs, in thousandths.
    """
    arrivals = list(requests)
    chance.shuffle(arrivals)
    requested = sum(r.total for r in arrivals)
    while requested > load * capacity:
        removed = arrivals.pop(chance.randrange(len(arrivals)))
        requested -= removed.total
    while True:
        request = chance.choice(requests)
        if requested + request.gpu_milli > load * capacity:
            return arrivals
        requested += request.total
        arrivals.append(request)


def read_published(path: pathlib.Path, workload: str) -> dict[str, float]:
    """Return the published mean share at 130 % load of each policy.

    In percent of all GPUs, from a CSV file in the form of FGD's
    ``analysis_allo_discrete.csv``.

    :param workload: name of the file of requests, without its ending.
    """
    shares: dict[str, list[float]] = collections.defaultdict(list)
    for row in _read_rows(path):
        if row["workload"] == workload:
            shares[row["sc_policy"]].append(float(row[_LOAD]))
    return {name: statistics.fmean(v) for name, v in sorted(shares.items())}
