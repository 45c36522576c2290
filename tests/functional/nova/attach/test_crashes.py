# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed between any two steps of an attachment.

Before each change of Nova's database, of Placement, of a card, of our
books and of libvirt it gets SIGKILL, and is started again: each time all
agree on what the server has, which is what it had or one more, whole.

``NOVA_ACCEL_KILLS`` is how often it is killed before each step.
"""

import dataclasses
import os
import signal
from typing import Any

import pytest

from nova_accel.model import attachment
from tests.functional.nova.attach import attaching
from tests.functional.nova.service import syncing
from tests.functional.nova.support import mortals, releases, technologies

_on_threads = pytest.mark.skipif(
    not releases.is_on_threads(), reason="a child has no greenlets' hub"
)
KILLS = int(os.environ.get("NOVA_ACCEL_KILLS", "1"))


@dataclasses.dataclass
class Row:
    """How often it was killed before a step of an operation."""

    operation: str
    step: str
    kills: int = 0

    def __str__(self) -> str:
        return f"{self.operation:<10}{self.step:<66}{self.kills:>5}"


class Dying(attaching.AttachingTestBase):
    """A server whose nova-compute dies, and starts again."""

    def setUp(self) -> None:
        super().setUp()
        self.start_hosts("host1")
        self.server = self.boot(self.technology.small(self))
        # A region keeps what it is given: so each time begins alike.
        self.attach(self.server, self.profile())
        self.detach(self.server)
        self.run_periodics()
        self.without = self.everything(self.server)

    @property
    def is_attached(self) -> bool:
        """Return whether the server has it; what it has is whole."""
        states = [one.state for one in self.attachments(self.server)]
        self.assertIn(states, ([], [attachment.AttachmentState.ATTACHED]))
        return bool(states)

    def interrupt(self, method: str, kill_at: int | None) -> list[str]:
        """Kill nova-compute before a step, and start the next.

        Returns the steps up to there; None for no end before the last.
        """
        given = {"name": ""}
        if method == "attach_accelerator":
            given = self.attach_arguments(self.profile())
        world = mortals.World(self.computes["host1"])
        world.kill_at = kill_at

        def work(driver: Any) -> None:
            getattr(driver, method)(self.context, self.server["id"], **given)

        died_of = world.kill(work)
        wanted = 0 if kill_at is None else signal.SIGKILL
        self.assertEqual(wanted, died_of, world.steps)
        self.restart()
        self.mend()
        told = f"killed before {world.steps[-1]}"
        self.assertIsNone(self.instance(self.server).task_state, told)
        self.assert_agreement(told, is_passed=True)
        return world.steps

    def mend(self) -> None:
        """Let the service do what it does by and by."""
        self.run_periodics()

    def attached_now(self) -> Any:
        """Return all that is, once the server has one more."""
        if not self.is_attached:
            self.attach(self.server, self.profile())
        return self.everything(self.server)

    def detach_again(self, told: str) -> None:
        """Check that nothing is left, once it has given it back."""
        if self.is_attached:
            self.detach(self.server)
        self.assertEqual(self.without, self.everything(self.server), told)

    def all_steps(self, name: str) -> list[str]:
        """Return the steps of an operation that nobody ends."""
        if name == "detach":
            self.attached_now()
        found = self.interrupt(f"{name}_accelerator", None)
        self.assertEqual(name == "attach", self.is_attached)
        self.detach_again("the end")
        return found


@_on_threads
class Crashes(Dying):
    """Attachments, whose nova-compute dies."""

    __test__ = False

    def run_operation(self, name: str) -> None:
        is_coming = name == "attach"
        rows = []
        steps = self.all_steps(name)
        self.assertEqual("return", steps[-1])
        for number, step in enumerate(steps):
            row = Row(name, step)
            rows.append(row)
            for _ in range(KILLS):
                whole = None if is_coming else self.attached_now()
                told = self.interrupt(f"{name}_accelerator", number)
                self.assertEqual(steps[: number + 1], told)
                if step == "return":
                    self.assertEqual(is_coming, self.is_attached)
                elif number == 0:
                    self.assertEqual(not is_coming, self.is_attached)
                if whole is not None and self.is_attached:
                    self.assertEqual(whole, self.everything(self.server))
                self.detach_again(step)
                row.kills += 1
            print(row, flush=True)
        self.assertEqual({KILLS}, {row.kills for row in rows})

    def test_attach(self) -> None:
        self.run_operation("attach")

    def test_detach(self) -> None:
        self.run_operation("detach")


@_on_threads
class AtStart(Dying, syncing.SyncTestBase):
    """A service whose own passes mend, as soon as Nova's tracker is ready."""

    technology = technologies.MDEV

    def mend(self) -> None:
        is_left = self.instance(self.server).task_state is not None
        self.assertEqual(is_left, self.is_left)
        self.pass_by()

    def test_the_first_pass(self) -> None:
        self.is_left = False
        steps = self.all_steps("attach")
        self.is_left = True
        self.interrupt("attach_accelerator", steps.index("note claims"))
        self.assertFalse(self.is_attached)
        self.interrupt("attach_accelerator", len(steps) - 2)
        self.assertTrue(self.is_attached)


globals().update(
    technologies.matrix(
        Crashes,
        technologies.MDEV,
        also=(
            technologies.TYPED_VF,
            technologies.PLAIN_VF,
            technologies.WHOLE,
            technologies.REGION,
        ),
    )
)
