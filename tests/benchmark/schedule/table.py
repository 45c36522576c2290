# SPDX-License-Identifier: Apache-2.0
"""Table of the costs of scheduling, compared with the goals."""

import argparse
import dataclasses
import json
import math
import resource
from collections.abc import Iterator, Mapping, Sequence

from tests.benchmark.schedule import goals
from tests.benchmark.schedule.costs import (
    ACCEL,
    ALONE,
    CASES,
    HEADER,
    Cost,
    measure,
    measure_before,
)

# Processor times below are not compared. The kernel counts Placement's in
# ticks of 0.01 s: of a few ticks the growth is chance.
_LEAST_S = {goals.PLACEMENT: 0.05, goals.SCHEDULER: 0.01}
_Costs = Mapping[str, Cost]


def find_missed(name: str, costs: Mapping[str, Cost]) -> Iterator[str]:
    """Yield the goals that a case misses."""
    alone, accel = costs[ALONE], costs[ACCEL]
    added = accel.requests - alone.requests
    if added > (limit := goals.REQUESTS[name][-1].limit):
        yield f"{name}: {added:.0f} requests are added, goal {limit:.0f}"
    for goal in goals.RATIOS.get(name, ())[-1:]:
        for what, ratio in (
            ("seconds", accel.seconds / alone.seconds),
            ("processor time", accel.processor / alone.processor),
        ):
            # Placement's own time differs by some hundredths.
            if round(ratio, 2) > goal.limit:
                yield f"{name}: {what} x {ratio:.2f}, goal {goal.limit}"


def find_growth(few: _Costs, many: _Costs, factor: float) -> dict[str, float]:
    """Return the exponents of both services with the number of hosts.

    Placement's is that of its processor time, which is that of both sides,
    the scheduler's of the time in filter and weigher: it varies less than the
    difference of both sides, which are ten times as much.

    :param factor: how many times more hosts ``many`` has.
    """
    times = [
        {
            goals.PLACEMENT: min(cost.placement for cost in costs.values()),
            goals.SCHEDULER: costs[ACCEL].own,
        }
        for costs in (few, many)
    ]
    before, after = (
        {
            service: max(seconds, _LEAST_S[service])
            for service, seconds in each.items()
        }
        for each in times
    )
    return {
        service: math.log(after[service] / seconds) / math.log(factor)
        for service, seconds in before.items()
    }


def parse_words(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--hosts",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[1000],
        help="one number, or several to compare",
    )
    parser.add_argument(
        "--servers", type=int, default=8, help="of a multi-create"
    )
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sides", default=f"{ALONE},{ACCEL}")
    parser.add_argument("--before", help="another checkout")
    parser.add_argument("--mariadb", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--check", action="store_true", help="fail if a goal is missed"
    )
    return parser.parse_args(words)


def measure_all(
    options: argparse.Namespace,
) -> Iterator[tuple[int, str, dict[str, Cost]]]:
    """Yield number of hosts, case and costs, and print them as a table."""
    for hosts in options.hosts:
        if not options.json:
            print(f"{hosts} hosts, {options.cards} cards each")
        for name in options.cases.split(","):
            costs = measure(CASES[name], hosts, options)
            if options.before:
                costs |= measure_before(name, hosts, options)
            if not options.json:
                print(f"{name}\n{HEADER}")
                for label, cost in costs.items():
                    print(cost.row(label), flush=True)
            yield hosts, name, costs


def find_missed_goals(
    measured: Mapping[int, Mapping[str, _Costs]],
) -> Iterator[str]:
    """Yield the goals that are missed; print growth and memory."""
    for by_case in measured.values():
        for name, costs in by_case.items():
            yield from find_missed(name, costs)
    fewest, most = min(measured), max(measured)
    for name, costs in measured[most].items() if fewest < most else ():
        growth = find_growth(measured[fewest][name], costs, most / fewest)
        for service, exponent in growth.items():
            print(f"{name}: {service} grows with hosts ^ {exponent:.2f}")
            limit = goals.GROWTH[service][-1].limit
            if round(exponent, 1) > limit:
                yield f"{name}: {service} grows faster than ^ {limit}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"peak memory {peak} MiB")
    if peak > (limit := goals.MEMORY_MIB[-1].limit):
        yield f"peak memory {peak} MiB, goal {limit}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    options = parse_words(words)
    measured: dict[int, dict[str, dict[str, Cost]]] = {}
    for hosts, name, costs in measure_all(options):
        measured.setdefault(hosts, {})[name] = costs
    if options.json:
        print(json.dumps(measured, default=dataclasses.asdict))
        return 0
    missed = list(find_missed_goals(measured))
    print("\n".join(missed))
    return int(options.check and bool(missed))
