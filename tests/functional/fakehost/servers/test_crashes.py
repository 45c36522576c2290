# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed between any two steps, and restarted.

Before each step of an operation the service gets SIGKILL; the kernel,
libvirt's domains, the guests and Nova's database go on. The next service
must find everything: nothing leaked, nothing lost, nothing held by two.

``NOVA_ACCEL_KILLS`` is how often it is killed before each step.
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
from tests.support.hosts import mortal

pytestmark = pytest.mark.fakehost

_SHORT = crash_technologies.ALL[0]
KILLS = int(os.environ.get("NOVA_ACCEL_KILLS", "1"))
#: A server that runs all the time, the one that an operation is about, one
#: that comes after the crash, and one that gets the slot of the second.
KEPT, SUBJECT, RIVAL, HEIR = (f"{n * 8}-0000-4000-8000-0" for n in "abcd")
Work = Callable[[crash_service.Service, tuple[model.Slot, ...]], None]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What is interrupted; ``is_there``: of a server that is here.

    In turns one that came before the service was started, and after.

    ``is_forgotten``: it is deleted before the service is started again.
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
    """One card, and everything that is done to it."""

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
        self.serve(lambda service: service.show("empty"))
        self.outside.judge = self.judge.look
        self.serve(lambda service: service.spawn(KEPT, self._slots[0]))

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
        """Have one operation end before a step, and the next service mend.

        Returns the steps up to there; None for no end before the last.
        """
        self._rounds += 1
        others = self._slots[1:]
        subject = others[self._rounds % len(others)]
        rival = others[(self._rounds + 1) % len(others)]
        is_old = operation.is_there and self._rounds % 2
        if is_old:  # than the service
            self.serve(lambda service: service.spawn(SUBJECT, subject))

        def work(service: crash_service.Service) -> None:
            service.look()
            if operation.is_there and not is_old:
                service.spawn(SUBJECT, subject)
            service.report_steps()
            operation.work(service, (subject,))

        self.outside.kill_at, self.judge.found = kill_at, []
        died_of = self.serve(work)
        steps = self.outside.steps
        assert died_of == (0 if kill_at is None else signal.SIGKILL), steps
        self.outside.kill_at = None
        if operation.is_forgotten:
            self.outside.records.pop(SUBJECT, None)
        self.serve(lambda service: recover(service, subject, rival))
        assert not self.outside.records.keys() - {KEPT}
        assert not self.outside.domains.keys() - {KEPT}
        return steps


def recover(
    service: crash_service.Service, slot: model.Slot, free: model.Slot
) -> None:
    """Go on after the crash, as Nova and its users would."""
    record = service.ask("records").get(SUBJECT)
    if record is not None and record.state == "deleting":
        service.mend(SUBJECT, record)  # Nova's init_host does
    service.look()
    if record is None:  # Nova ends guests that are nobody's
        service.end_guest(SUBJECT, service.life.slots_of(SUBJECT))
        service.look()
    service.show("restarted")
    service.spawn(RIVAL, free)
    service.show("beside another")
    record = service.ask("records").get(SUBJECT)
    if record is not None:
        service.mend(SUBJECT, record)
    service.look()
    service.show("mended")
    service.spawn(HEIR, slot)
    service.show("given on")
    service.destroy(HEIR, (slot,))
    service.destroy(RIVAL, (free,))
    service.look()
    service.show("end")


@dataclasses.dataclass
class Row:
    """How often an operation was killed before a step, and what differed."""

    operation: str
    step: str
    kills: int = 0
    found: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        counted = collections.Counter(fault for fault, _ in self.found)
        counts = "".join(f"{counted[f]:>13}" for f in crash_judge.FAULTS)
        line = f"{self.operation:<17}{self.step:<33}{self.kills:>5}{counts}"
        return "\n    ".join((line, *map(": ".join, self.found)))


@pytest.fixture(
    params=[
        pytest.param(
            technology,
            # Each is killed before the same steps; one is shown on each push.
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
            continue  # nobody can tell whose it is: it stays reserved
        steps = trial.interrupt(operation, None)
        assert not trial.judge.found, trial.judge.found
        assert steps[-1] == "return"
        for number, step in enumerate(steps):
            row = Row(operation.name, step)
            rows.append(row)
            try:
                for _ in range(KILLS):
                    told = trial.interrupt(operation, number)
                    assert told == steps[: number + 1]
                    row.kills += 1
                    row.found += trial.judge.found
            finally:
                print(row, flush=True)
    print(f"{sum(row.kills for row in rows)} kills", flush=True)
    assert KILLS
    assert {row.kills for row in rows} == {KILLS}
    assert not [found for row in rows for found in row.found]


@pytest.mark.parametrize("trial", crash_technologies.ALL[1:2], indirect=True)
def test_the_judge_objects(trial: Trial) -> None:
    """A judge that never objects would prove nothing."""
    outside, judge = trial.outside, trial.judge

    def show(service: crash_service.Service) -> None:
        service.look()
        service.show("now")

    def objections() -> set[str]:
        judge.found = []
        trial.serve(show)
        return {fault for fault, _ in judge.found}

    assert objections() == set()
    record = outside.records.pop(KEPT)
    assert objections() == {"leaked", "lost", "miscounted"}
    outside.records[KEPT] = record
    outside.do_define(RIVAL, "vendor-vfio", outside.domains[KEPT].devices)
    assert objections() == {"doubly held", "lost"}
    outside.do_undefine(RIVAL)
    outside.do_stop(KEPT)
    assert objections() == {"lost"}
    outside.do_start(KEPT)
    assert objections() == set()
