# SPDX-License-Identifier: Apache-2.0
"""Trials: an operation during which one of its steps goes wrong.

A step is a call of nova-compute that changes something: Nova's database,
Placement, the kernel, libvirt, or a note. The steps of an operation are those
that it took without a fault. Worlds, faults and the judge are the
campaign's, which draws at random what these trials do in turn.
"""

import collections
import dataclasses
import datetime
import os
from collections.abc import Iterator, Mapping, Sequence

from tests.campaign import campaign, faults
from tests.campaign import judge as judges
from tests.campaign import life as lives
from tests.campaign import world as worlds
from tests.campaign.faults import Fault
from tests.campaign.life import Step
from tests.support import examples

#: Calls that change something, by kind, as the last word of their names. A
#: file is written under another name, and replaced.
_CHANGES: Mapping[str, frozenset[str]] = {
    "save": frozenset({"save", "create", "destroy"}),
    "placement": frozenset({"put", "post", "delete"}),
    "note": frozenset({"replace", "unlink"}),
    "write": frozenset({"write", "program", "set_port"}),
    "libvirt": frozenset(
        "createWithFlags destroy undefine undefineFlags shutdown suspend"
        " resume managedSave managedSaveRemove attachDeviceFlags"
        " detachDeviceFlags migrateToURI3 defineXML".split()
    ),
}
#: Kinds of which a call may be sent twice: the second one meets the first.
_REPEATED = frozenset({"save", "placement", "note"})


#: The law after which the server is deleted while its host is down.
FORGOTTEN = "is killed, the server deleted"

#: A whole run has the trials of its day: of each third case, each eleventh, so
#: that a day has all laws, and 33 days have all trials. All of them are over
#: 10,000, of two seconds each.
_CASES, _TRIALS = 3, 11
#: Trials whose texts contain this run in place of the day's; "" has all.
_NAMED = os.environ.get("NOVA_ACCEL_TRIALS")


@dataclasses.dataclass(frozen=True)
class Operation:
    """The operation that is tried, and those that come before it."""

    tried: Step
    before: tuple[Step, ...] = ()


_BOOT = Step("boot", worlds.HOSTS[0], "small")
_SERVER: Mapping[str, tuple[Step, ...]] = {
    "attach": (_BOOT,),
    "detach": (_BOOT, Step("attach", 0)),
    "reboot": (_BOOT,),
    "rebuild": (_BOOT,),
    "suspend": (_BOOT,),
    "resume": (_BOOT, Step("suspend", 0)),
    "offload": (_BOOT,),
    "unshelve": (_BOOT, Step("offload", 0)),
    "live_migrate": (_BOOT,),
    "evacuate": (_BOOT, Step("down", worlds.HOSTS[0])),
    "delete": (_BOOT,),
}
_RESIZES = {
    name: Step(name, 0, "other") for name in ("resize_here", "resize_there")
}
OPERATIONS: Mapping[str, Operation] = {
    "boot": Operation(_BOOT),
    # Of a region: loads a bitstream.
    "boot another": Operation(Step("boot", worlds.HOSTS[0], "other")),
    **{
        name: Operation(Step(name, 0), before)
        for name, before in _SERVER.items()
    },
    **{name: Operation(step, (_BOOT,)) for name, step in _RESIZES.items()},
    **{
        f"{name}, {end}": Operation(Step(end, 0), (_BOOT, step))
        for name, step in _RESIZES.items()
        for end in ("confirm", "revert")
    },
    "passes": Operation(
        Step("passes", worlds.HOSTS[0]),
        # A card that a guest uses is not unplugged.
        (
            dataclasses.replace(_BOOT, target=worlds.HOSTS[1]),
            Step("unplug", worlds.HOSTS[0]),
        ),
    ),
    "restart": Operation(Step("restart", worlds.HOSTS[0]), (_BOOT,)),
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A fault at one step; ``law`` says what happens to that."""

    law: str
    step: str
    fault: Fault

    def __str__(self) -> str:
        """Return the name of the trial within its operation."""
        return f"{self.step} {self.law}"


def list_trials(trace: list[tuple[str, str]]) -> Iterator[Trial]:
    """Yield the trials of an operation that took these calls.

    Each step fails; it is done and its answer is lost; nova-compute is
    killed before it, and the server may be deleted before the next one
    starts; it is done twice.
    """
    numbers: collections.Counter[str] = collections.Counter()
    for place, (kind, name) in enumerate(trace):
        number = numbers[kind]
        numbers[kind] += 1
        word = name.partition(" ")[0].rpartition(".")[2]
        if word not in _CHANGES.get(kind, ()):
            continue
        step = f"{kind} {number}: {name.partition(' ')[0]}"
        yield Trial("fails", step, Fault(kind, number))
        yield Trial("is lost", step, Fault(kind, number, is_after=True))
        yield Trial("is killed", step, Fault("kill", place))
        yield Trial(FORGOTTEN, step, Fault("kill", place, code=faults.DOWN))
        if kind in _REPEATED:
            twice = Fault(kind, number, code=faults.TWICE)
            yield Trial("is done twice", step, twice)


def is_due(case: int) -> bool:
    """Return whether this run has the case with this number."""
    return not _is_drawn() or _day() % _CASES == case % _CASES


def choose(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials of this run: a few on a push, else those of a day."""
    if _is_drawn():
        return trials[_day() % _TRIALS :: _TRIALS]
    if _NAMED is None:
        return examples.share(trials)
    return [trial for trial in trials if _NAMED in str(trial)]


def _is_drawn() -> bool:
    return examples.IS_WHOLE and _NAMED is None


def _day() -> int:
    return datetime.date.today().toordinal()


def record(world: worlds.World, operation: Operation) -> list[tuple[str, str]]:
    """Return the calls of an operation without faults."""
    life = lives.Life(world)
    life.replay([*operation.before, operation.tried])
    trace: list[tuple[str, str]] = world.injector.trace
    judge = judges.Judge(life)
    assert judge.judge() == [], life.log
    assert judge.clean()
    return trace


def run(
    world: worlds.World, operation: Operation, trial: Trial
) -> campaign.Report:
    """Return what an operation with a fault left, as the judge says."""
    tried = dataclasses.replace(operation.tried, faults=(trial.fault,))
    ends = [Step("delete", 0)] if trial.law == FORGOTTEN else []
    schedule = lives.to_text([*operation.before, tried, *ends])
    technology = world.technology.name
    return campaign.live(
        world, campaign.Chunk(0, technology, (0,), schedule), 0
    )
