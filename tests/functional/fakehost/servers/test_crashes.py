# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed between any two steps, and restarted.

Before each step of an operation the service gets SIGKILL; the kernel,
libvirt's domains, the guests and Nova's database go on. The next service
must recover: no partition is leaked, lost or assigned twice.

``NOVA_ACCEL_KILLS`` is the number of kills before each step.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nova_accel import model
from nova_accel.host.execute import privileged
from nova_accel.host.state import claims_file
from tests.functional.fakehost.support import (
    crash_judge,
    crash_outside,
    crash_service,
    crash_technologies,
)
from tests.lab import fakehost
from tests.support.examples import share
from tests.support.hosts import mortal

pytestmark = pytest.mark.fakehost

_SHORT = crash_technologies.ALL[0]
KILLS = int(os.environ.get("NOVA_ACCEL_KILLS", "1"))
#: A server that runs all the time, the subject of an operation, a server
#: that comes after the crash, and one that gets the slot of the second.
RESIDENT, SUBJECT, RIVAL, HEIR = (f"{n * 8}-0000-4000-8000-0" for n in "abcd")
Work = Callable[[crash_service.Service, tuple[model.Slot, ...]], None]


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation that is interrupted.

    ``is_there``: its server exists before; by turns it was spawned before
    the service was started, and after.

    ``is_forgotten``: its server is deleted before the service restarts.
    """

    name: str
    work: Work
    is_there: bool
    is_forgotten: bool = False


OPERATIONS = (
    Operation("spawn", lambda s, slots: s.spawn(SUBJECT, *slots), False),
    Operation("destroy", lambda s, slots: s.destroy(SUBJECT, slots), True),
    Operation(
        "migrate, source", lambda s, slots: s.leave(SUBJECT, slots), True
    ),
    Operation(
        "migrate, target", lambda s, slots: s.arrive(SUBJECT, *slots), False
    ),
    Operation(
        "spawn, forgotten",
        lambda s, slots: s.spawn(SUBJECT, *slots),
        is_there=False,
        is_forgotten=True,
    ),
)


class Trial:
    """One card, and the operations on it."""

    def __init__(
        self,
        outside: crash_outside.Outside,
        place: Path,
        technology: crash_technologies.Technology,
    ) -> None:
        self.outside = outside
        self.technology = technology
        self.place = place
        self.judge = crash_judge.Judge(
            self.outside,
            technology,
            claims_file.ClaimsFile(str(place / "state")),
        )
        self._rounds = 0
        self._slots: list[model.Slot] = []
        self.outside.judge = self._count_slots
        self.serve(lambda service: service.compare("empty"))
        self.outside.judge = self.judge.compare
        self.serve(lambda service: service.spawn(RESIDENT, self._slots[0]))

    def _count_slots(self, _stage: str, _claims: Any, nodes: Any) -> None:
        self._slots = self.technology.slots(nodes)

    def serve(self, work: Callable[[crash_service.Service], None]) -> int:
        """Start a service and let it work; return what it died of."""

        def live(link: mortal.Link) -> None:
            place, technology = self.place, self.technology
            service = crash_service.Service(link, place, technology)
            service.start()
            work(service)

        return self.outside.run(live)

    def interrupt(
        self, operation: Operation, kill_at: int | None
    ) -> list[str]:
        """Kill the service before a step, and let the next one recover.

        Returns the steps up to there; None means that no kill happens.
        """
        self._rounds += 1
        others = self._slots[1:]
        subject = others[self._rounds % len(others)]
        rival = others[(self._rounds + 1) % len(others)]
        is_old = operation.is_there and self._rounds % 2
        if is_old:  # older than the service
            self.serve(lambda service: service.spawn(SUBJECT, subject))

        def work(service: crash_service.Service) -> None:
            service.run_pass()
            if operation.is_there and not is_old:
                service.spawn(SUBJECT, subject)
            service.report_steps()
            operation.work(service, (subject,))

        self.outside.kill_at, self.judge.findings = kill_at, []
        died_of = self.serve(work)
        steps = self.outside.steps
        assert died_of == (0 if kill_at is None else signal.SIGKILL), steps
        self.outside.kill_at = None
        if operation.is_forgotten:
            self.outside.records.pop(SUBJECT, None)
        self.serve(lambda service: recover(service, subject, rival))
        assert not self.outside.records.keys() - {RESIDENT}
        assert not self.outside.domains.keys() - {RESIDENT}
        return steps


def recover(
    service: crash_service.Service, slot: model.Slot, free: model.Slot
) -> None:
    """Go on after the crash, as Nova and its users would."""
    record = service.ask("records").get(SUBJECT)
    if record is not None and record.state == "deleting":
        service.finish(SUBJECT, record)  # Nova's init_host does
    service.run_pass()
    if record is None:  # Nova ends guests of unknown servers
        service.end_guest(SUBJECT, service.life.slots_of(SUBJECT))
        service.run_pass()
    service.compare("restarted")
    service.spawn(RIVAL, free)
    service.compare("beside another")
    record = service.ask("records").get(SUBJECT)
    if record is not None:
        service.finish(SUBJECT, record)
    service.run_pass()
    service.compare("finished")
    service.spawn(HEIR, slot)
    service.compare("slot reused")
    service.destroy(HEIR, (slot,))
    service.destroy(RIVAL, (free,))
    service.run_pass()
    service.compare("end")


@dataclasses.dataclass
class Row:
    """Kills before a step of an operation, and the findings."""

    operation: str
    step: str
    kills: int = 0
    findings: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        counted = collections.Counter(fault for fault, _ in self.findings)
        counts = "".join(f"{counted[f]:>13}" for f in crash_judge.FAULTS)
        line = f"{self.operation:<17}{self.step:<33}{self.kills:>5}{counts}"
        return "\n    ".join((line, *map(": ".join, self.findings)))


@pytest.fixture(
    params=[
        pytest.param(
            technology,
            # Each is killed before the same steps; one runs on each push.
            marks=[pytest.mark.long] * (technology is not _SHORT),
            id=technology.name,
        )
        for technology in crash_technologies.ALL
    ]
)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    privileged.run_here()
    spec = fakehost.HostSpec(cards=request.param.cards)
    with fakehost.simulated_sysfs(spec, tmp_path / "root") as kernel:
        outside = crash_outside.Outside(kernel)
        try:
            yield Trial(outside, tmp_path, request.param)
        finally:
            for name in list(outside.domains):
                outside.do_stop(name)


def test_killed_before_each_step(trial: Trial) -> None:
    rows: list[Row] = []
    heads = "".join(f"{fault:>13}" for fault in crash_judge.FAULTS)
    print(f"\n{trial.technology.name}")
    print(f"{'operation':<17}{'killed before':<33}{'kills':>5}{heads}")
    for operation in OPERATIONS:
        if operation.is_forgotten and not trial.technology.is_named:
            continue  # its slot is unknown: it stays reserved
        steps = trial.interrupt(operation, None)
        assert not trial.judge.findings, trial.judge.findings
        assert steps[-1] == "return"
        for number, step in share(list(enumerate(steps))):
            row = Row(operation.name, step)
            rows.append(row)
            try:
                for _ in range(KILLS):
                    done = trial.interrupt(operation, number)
                    assert done == steps[: number + 1]
                    row.kills += 1
                    row.findings += trial.judge.findings
            finally:
                print(row, flush=True)
    print(f"{sum(row.kills for row in rows)} kills", flush=True)
    assert KILLS
    assert {row.kills for row in rows} == {KILLS}
    assert not [finding for row in rows for finding in row.findings]


@pytest.mark.parametrize("trial", crash_technologies.ALL[1:2], indirect=True)
def test_the_judge_objects(trial: Trial) -> None:
    """A judge that never objects would prove nothing."""
    outside, judge = trial.outside, trial.judge

    def show(service: crash_service.Service) -> None:
        service.run_pass()
        service.compare("now")

    def objections() -> set[str]:
        judge.findings = []
        trial.serve(show)
        return {fault for fault, _ in judge.findings}

    assert objections() == set()
    record = outside.records.pop(RESIDENT)
    assert objections() == {"leaked", "lost", "miscounted"}
    outside.records[RESIDENT] = record
    outside.do_define(RIVAL, "vendor-vfio", outside.domains[RESIDENT].devices)
    assert objections() == {"doubly held", "lost"}
    outside.do_undefine(RIVAL)
    outside.do_stop(RESIDENT)
    assert objections() == {"lost"}
    outside.do_start(RESIDENT)
    assert objections() == set()
