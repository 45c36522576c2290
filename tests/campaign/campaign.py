# SPDX-License-Identifier: Apache-2.0
"""Worker processes of the fault campaign, and their report."""

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import itertools
import json
import logging
import multiprocessing
import os
import queue
import random
import signal
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tests.functional.nova  # noqa: F401 - decides about Nova's threads
from tests.campaign import judge as judges
from tests.campaign import life as lives
from tests.campaign import world as worlds

#: Lives that one world serves: a short campaign has all technologies.
_LIVES_OF_A_WORLD = 5
#: Runs of a schedule that shrinking it may take.
_MOST_TRIALS = 40
_TICK_S = 5.0
_KINDS = (
    "not undone",
    "leaked",
    "lost",
    "double",
    "unscrubbed",
    "oversold",
    "stuck",
    "exposed",
    "unusable",
)
#: A life takes some seconds, or a minute on a busy machine.
_PATIENCE_S = 240.0


@dataclasses.dataclass
class Report:
    """Result of one life."""

    life: int
    technology: str
    struck: list[str]
    findings: list[str]
    schedule: str
    log: list[str]
    of_nova: list[str]
    set_aside: int
    seconds: float
    is_clean: bool = True


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Lives of one technology; a schedule instead of a random one."""

    seed: int
    technology: str
    lives: tuple[int, ...]
    schedule: str = ""


def live(world: worlds.World, chunk: Chunk, number: int) -> Report:
    """Run one life in a world where nothing is held."""
    began = time.monotonic()
    # Nova's scheduler draws, too.
    random.seed(f"{chunk.seed}:{number}")
    life = lives.Life(world)
    judge = judges.Judge(life)
    try:
        if chunk.schedule:
            life.replay(lives.from_text(chunk.schedule))
        else:
            rng = random.Random(f"{chunk.seed}:{number}")  # noqa: S311
            life.live(rng)
        findings = list(judge.judge())
        findings += [f"error: {defect}" for defect in life.defects]
        is_clean = judge.clean()
    except Exception:
        findings = [f"error: {traceback.format_exc()}"]
        is_clean = False
    return Report(
        life=number,
        technology=chunk.technology,
        struck=life.struck,
        findings=findings,
        schedule=lives.to_text(life.steps),
        log=life.log,
        of_nova=judge.of_nova,
        set_aside=judge.set_aside,
        seconds=time.monotonic() - began,
        is_clean=is_clean,
    )


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """End the simulated hosts below a life that hangs: it fails then.

    A write to a simulated kernel may wait for ever, as to a real one.
    """
    timer = threading.Timer(_PATIENCE_S, _end_hosts)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_hosts() -> None:
    faulthandler.dump_traceback()
    for path in Path("/proc/self/task").glob("*/children"):
        for child in path.read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"fakehost" in command:
                os.kill(int(child), signal.SIGKILL)


def in_a_world(technology: str, body: Callable[[worlds.World], None]) -> None:
    """Start Nova on two hosts, do something with it, and end it.

    :raises RuntimeError: it does not start, or ``body`` failed.
    """
    kind = type(
        "World",
        (worlds.World,),
        {"technology": worlds.TECHNOLOGIES[technology], "body": body},
    )
    # oslo.db draws a name of each database: a life may have set the seed.
    random.seed()
    result = unittest.TestResult()
    kind("runTest").run(result)
    for _, text in (*result.errors, *result.failures):
        raise RuntimeError(text)


def live_all(chunk: Chunk, report_life: Callable[[Report], None]) -> None:
    """Run the lives of a chunk; a world that is not clean is replaced."""
    waiting = list(chunk.lives)

    def body(world: worlds.World) -> None:
        while waiting:
            with _watched():
                report = live(world, chunk, waiting.pop(0))
            report_life(report)
            if not report.is_clean:
                return

    while waiting:
        in_a_world(chunk.technology, body)


# -- shrinking ---------------------------------------------------------------


def shrink(chunk: Chunk, schedule: str) -> str:
    """Return a shorter schedule that fails as well."""
    best = lives.from_text(schedule)
    trials = itertools.count()
    tried: set[str] = set()

    def fails(steps: list[lives.Step]) -> bool:
        text = lives.to_text(steps)
        if text in tried or next(trials) >= _MOST_TRIALS:
            return False
        tried.add(text)
        reports: list[Report] = []
        trial = dataclasses.replace(chunk, lives=(0,), schedule=text)
        live_all(trial, reports.append)
        return bool(reports[0].findings)

    is_shorter = True
    while is_shorter:
        is_shorter = False
        for steps in _shorter(best):
            if fails(steps):
                best, is_shorter = steps, True
                break
    return lives.to_text(best)


def _shorter(steps: list[lives.Step]) -> Iterator[list[lives.Step]]:
    """Yield a schedule without one of its steps, or one of its faults.

    A server keeps its number: its boot is never left out.
    """
    for number in reversed(range(len(steps))):
        rest = [*steps[:number], *steps[number + 1 :]]
        if steps[number].name != "boot" and rest:
            yield rest
    for number, step in enumerate(steps):
        for fault in step.faults:
            faults = tuple(f for f in step.faults if f != fault)
            shorter = dataclasses.replace(step, faults=faults)
            yield [*steps[:number], shorter, *steps[number + 1 :]]
        if step.meanwhile is not None:
            shorter = dataclasses.replace(step, meanwhile=None)
            yield [*steps[:number], shorter, *steps[number + 1 :]]
        if step.further:
            shorter = dataclasses.replace(step, further=0)
            yield [*steps[:number], shorter, *steps[number + 1 :]]


# -- processes ---------------------------------------------------------------


def _write_log(path: Path | None) -> None:
    """Append what Nova and the library log to a file; without one, no log.

    Nova's harness replaces the handlers of the root logger for each life.
    """
    if path is None:
        logging.disable(logging.CRITICAL)
        return
    handler = logging.FileHandler(path)
    form = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    handler.setFormatter(logging.Formatter(form))
    for name in ("nova", "nova_accel", "placement_sync", "virt_hooks"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)


def _work(chunks: Any, reports: Any, is_over: Any, log: Path | None) -> None:
    """Run chunks until there are enough."""
    _write_log(log)
    parent = os.getppid()

    def put_report(report: Report) -> None:
        reports.put(report)
        if is_over.is_set() or os.getppid() != parent:
            raise KeyboardInterrupt

    while not is_over.is_set():
        chunk = chunks.get()
        try:
            live_all(chunk, put_report)
        except KeyboardInterrupt:
            return
        except Exception:
            reports.put(traceback.format_exc())


def _chunks(options: argparse.Namespace) -> Iterator[Chunk]:
    """Yield chunks without end; life ``k`` is always of one technology."""
    names = list(worlds.TECHNOLOGIES)
    chosen = options.technology or names
    for start in itertools.count(0, _LIVES_OF_A_WORLD):
        for place, name in enumerate(names):
            numbers = range(start, start + _LIVES_OF_A_WORLD)
            if name in chosen:
                yield Chunk(
                    options.seed,
                    name,
                    tuple(len(names) * n + place for n in numbers),
                )


class Tally:
    """Sums of the reports so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Count nothing yet."""
        self._options, self._began = options, time.monotonic()
        #: Faults that struck, by technology and kind.
        self.struck: collections.Counter[tuple[str, str]] = (
            collections.Counter()
        )
        self.lives: collections.Counter[str] = collections.Counter()
        self.findings: collections.Counter[str] = collections.Counter()
        self.of_nova = self.set_aside = self.failed = 0

    def add(self, report: Report) -> None:
        """Count a life, and print it if it failed."""
        self.lives[report.technology] += 1
        for line in report.struck:
            kind = line.partition(":")[0]
            self.struck[report.technology, kind] += 1
        self.of_nova += len(report.of_nova)
        self.set_aside += report.set_aside
        for line in report.findings:
            self.findings[line.partition(":")[0]] += 1
        if report.findings:
            self.failed += 1
            self.show(report)

    def show(self, report: Report) -> None:
        """Print a life, and how to run it again."""
        seed = self._options.seed
        verdict = "FAILED" if report.findings else "ok"
        print(f"\n{verdict}: --seed {seed} --life {report.life}", end=" ")
        print(f"({report.technology}, {report.seconds:.1f} s)")
        for line in report.findings:
            print(f"    {line[:400]}")
        for line in report.log:
            print(f"      {line}")
        print(
            f"    --technology {report.technology}"
            f" --schedule '{report.schedule}'",
            flush=True,
        )
        if self._options.report is not None:
            plain = dataclasses.asdict(report) | {"seed": seed}
            with self._options.report.open("a") as file:
                file.write(json.dumps(plain) + "\n")

    def progress(self) -> None:
        """Print one line of how far it is."""
        seconds = time.monotonic() - self._began
        print(
            f"{seconds:6.0f} s: {self.lives.total()} lives,"
            f" {self.struck.total()} of {self._options.faults} faults struck,"
            f" {self.failed} lives failed {dict(self.findings)}",
            flush=True,
        )

    def summary(self) -> None:
        """Print the result."""
        print(f"\nseed {self._options.seed}")
        self.progress()
        self._print_struck()
        for kind in _KINDS:
            print(f"{kind}: {self.findings.pop(kind, 0)}")
        if self.findings:
            print(f"other: {dict(self.findings)}")
        print(f"devices set aside, healed after the life: {self.set_aside}")
        print(f"left by Nova itself, and tidied: {self.of_nova}", flush=True)

    def _print_struck(self) -> None:
        """Print the faults that struck, a line for each technology."""
        kinds = sorted({kind for _, kind in self.struck})
        print(_row("technology", ["lives", *kinds, "all"]))
        for name, lived in self.lives.items():
            counts = [self.struck[name, kind] for kind in kinds]
            print(_row(name, [lived, *counts, sum(counts)]))
        sums = [
            sum(self.struck[name, kind] for name in self.lives)
            for kind in kinds
        ]
        total = self.struck.total()
        print(_row("all", [self.lives.total(), *sums, total]))


def _row(name: str, values: Iterable[object]) -> str:
    return f"{name:12}" + "".join(f"{value:>10}" for value in values)


def run(options: argparse.Namespace) -> int:
    """Run the campaign; return 0 if no life failed."""
    with tempfile.TemporaryDirectory(prefix="campaign-", dir=_memory()) as own:
        tempfile.tempdir = own
        if options.life is not None or options.schedule:
            return _run_one(options)
        return _run_many(options)


def _memory() -> str | None:
    """Return a directory in memory: databases are written all the time."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


def _run_one(options: argparse.Namespace) -> int:
    names = list(worlds.TECHNOLOGIES)
    number = options.life or 0
    (name,) = options.technology or (names[number % len(names)],)
    _write_log(options.log)
    chunk = Chunk(options.seed, name, (number,), options.schedule)
    tally = Tally(options)
    reports: list[Report] = []
    live_all(chunk, reports.append)
    (report,) = reports
    tally.add(report)
    if not report.findings:
        tally.show(report)
    if report.findings and options.shrink:
        print(f"shrunk: --schedule '{shrink(chunk, report.schedule)}'")
    tally.summary()
    return int(bool(report.findings))


def _run_many(options: argparse.Namespace) -> int:
    context = multiprocessing.get_context("fork")
    chunks, reports = context.Queue(2), context.Queue()
    is_over = context.Event()
    workers = [
        context.Process(
            target=_work,
            args=(chunks, reports, is_over, options.log),
            daemon=True,
        )
        for _ in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tally = Tally(options)
    further_chunks = _chunks(options)
    try:
        _gather(tally, chunks, reports, further_chunks, workers)
    except KeyboardInterrupt:
        print("ended early")
    is_over.set()
    for worker in workers:
        worker.join(_TICK_S)
        # Nova's services do as they like with SIGTERM.
        worker.kill()
    tally.summary()
    return int(bool(tally.failed))


def _gather(
    tally: Tally,
    chunks: Any,
    reports: Any,
    further_chunks: Iterator[Chunk],
    workers: list[Any],
) -> None:
    """Queue chunks and add reports until enough faults struck."""
    printed_at = time.monotonic()
    waiting: list[Chunk] = []
    while tally.struck.total() < tally._options.faults:
        if not any(worker.is_alive() for worker in workers):
            raise RuntimeError("all workers have ended")
        waiting = waiting or [next(further_chunks)]
        try:
            chunks.put_nowait(waiting[0])
            waiting.clear()
        except queue.Full:
            pass
        try:
            report = reports.get(timeout=1.0)
        except queue.Empty:
            continue
        if isinstance(report, str):
            print(report, flush=True)
            continue
        tally.add(report)
        if time.monotonic() - printed_at > _TICK_S:
            printed_at = time.monotonic()
            tally.progress()
