# SPDX-License-Identifier: Apache-2.0
"""A pass after a faulty pass corrects the tree.

``NOVA_ACCEL_SYNC_FAULTS`` is the number of faulty passes, 2,000 for all
that is promised.
"""

import dataclasses
import json
import os
import random
import signal
import time
from typing import Any

import pytest

from nova_accel import errors
from placement_sync.client import resource_providers, rest
from placement_sync.sync import sync_pass
from tests.functional.sync.support import faults, judge, lives, servers, trees
from tests.support.examples import examples

RUNS = int(os.environ.get("NOVA_ACCEL_SYNC_FAULTS", "") or examples(66))
SEED = os.environ.get("NOVA_ACCEL_SYNC_SEED", "f")
# So many faulty passes one host lives through.
LIFE = 40


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What became of the passes with one kind of fault."""

    runs: int = 0
    struck: int = 0
    within: int = 0
    converged: int = 0
    wrong: int = 0


class Trial:
    """One host, and passes that go wrong."""

    def __init__(
        self, life: lives.Life, proxy: faults.Proxy, url: str
    ) -> None:
        self.life = life
        self.proxy = proxy
        self.door = rest.from_endpoint(url)
        self.one = faults.new_pass(proxy.url)

    def change(self, is_fresh: bool) -> int:
        """Change host and cloud; return how many requests a pass makes.

        :param is_fresh: whether it will know nothing beforehand.
        """
        life = self.life
        self.proxy.arm(None)
        if is_fresh:
            self.one = faults.new_pass(self.proxy.url)
        while True:
            life.wish = trees.draw_change(life.dice, life.root, life.wish)
            life.damage(0.08)
            life.come_and_go()
            life.settle()
            dry = sync_pass.Synchronizer(
                resource_providers.PlacementClient(self.door)
            ).run(life.wish.tree, life.wish.host, is_dry=True)
            if dry.calls:
                return (dry.reads if is_fresh else 1) + len(dry.calls)

    def run(self, fault: faults.Fault, tally: Tally) -> list[str]:
        """Let a pass go wrong, and another one mend it; judge both."""
        case = self.life.case()
        self.proxy.arm(fault)
        with faults.impatient(self.one, fault.kind):
            tally.within += self._fail(fault.kind.startswith("kill"))
        tally.runs += 1
        tally.struck += self.proxy.struck > 0
        amidst = self.life.rows()
        self.proxy.arm(None)
        wish = self.life.wish
        result = self.one.run(wish.tree, wish.host)
        after = self.life.rows()
        again = self.one.run(wish.tree, wish.host)
        found = [
            *(f"amidst: {fault}" for fault in case.lasting_faults(amidst)),
            *(f"left: {problem}" for problem in result.problems),
            *case.faults(after),
            *(f"not at rest: {call}" for call in again.calls),
        ]
        tally.wrong += bool(found)
        tally.converged += not found
        self.life.settle()
        return found

    def _fail(self, is_killed: bool) -> bool:
        """Make the faulty pass; return whether it did all the same."""
        wish = self.life.wish
        if is_killed:
            status = faults.run_killed(self.proxy, wish)
            assert status in (0, -signal.SIGKILL)
            if status:
                self.one = faults.new_pass(self.proxy.url)
            return status == 0
        try:
            return self.one.run(wish.tree, wish.host).is_ok
        except errors.ServiceError:
            return False


def tell(tallies: dict[str, Tally], seconds: float) -> str:
    """Return a table of all kinds of faults."""
    lines = [
        "",
        f"{'fault':16}{'runs':>7}{'struck':>8}{'within':>8}"
        f"{'converged':>11}{'wrong':>7}",
    ]
    total = Tally()
    for kind, tally in [*tallies.items(), ("all", total)]:
        for field in dataclasses.fields(Tally):
            name = field.name
            if tally is not total:
                amount = getattr(total, name) + getattr(tally, name)
                setattr(total, name, amount)
        lines.append(
            f"{kind:16}{tally.runs:7}{tally.struck:8}{tally.within:8}"
            f"{tally.converged:11}{tally.wrong:7}"
        )
    return "\n".join([*lines, f"{seconds:.0f} s"])


def test_the_next_pass_makes_it_right(
    placement: servers.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """One half of the faults strikes once, the other until the pass ends.

    "Within" are the passes that got it done in spite of the fault.
    """
    tables = judge.Tables(placement.database)
    tallies = {kind: Tally() for kind in faults.KINDS}
    began = time.monotonic()
    found: list[str] = []
    with faults.Proxy(placement.url).running() as proxy:
        for number in range(RUNS):
            if number % LIFE == 0:
                life = lives.Life(placement, tables, f"{SEED}{number}")
                life.build()
                trial = Trial(life, proxy, placement.url)
            kind = faults.KINDS[number % len(faults.KINDS)]
            is_fresh = kind.startswith("kill") or life.dice.random() < 0.5
            fault = faults.Fault(
                kind=kind,
                at=life.dice.randint(1, trial.change(is_fresh)),
                is_lasting=number // len(faults.KINDS) % 2 == 1,
            )
            for what in trial.run(fault, tallies[kind]):
                found.append(f"{number} {fault}: {what}")
    with capsys.disabled():
        print(tell(tallies, time.monotonic() - began))
    assert not found, "\n".join(found)
    assert all(t.struck == t.runs for t in tallies.values())


# Values that JSON decoders accept in place of a number, a text or a list.
ODD_VALUES = (
    *("1e999", "-1e999", "Infinity", "NaN", "9" * 5000, "1" + "0" * 400),
    *("null", "true", "-1", "0.5", '""', '"\\ud800"', '"text"', "[]", "{}"),
    *("[null]", '{"a": 1}', "[" * 500 + "]" * 500, "[" * 100_000),
)
_MARK = "put-an-odd-value-here"


def altered(content: bytes, dice: random.Random) -> bytes:
    """Return JSON in which one value is replaced by an odd one."""
    places: list[tuple[Any, Any]] = []
    body = {"top": json.loads(content or b"null")}
    todo: list[Any] = [body]
    while todo:
        one = todo.pop()
        keys = range(len(one)) if isinstance(one, list) else list(one)
        places += [(one, key) for key in keys]
        todo += [one[k] for k in keys if isinstance(one[k], dict | list)]
    one, key = dice.choice(places)
    one[key] = _MARK
    text = json.dumps(body["top"])
    return text.replace(f'"{_MARK}"', dice.choice(ODD_VALUES)).encode()


def test_malformed_answers_are_errors_of_ours(
    placement: servers.Server,
) -> None:
    """A pass over altered answers ends, or raises AcceleratorError."""
    life = lives.Life(placement, judge.Tables(placement.database), SEED)
    life.build()
    dice = random.Random(SEED)  # noqa: S311
    refused = 0
    with faults.Proxy(placement.url).running() as proxy:
        proxy.alter = lambda content: (
            altered(content, dice) if dice.random() < 0.3 else content
        )
        for _ in range(RUNS):
            try:
                faults.new_pass(proxy.url).run(
                    life.wish.tree, life.wish.host, is_dry=True
                )
            except errors.AcceleratorError:
                refused += 1
    assert refused > RUNS / 4
