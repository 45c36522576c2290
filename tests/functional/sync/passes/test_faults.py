# SPDX-License-Identifier: Apache-2.0
"""A pass after a faulty pass corrects the tree.

``NOVA_ACCEL_SYNC_FAULTS`` is the number of faulty passes, 2,000 in a full
run.
"""

import dataclasses
import gc
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel import errors
from placement_sync.client import cloud_client, resource_providers
from placement_sync.sync import sync_pass
from tests.functional.sync.support import faults, judge, lives, servers, trees
from tests.support.examples import examples

# At least one of each kind.
RUNS = int(
    os.environ.get("NOVA_ACCEL_SYNC_FAULTS", "")
    or max(len(faults.KINDS), examples(66))
)
SEED = os.environ.get("NOVA_ACCEL_SYNC_SEED", "f")
# Faulty passes of one host.
LIFE = 40


@dataclasses.dataclass(kw_only=True)
class Tally:
    """Results of the passes with one kind of fault."""

    runs: int = 0
    struck: int = 0
    within: int = 0
    converged: int = 0
    wrong: int = 0


class Trial:
    """One host, and its faulty passes."""

    def __init__(
        self, life: lives.Life, proxy: faults.Proxy, url: str
    ) -> None:
        self.life = life
        self.proxy = proxy
        self.client = cloud_client.from_endpoint(url)
        self.synchronizer = faults.new_pass(proxy.url)

    def change(self, is_fresh: bool) -> int:
        """Change host and cloud; return the number of requests of a pass.

        :param is_fresh: whether the next pass starts without a cache.
        """
        life = self.life
        self.proxy.arm(None)
        if is_fresh:
            self.synchronizer = faults.new_pass(self.proxy.url)
        while True:
            life.desired = trees.draw_change(
                life.dice, life.root, life.desired
            )
            life.damage(0.08)
            life.change_servers()
            life.forget_deleted()
            dry = sync_pass.Synchronizer(
                resource_providers.PlacementClient(self.client)
            ).run(life.desired.tree, life.desired.host, is_dry=True)
            if dry.calls:
                return (dry.reads if is_fresh else 1) + len(dry.calls)

    def run(self, fault: faults.Fault, tally: Tally) -> list[str]:
        """Run a faulty pass and another pass; return the faults of both."""
        case = self.life.case()
        self.proxy.arm(fault)
        with faults.short_timeout(self.synchronizer, fault.kind):
            tally.within += self._fail(fault.kind.startswith("kill"))
        tally.runs += 1
        tally.struck += self.proxy.struck > 0
        amidst = self.life.rows()
        self.proxy.arm(None)
        desired = self.life.desired
        result = self.synchronizer.run(desired.tree, desired.host)
        after = self.life.rows()
        again = self.synchronizer.run(desired.tree, desired.host)
        messages = [
            *(f"amidst: {fault}" for fault in case.lasting_faults(amidst)),
            *(f"problem: {problem}" for problem in result.problems),
            *case.faults(after),
            *(f"repeated: {call}" for call in again.calls),
        ]
        tally.wrong += bool(messages)
        tally.converged += not messages
        self.life.forget_deleted()
        return messages

    def _fail(self, is_killed: bool) -> bool:
        """Run the faulty pass; return whether it succeeded all the same."""
        desired = self.life.desired
        if is_killed:
            status = faults.run_killed(self.proxy, desired)
            assert status in (0, -signal.SIGKILL)
            if status:
                self.synchronizer = faults.new_pass(self.proxy.url)
            return status == 0
        try:
            return self.synchronizer.run(desired.tree, desired.host).is_ok
        except errors.ServiceError:
            return False


def format_tallies(tallies: dict[str, Tally], seconds: float) -> str:
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


def test_the_next_pass_corrects_the_tree(
    placement: servers.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the faults occur once, the others until the pass ends.

    "Within" are the passes that succeeded in spite of the fault.
    """
    tables = judge.Tables(placement.database)
    tallies = {kind: Tally() for kind in faults.KINDS}
    began = time.monotonic()
    messages: list[str] = []
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
            for message in trial.run(fault, tallies[kind]):
                messages.append(f"{number} {fault}: {message}")
    with capsys.disabled():
        print(format_tallies(tallies, time.monotonic() - began))
    assert not messages, "\n".join(messages)
    assert all(t.struck == t.runs for t in tallies.values())


# Values that JSON decoders accept in place of a number, a text or a list.
ODD_VALUES = (
    *("1e999", "-1e999", "Infinity", "NaN", "9" * 5000, "1" + "0" * 400),
    *("null", "true", "-1", "0.5", '""', '"\\ud800"', '"text"', "[]", "{}"),
    *("[null]", '{"a": 1}', "[" * 500 + "]" * 500, "[" * 100_000),
)
_MARK = "put-an-odd-value-here"


def alter(content: bytes, dice: random.Random) -> bytes:
    """Return JSON in which one value is replaced by an odd one."""
    places: list[tuple[Any, Any]] = []
    body = {"top": json.loads(content or b"null")}
    containers: list[Any] = [body]
    while containers:
        container = containers.pop()
        keys = (
            range(len(container))
            if isinstance(container, list)
            else list(container)
        )
        places += [(container, key) for key in keys]
        containers += [
            container[k] for k in keys if isinstance(container[k], dict | list)
        ]
    container, key = dice.choice(places)
    container[key] = _MARK
    text = json.dumps(body["top"])
    return text.replace(f'"{_MARK}"', dice.choice(ODD_VALUES)).encode()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage during a test.

    A finalizer that is called while nested brackets are parsed has no stack
    left, and pytest reports that.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_malformed_answers_are_accelerator_errors(
    placement: servers.Server,
) -> None:
    """A pass over altered answers ends, or raises AcceleratorError."""
    life = lives.Life(placement, judge.Tables(placement.database), SEED)
    life.build()
    dice = random.Random(SEED)  # noqa: S311
    refused = 0
    with faults.Proxy(placement.url).running() as proxy:
        proxy.alter = lambda content: (
            alter(content, dice) if dice.random() < 0.3 else content
        )
        for _ in range(RUNS):
            try:
                faults.new_pass(proxy.url).run(
                    life.desired.tree, life.desired.host, is_dry=True
                )
            except errors.AcceleratorError:
                refused += 1
    assert refused > RUNS / 4
