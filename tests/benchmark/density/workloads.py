# SPDX-License-Identifier: Apache-2.0
"""Workloads of FGD's paper, drawn from a trace of the same form.

    python -m tests.benchmark.density.workloads REQUESTS.csv gpushare40 OUT.csv

The paper (USENIX ATC 2023) changes one part of the trace ``default``:

- ``cpuN``: N thousandths of all requests are those without GPUs (the
  published results of ``default``, with 133, are between ``cpu100`` and
  ``cpu200``);
- ``gpushareN``: N % of the requested GPUs are those of requests for a part of
  a GPU, with as many requests for GPUs as before;
- ``multigpuN``: N % of the requested GPUs are those of requests for several;
- ``gpuspecN``: N % of the requests for GPUs name models. REQUESTS has at
  least as many that do, as ``gpuspec33`` has.

The files of the authors were drawn by chance, too, so others than theirs.
"""

import argparse
import csv
import pathlib
import random
import re
from collections.abc import Callable, Sequence

from tests.benchmark.density.traces import GPU_MILLI

Row = dict[str, str]


def _count_milli(row: Row) -> int:
    return int(row["num_gpu"]) * int(float(row["gpu_milli"] or 0))


def _is_shared(row: Row) -> bool:
    return row["num_gpu"] == "1" and _count_milli(row) < GPU_MILLI


def change_cpu(rows: list[Row], part: float, chance: random.Random) -> None:
    """Draw or remove requests without GPUs."""
    without = [row for row in rows if row["num_gpu"] == "0"]
    rows[:] = [row for row in rows if row["num_gpu"] != "0"]
    number = round(len(rows) * part / (1 - part))
    rows += chance.sample(without, min(number, len(without)))
    rows += chance.choices(without, k=max(0, number - len(without)))


def change_shared(rows: list[Row], part: float, chance: random.Random) -> None:
    """Replace requests for whole GPUs by requests for a part of one."""
    shared = [row for row in rows if _is_shared(row)]
    whole = [i for i, r in enumerate(rows) if r["num_gpu"] != "0"]
    whole = [i for i in whole if not _is_shared(rows[i])]
    chance.shuffle(whole)
    of_shared = sum(map(_count_milli, shared))
    total = sum(map(_count_milli, rows))
    for index in whole:
        if of_shared >= part * total:
            break
        row = chance.choice(shared)
        total += _count_milli(row) - _count_milli(rows[index])
        of_shared += _count_milli(row)
        rows[index] = row


def change_several(
    rows: list[Row], part: float, chance: random.Random
) -> None:
    """Add requests for several GPUs."""
    several = [row for row in rows if int(row["num_gpu"]) > 1]
    of_several = sum(map(_count_milli, several))
    total = sum(map(_count_milli, rows))
    while of_several < part * total:
        row = chance.choice(several)
        rows.append(row)
        of_several += _count_milli(row)
        total += _count_milli(row)


def change_models(rows: list[Row], part: float, chance: random.Random) -> None:
    """Remove the models of so many requests that the others are the part."""
    of_gpus = [row for row in rows if row["num_gpu"] != "0"]
    named = [row for row in of_gpus if row["gpu_spec"]]
    for row in chance.sample(named, len(named) - round(part * len(of_gpus))):
        row["gpu_spec"] = ""


CHANGES: dict[str, Callable[[list[Row], float, random.Random], None]] = {
    "cpu": change_cpu,
    "gpushare": change_shared,
    "multigpu": change_several,
    "gpuspec": change_models,
}


def derive(rows: Sequence[Row], workload: str, seed: int) -> list[Row]:
    """Return the requests of a workload, by its name.

    :raises ValueError: the name is not known.
    """
    match = re.fullmatch(f"({'|'.join(CHANGES)})([0-9]+)", workload)
    if match is None:
        raise ValueError(workload)
    derived = [dict(row) for row in rows]
    chance = random.Random(seed)  # noqa: S311
    whole = 1000 if match[1] == "cpu" else 100
    CHANGES[match[1]](derived, int(match[2]) / whole, chance)
    return derived


def main(words: Sequence[str] | None = None) -> None:
    """Write the file of a workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=pathlib.Path)
    parser.add_argument("workload")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    with options.requests.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(derive(rows, options.workload, options.seed))


if __name__ == "__main__":
    main()
