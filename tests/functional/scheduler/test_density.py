# SPDX-License-Identifier: Apache-2.0
"""The benchmark of density replays a small trace."""

import csv
import pathlib
import random
import re
from collections.abc import Callable, Mapping, Sequence

import pytest

from nova_accel import model
from nova_accel.model import flavors
from tests.benchmark.density import (
    cards,
    profile_cards,
    profile_policies,
    profile_replay,
    trace_replay,
    traces,
    workloads,
)

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


@pytest.mark.parametrize(
    ("workload", "part"),
    [
        ("cpu250", lambda r: r.gpus == 0),
        ("gpushare80", lambda r: 0 < r.gpu_milli < traces.GPU_MILLI),
        ("multigpu70", lambda r: r.gpus > 1),
        ("gpuspec10", lambda r: r.gpus and r.models),
    ],
)
def test_workload_has_its_part(
    workload: str, part: Callable[[traces.Request], bool]
) -> None:
    rows = [
        {
            "cpu_milli": str(request.cpu_milli),
            "memory_mib": str(request.memory_mib),
            "num_gpu": str(request.gpus),
            "gpu_milli": str(request.gpu_milli),
            "gpu_spec": "|".join(request.models),
        }
        for request in _generate(1, 400)
    ]
    derived = traces.parse_requests(workloads.derive(rows, workload, 1))

    if workload == "cpu250":
        assert sum(map(part, derived)) == round(0.25 * len(derived))
    elif workload == "gpuspec10":
        total = sum(r.gpus > 0 for r in derived)
        assert sum(1 for r in derived if part(r)) == round(0.1 * total)
    else:
        total = sum(r.total for r in derived)
        of_part = sum(r.total for r in derived if part(r))
        percent = int(re.sub("[a-z]", "", workload))
        assert of_part / total == pytest.approx(percent / 100, abs=0.02)


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


# -- profiles of real models ------------------------------------------------


@pytest.mark.parametrize(("key", "layout"), profile_replay.MODELS)
def test_library_places_profiles_where_the_catalog_allows(
    key: str, layout: model.Layout
) -> None:
    cards_of = profile_cards.CardModel(key, layout)
    chance = random.Random(1)  # noqa: S311
    for _ in range(5):
        state = profile_cards.EMPTY
        fitting = list(cards_of.profiles)
        while fitting:
            name = chance.choice(fitting)
            start = cards_of.choose_start(state, name)
            assert start in cards_of.list_starts(state, name)
            state = profile_policies.add(state, name, start)
            assert cards_of.is_valid(state)
            fitting = [
                name
                for name in cards_of.profiles
                if cards_of.list_starts(state, name)
            ]
            assert fitting == [
                name
                for name in cards_of.profiles
                if cards_of.choose_start(state, name) is not None
            ]


@pytest.mark.parametrize("policy", profile_policies.POLICIES)
def test_moves_make_room(policy: str) -> None:
    """Two halves on two cards leave no room for a whole one."""
    cards_of = profile_cards.CardModel("A100", model.Layout.MIG)
    half, whole = "A100-3-20C", "A100-7-40C"
    requests = [
        profile_replay.Request(begin=b, end=e, profile=name, weight=1.0)
        for b, e, name in [
            *((0.0, 9.0 if n in (0, 2) else 1.0, half) for n in range(4)),
            (2.0, 9.0, whole),
        ]
    ]

    results = [
        profile_replay.replay(requests, cards_of, 2, policy, moves)
        for moves in (0, 1)
    ]

    assert [r.invalid for r in results] == [0, 0]
    assert results[1].refused <= results[0].refused
    if policy == "best fit":
        assert [r.refused for r in results] == [20.0, 0.0]


@pytest.mark.long
def test_profiles_of_a_trace(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "requests.csv"
    rows = [
        {
            "num_gpu": 1,
            "gpu_milli": chance,
            "creation_time": 0,
            "deletion_time": 60 + chance,
        }
        for chance in (130, 250, 470, 810, 1000)
    ]
    _write(trace, rows)
    words = f"{trace} --seeds 1 --requests 40 --workers 1".split()

    profile_replay.main(words)
    first = capsys.readouterr().out
    profile_replay.main(words)

    assert capsys.readouterr().out == first
    title, *lines = first.splitlines()
    assert title == "refused, % of the memory; moves: 0, 1, 3"
    assert len(lines) == 27
    # Refused share, moves for each 1,000 requests, invalid placements.
    assert all(line.count(", 0)") == 3 for line in lines)
