# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed between two steps of an attachment.

It gets SIGKILL before changes of Nova's database, Placement, a card, the
claim store and libvirt, and is started again. Each time all of them agree on
the server's accelerators: those before the attachment, or those after it.

``NOVA_ACCEL_KILLS`` is the number of kills before each step.
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
from tests.support.examples import share

_on_threads = pytest.mark.skipif(
    not releases.is_on_threads(), reason="a child has no greenlets' hub"
)
KILLS = int(os.environ.get("NOVA_ACCEL_KILLS", "1"))


@dataclasses.dataclass
class Row:
    """Number of kills before a step of an operation."""

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
        # A region keeps its bitstream: with this each run begins alike.
        self.attach(self.server, self.profile())
        self.detach(self.server)
        self.run_periodics()
        self.without = self.collect_state(self.server)

    @property
    def is_attached(self) -> bool:
        """Return whether an attachment exists; check that it is complete."""
        states = [record.state for record in self.attachments(self.server)]
        self.assertIn(states, ([], [attachment.AttachmentState.ATTACHED]))
        return bool(states)

    def interrupt(self, method: str, kill_at: int | None) -> list[str]:
        """Kill nova-compute before a step, and start the next.

        Returns the steps up to there; None means that no kill happens.
        """
        arguments = {"name": ""}
        if method == "attach":
            arguments = self.attach_arguments(self.profile())
        world = mortals.World(self.computes["host1"])
        world.kill_at = kill_at

        def work(driver: Any) -> None:
            getattr(
                driver._hooks.operations.by_name["hot_attach"].hot_attach,
                method,
            )(self.context, self.server["id"], **arguments)

        died_of = world.kill(work)
        expected = 0 if kill_at is None else signal.SIGKILL
        self.assertEqual(expected, died_of, world.steps)
        self.restart()
        self.run_passes()
        where = f"killed before {world.steps[-1]}"
        self.assertIsNone(self.instance(self.server).task_state, where)
        self.assert_agreement(where, is_passed=True)
        return world.steps

    def run_passes(self) -> None:
        """Run the passes that recover an interrupted operation."""
        self.run_periodics()

    def ensure_attached(self) -> Any:
        """Return the state of the server with one attachment."""
        if not self.is_attached:
            self.attach(self.server, self.profile())
        return self.collect_state(self.server)

    def ensure_detached(self, where: str) -> None:
        """Detach, and check that the server is as at first."""
        if self.is_attached:
            self.detach(self.server)
        self.assertEqual(self.without, self.collect_state(self.server), where)

    def all_steps(self, name: str) -> list[str]:
        """Return the steps of an operation that is not interrupted."""
        if name == "detach":
            self.ensure_attached()
        steps = self.interrupt(name, None)
        self.assertEqual(name == "attach", self.is_attached)
        self.ensure_detached("the end")
        return steps


@_on_threads
class Crashes(Dying):
    """nova-compute is killed during attach and detach."""

    __test__ = False

    def run_operation(self, name: str) -> None:
        is_coming = name == "attach"
        rows = []
        steps = self.all_steps(name)
        self.assertEqual("return", steps[-1])
        for number, step in share(list(enumerate(steps))):
            row = Row(name, step)
            rows.append(row)
            for _ in range(KILLS):
                attached_state = None if is_coming else self.ensure_attached()
                steps_done = self.interrupt(name, number)
                self.assertEqual(steps[: number + 1], steps_done)
                if step == "return":
                    self.assertEqual(is_coming, self.is_attached)
                elif number == 0:
                    self.assertEqual(not is_coming, self.is_attached)
                if attached_state is not None and self.is_attached:
                    self.assertEqual(
                        attached_state, self.collect_state(self.server)
                    )
                self.ensure_detached(step)
                row.kills += 1
            print(row, flush=True)
        self.assertEqual({KILLS}, {row.kills for row in rows})

    def test_attach(self) -> None:
        self.run_operation("attach")

    @pytest.mark.long
    def test_detach(self) -> None:
        self.run_operation("detach")


@_on_threads
class AtStart(Dying, syncing.SyncTestBase):
    """The service's own first pass recovers, once Nova's tracker is ready."""

    technology = technologies.MDEV

    def run_passes(self) -> None:
        is_interrupted = self.instance(self.server).task_state is not None
        self.assertEqual(is_interrupted, self.is_interrupted)
        self.run_pass()

    def test_the_first_pass(self) -> None:
        self.is_interrupted = False
        steps = self.all_steps("attach")
        self.is_interrupted = True
        self.interrupt("attach", steps.index("note claims"))
        self.assertFalse(self.is_attached)
        self.interrupt("attach", len(steps) - 2)
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
