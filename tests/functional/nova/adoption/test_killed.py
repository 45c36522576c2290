# SPDX-License-Identifier: Apache-2.0
"""Law: nova-compute is killed before or after any write of an adoption.

Its next start completes the adoption, or the undo, and both together leave
Placement, Nova's database and the definitions of mdevs as they were. On a
push it is killed before one write, in the middle.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
import pytest
from nova import objects
from nova.scheduler.client import report

from nova_accel.host.state import adoption_plan
from tests.functional.nova.adoption import adopting, test_adopt_pci
from tests.functional.nova.switch import stock_driver
from tests.support import examples

_WRITES = (
    (objects.Instance, "save"),
    (objects.PciDevice, "save"),
    (report.SchedulerReportClient, "put"),
    (report.SchedulerReportClient, "post"),
    (report.SchedulerReportClient, "delete"),
    (adoption_plan.PlanFile, "write"),
)


class Killed(BaseException):
    """The process has ended."""


class Killer:
    """Counts the writes of nova-compute, and ends it at one of them."""

    def __init__(self, at: int | None = None, is_after: bool = False) -> None:
        self.count, self._at, self._is_after = 0, at, is_after

    @contextlib.contextmanager
    def watch(self) -> Iterator["Killer"]:
        with contextlib.ExitStack() as stack:
            for owner, name in _WRITES:
                stack.enter_context(
                    fixtures.MonkeyPatch(
                        f"{owner.__module__}.{owner.__qualname__}.{name}",
                        self._wrap(getattr(owner, name)),
                    )
                )
            yield self

    def _wrap(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = self.count
            self.count += 1
            if self._at is not None and number >= self._at + self._is_after:
                raise Killed
            result = write(*args, **kwargs)
            if self._is_after and number == self._at:
                raise Killed
            return result

        return call


class KilledAtEachWrite(adopting.AdoptionTestBase):
    def start_servers(self) -> None:
        """Start a host of Nova's own support with two servers."""
        self.start_stock(stock_driver.ON_VFS, stock_driver.A40_TYPE)
        self.servers = [
            self.boot(stock_driver.NATIVE_FLAVOR) for _ in range(2)
        ]
        self.add_operators_data(self.servers[0])

    def start(self) -> None:
        self.start_servers()
        self.run_periodics()
        self.before = self.snapshot(*self.servers)
        self.killed = 0

    def start_adoption(self) -> None:
        self.switch(stock_driver.ACCEL)

    def start_undo(self) -> None:
        self.restart()

    def complete(self, state: str) -> None:
        self.run_periodics()
        self.assertEqual(state, self.state())

    def survive(self, start: Callable[[], None], killer: Killer) -> None:
        """Start nova-compute, which is killed, and start it again."""
        with killer.watch():
            error = self.fail_to_start(start)
        # A start may have fewer writes than the counted one.
        if error is not None:
            self.assertIsInstance(error, Killed)
            self.killed += 1
        start()

    def count_writes(self, start: Callable[[], None]) -> int:
        with Killer().watch() as killer:
            start()
        return killer.count

    def test_an_adoption_and_an_undo(self) -> None:
        self.start()
        self.plan()
        adopting_writes = self.count_writes(self.start_adoption)
        self.complete("adopted")
        adopted = self.snapshot(*self.servers)
        self.run_command("undo")
        undo_writes = self.count_writes(self.start_undo)
        self.complete("undone")
        self.assertGreater(min(adopting_writes, undo_writes), 5)
        trials = [
            (number, is_after)
            for number in range(max(adopting_writes, undo_writes))
            for is_after in (False, True)
        ]
        chosen = trials if examples.IS_WHOLE else [trials[len(trials) // 2]]
        for number, is_after in chosen:
            self.switch(stock_driver.STOCK, self.kind)
            self.run_periodics()
            self.assertEqual(self.before, self.snapshot(*self.servers))
            self.plan()
            self.survive(
                self.start_adoption,
                Killer(min(number, adopting_writes - 1), is_after),
            )
            self.complete("adopted")
            self.run_periodics()
            self.assert_same(adopted)
            self.run_command("undo")
            self.survive(
                self.start_undo,
                Killer(min(number, undo_writes - 1), is_after),
            )
            self.complete("undone")
        self.switch(stock_driver.STOCK, self.kind)
        self.run_periodics()
        self.assertEqual(self.before, self.snapshot(*self.servers))
        self.assertGreaterEqual(self.killed, len(chosen))

    def assert_same(self, adopted: dict[str, Any]) -> None:
        now = self.snapshot(*self.servers)
        self.assertEqual(adopted["servers"], now["servers"])
        self.assertEqual(
            {
                uuid: (record["aggregates"], record["traits"])
                for uuid, record in adopted["providers"].items()
            },
            {
                uuid: (record["aggregates"], record["traits"])
                for uuid, record in now["providers"].items()
            },
        )


@pytest.mark.long
class KilledWithFunctions(test_adopt_pci.PciTestBase, KilledAtEachWrite):
    """Whole cards of `[pci] device_spec`."""

    def start_servers(self) -> None:
        self.start_cards(*test_adopt_pci.TWO_GPUS)
        self.servers = [self.boot(test_adopt_pci.ALIAS) for _ in range(2)]

    def start_undo(self) -> None:
        self.name_functions()
        super().start_undo()


@pytest.mark.long
class KilledWithoutProviders(KilledWithFunctions):
    """Nova reports no providers of them."""

    is_reported = False
