# SPDX-License-Identifier: Apache-2.0
"""The benchmark of density replays a small trace."""

import csv
import pathlib
import random
import re
from collections.abc import Mapping, Sequence

import pytest

from nova_accel.model import flavors
from tests.benchmark.density import cards, trace_replay, traces

_NODES = [
    traces.Node(
        name=f"node-{number:02}",
        cpu_milli=cpu,
        memory_mib=cpu * 4,
        gpus=gpus,
        model=model,
    )
    for number, (cpu, gpus, model) in enumerate(
        [(64000, 2, "A"), (96000, 8, "B"), (32000, 4, "A"), (96000, 0, "")]
    )
]


def _generate(seed: int, count: int) -> list[traces.Request]:
    chance = random.Random(seed)  # noqa: S311
    return [
        traces.Request(
            cpu_milli=chance.randint(1, 12) * 1000,
            memory_mib=chance.randint(1, 32) * 1024,
            gpus=gpus,
            gpu_milli=chance.randint(1, 20) * 50
            if gpus == 1
            else 1000 * (gpus > 0),
            models=frozenset({"A"} if gpus and chance.random() < 0.2 else ()),
        )
        for gpus in chance.choices([0, 1, 2, 4], [1, 8, 1, 1], k=count)
    ]


def _write(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("packing", trace_replay.POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_replay_places_nothing_invalid(
    seed: int, packing: flavors.Packing
) -> None:
    arrivals = _generate(seed, 120)

    result = trace_replay.replay(_NODES, arrivals, packing)

    assert (result.invalid, result.placed + result.refused) == (0, 120)
    assert result == trace_replay.replay(_NODES, arrivals, packing)


def test_judge_counts_invalid_placements() -> None:
    half = traces.Request(cpu_milli=1000, memory_mib=1, gpus=1, gpu_milli=600)
    only_b = traces.Request(
        cpu_milli=1000,
        memory_mib=1,
        gpus=2,
        gpu_milli=1000,
        models=frozenset("B"),
    )
    history = [
        trace_replay.Placed(half, 0, (0,)),
        trace_replay.Placed(half, 0, (0,)),
        trace_replay.Placed(half, 0, ()),
        trace_replay.Placed(only_b, 1, (0, 0)),
        trace_replay.Placed(only_b, 2, (0, 1)),
    ]

    assert trace_replay.count_invalid(_NODES, history[:1]) == 0
    assert trace_replay.count_invalid(_NODES, history) == 4


def test_arrivals_reach_the_load() -> None:
    requests = _generate(1, 20)
    largest = max(r.total for r in requests)

    arrivals = traces.draw_arrivals(requests, 14000, 1.3, random.Random(5))  # noqa: S311

    requested = sum(r.total for r in arrivals)
    assert 1.3 * 14000 - largest <= requested <= 1.3 * 14000 + largest


def test_trace_of_files(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, requests, expected = (
        tmp_path / f"{name}.csv" for name in ("nodes", "requests", "expected")
    )
    _write(
        nodes,
        [
            {
                "sn": n.name,
                "cpu_milli": n.cpu_milli,
                "memory_mib": n.memory_mib,
                "gpu": n.gpus,
                "model": n.model,
            }
            for n in _NODES
        ],
    )
    _write(
        requests,
        [
            {
                "cpu_milli": r.cpu_milli,
                "memory_mib": r.memory_mib,
                "num_gpu": r.gpus,
                "gpu_milli": r.gpu_milli,
                "gpu_spec": "|".join(r.models),
            }
            for r in _generate(2, 30)
        ],
    )
    published = [("requests", 90), ("requests", 92), ("others", 10)]
    _write(
        expected,
        [
            {"workload": name, "sc_policy": "06-FGD", "130": share}
            for name, share in published
        ],
    )

    cards.main(
        f"--trace {nodes} {requests} --expected {expected}"
        " --seeds 2 --workers 1".split()
    )

    title, *rows = capsys.readouterr().out.splitlines()
    assert title == "requests: % of all GPUs allocated at 130% load"
    assert rows[0].split() == ["06-FGD", "91.00"]
    assert [row.split()[0] for row in rows[1:]] == [
        packing.value for packing in trace_replay.POLICIES
    ]
    assert all(re.search(r" 0 invalid placements", row) for row in rows[1:])
    assert traces.read_requests(requests) == _generate(2, 30)
    assert traces.read_nodes(nodes) == _NODES[:3]
