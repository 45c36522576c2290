# SPDX-License-Identifier: Apache-2.0
"""Requests of the passes of ten thousand hosts, and a restart of all of them.

    python -m tests.benchmark.passes [--hosts 10000 --workers 16]

The simulation has a clock of its own. Each host has the schedule, the retries
and the back-off of the library (``placement_sync.daemon.loop.Schedule``,
``placement_sync.sync.sync_pass``). Placement is a queue with a number of
workers. The number of requests of a pass, and their seconds, are measured
first: passes of hosts of 8 cards over a real Placement, as they are while
nothing changes, and after a restart.
"""

import argparse
import dataclasses
import heapq
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator

from placement_sync.client import rest
from placement_sync.daemon import loop
from placement_sync.sync import sync_pass
from tests.benchmark import placement_calls
from tests.hosts import build

INTERVAL_S, DEBOUNCE_S, JITTER = 60.0, 0.5, 0.1
CARDS = 8
# Trait that cards get while their service is restarted.
_CHANGE = "CUSTOM_ACCELERATOR_NUMA_7"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Requests of a pass, and seconds of each request.

    ``first`` are those of a pass after a restart, ``changed`` of one that
    also writes each card, and ``later`` of a pass that finds no change.
    """

    first: int
    changed: int
    later: int
    seconds: float


@dataclasses.dataclass(kw_only=True)
class Traffic:
    """Requests that Placement got, by second, and results of the passes.

    ``longest_wait`` is that for an answer, ``failed`` the number of passes
    that failed; at ``recovered`` each host had made one that succeeded.
    """

    sent: dict[int, int] = dataclasses.field(default_factory=dict)
    longest_wait: float = 0.0
    failed: int = 0
    recovered: float = 0.0

    def peak(self, begin: float, end: float) -> int:
        """Return the largest number of requests in a second of a period."""
        seconds = range(int(begin), int(end))
        return max(self.sent.get(second, 0) for second in seconds)

    def mean(self, begin: float, end: float) -> float:
        """Return the requests per second of a period."""
        seconds = range(int(begin), int(end))
        return sum(self.sent.get(s, 0) for s in seconds) / len(seconds)


class Host:
    """One host: its schedule, and the state of its pass."""

    def __init__(self, now: float, first: int, later: int) -> None:
        self.schedule = loop.Schedule(INTERVAL_S, DEBOUNCE_S, JITTER, now)
        self._first, self._later = first, later
        self.failures, self.attempt = 0, 1
        self.started, self.remaining = now, 0
        self.has_passed = False

    def begin_pass(self, now: float) -> None:
        """Begin a pass; what a failed one has read is cached."""
        self.started, self.attempt = now, 1
        if not self.remaining:
            self.remaining = self._later if self.has_passed else self._first


class Simulation:
    """Hosts that start at given times, and a Placement.

    nova-compute makes its first pass at once if it has changed its providers
    at the start, else with the first interval.

    :param workers: requests that Placement serves at the same time.
    :param is_changed: whether hosts change their providers at the start.
    :param down: the period in which Placement refuses connections.
    """

    def __init__(
        self,
        starts: list[float],
        cost: Cost,
        workers: int,
        is_changed: bool = False,
        down: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.traffic = Traffic()
        self._cost, self._down = cost, down
        self._free = [0.0] * workers
        first = cost.changed if is_changed else cost.first
        self._hosts = [Host(start, first, cost.later) for start in starts]
        self._waiting = len(starts)
        if not is_changed:
            for host in self._hosts:
                host.schedule.end_pass(host.started, host.started, 0)
        self._events = [
            (host.schedule.due, number, True)
            for number, host in enumerate(self._hosts)
        ]
        heapq.heapify(self._events)

    def run(self, end: float) -> Traffic:
        """Advance the clock to ``end``, and return the traffic so far."""
        while self._events and self._events[0][0] < end:
            now, number, is_new = heapq.heappop(self._events)
            host = self._hosts[number]
            if is_new:
                host.begin_pass(now)
            then, is_new = self._send(host, now)
            heapq.heappush(self._events, (then, number, is_new))
        return self.traffic

    def _send(self, host: Host, now: float) -> tuple[float, bool]:
        """Send a request; return when the host acts again, and if anew."""
        begin, end = self._down
        if begin <= now < end:
            return self._fail(host, now)
        sent = self.traffic.sent
        sent[int(now)] = sent.get(int(now), 0) + 1
        answered = max(now, heapq.heappop(self._free)) + self._cost.seconds
        heapq.heappush(self._free, answered)
        wait = answered - now
        self.traffic.longest_wait = max(self.traffic.longest_wait, wait)
        if wait > rest.ANSWER_SECONDS:
            return self._fail(host, now + rest.ANSWER_SECONDS)
        host.remaining -= 1
        if host.remaining:
            return answered, False
        if not host.has_passed:
            host.has_passed, self._waiting = True, self._waiting - 1
            if not self._waiting:
                self.traffic.recovered = answered
        host.failures = 0
        host.schedule.end_pass(host.started, answered, 0)
        return host.schedule.due, True

    def _fail(self, host: Host, now: float) -> tuple[float, bool]:
        if host.attempt < sync_pass.ATTEMPTS:
            chance = random.random()  # noqa: S311
            delay = sync_pass.compute_delay(host.attempt, True, chance)
            host.attempt += 1
            return now + delay, False
        host.failures += 1
        self.traffic.failed += 1
        host.schedule.end_pass(host.started, now, host.failures)
        return host.schedule.due, True


def measure(directory: pathlib.Path, hosts: int, passes: int) -> Cost:
    """Return the cost of real passes of hosts of 8 cards.

    :param passes: of each host while nothing changes; one more after a
        restart.
    """
    tree = directory / "host"
    build.build(placement_calls.gpus(CARDS), tree)
    requests, seconds = 0, 0.0
    with placement_calls.running(directory, is_mariadb=False) as server:
        nodes = []
        for number in range(hosts):
            node = placement_calls.Node(server, f"host{number}", tree)
            node.read_all()
            node.run()
            nodes.append(node)
        for _ in range(passes):
            for node in nodes:
                count = node.run()
                requests, seconds = requests + 1, seconds + count.seconds
                later = count.reads + count.names + count.providers
        for node in nodes:
            node.restart()
            count = node.run()
            first = count.reads + count.names + count.providers
            requests, seconds = requests + first, seconds + count.seconds
        for node in nodes:
            node.restart()
            node.state = dataclasses.replace(
                node.state,
                devices=tuple(
                    dataclasses.replace(d, traits=d.traits | {_CHANGE})
                    for d in node.state.devices
                ),
            )
            count = node.run()
            changed = count.reads + count.providers
            requests += changed + count.names
            seconds += count.seconds
    return Cost(
        first=first,
        changed=changed,
        later=later,
        seconds=seconds / requests,
    )


def describe(cost: Cost, hosts: int, workers: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"a pass: {cost.later} requests, {cost.first} after a restart,"
        f" {cost.changed} if each card has changed;"
        f" {1000 * cost.seconds:.1f} ms each"
    )
    minute = 60.0
    at_once, never = [0.0] * hosts, (0.0, 0.0)
    steady = Simulation(at_once, cost, workers).run(30 * minute)
    yield (
        f"steady: {steady.mean(10 * minute, 30 * minute):.0f} requests/s,"
        f" peak {steady.peak(10 * minute, 30 * minute)},"
        f" {steady.mean(600, 1800) * cost.seconds:.1f} workers busy"
    )
    for label, is_changed, down in (
        ("restart at once", False, never),
        ("the same, each host changed", True, never),
        ("Placement down 10 min", False, (900.0, 1500.0)),
    ):
        simulation = Simulation(at_once, cost, workers, is_changed, down)
        traffic = simulation.run(40 * minute)
        begin = down[1] or traffic.recovered
        yield (
            f"{label}: all done after {traffic.recovered:.0f} s, peak"
            f" {traffic.peak(0, minute)} requests/s, longest wait"
            f" {traffic.longest_wait:.1f} s, {traffic.failed} failed passes;"
            f" then peak {traffic.peak(begin + minute, begin + 6 * minute)}"
        )


def main() -> int:
    """Measure, simulate and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument(
        "--milliseconds", type=float, help="of a request; measured without"
    )
    parser.add_argument("--real-hosts", type=int, default=20)
    parser.add_argument("--real-passes", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cost = measure(
            pathlib.Path(directory),
            arguments.real_hosts,
            arguments.real_passes,
        )
    print(f"measured: {1000 * cost.seconds:.1f} ms for a request")
    if arguments.milliseconds:
        cost = dataclasses.replace(cost, seconds=arguments.milliseconds / 1000)
    began = time.perf_counter()
    for line in describe(cost, arguments.hosts, arguments.workers):
        print(line, flush=True)
    print(f"simulated in {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
