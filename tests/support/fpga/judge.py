# SPDX-License-Identifier: Apache-2.0
"""Checks of FPGA regions against the simulated hardware alone.

Rules: a region that a guest has, or that another server's domain names, is
never programmed. An assigned region has the requested function. A failed
region is faulty, and is not assigned before it is healed.
"""

from __future__ import annotations

import collections
import dataclasses

from nova_accel.model import names
from tests.lab.fakehost import fpga
from tests.support.fpga import guests, kernel

Key = tuple[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """State of the hardware before an attempt to assign a region."""

    key: Key
    server: str
    done: int
    was_faulted: bool


class Judge:
    """Records violations of the rules, and counts events."""

    def __init__(
        self,
        host: kernel.DirectKernel,
        libvirt: guests.Libvirt,
    ) -> None:
        self._host = host
        self._libvirt = libvirt
        self._seen = 0
        #: Failed regions, each with its function at that time.
        self.faulted: dict[Key, str | None] = {}
        self.ever_failed: set[str] = set()
        self.wrong: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()

    @property
    def log(self) -> list[fpga.Programming]:
        """Return the log of the hardware: all loaded bitstreams."""
        return self._host.kernel.fpga.log

    def note(self, what: str) -> None:
        """Record a violation."""
        self.wrong.append(what)

    def read_function(self, key: Key) -> str | None:
        """Return the function that the host's driver shows, None if none."""
        part = self._host.part(*key)
        function = self._host.kernel.pci.functions.get(part.slot)
        driver = function.driver.name if function and function.driver else ""
        is_shown = driver in ("dfl-pci", "intel-fpga-pci", "xocl")
        return part.function if is_shown and part.is_enabled else None

    def check_log(self, server: str = "") -> None:
        """Check the programmings since the last call.

        :param server: the server that they were for, empty for none.
        """
        for programming in self.log[self._seen :]:
            self.counts["programmings"] += 1
            if programming.is_group_open or programming.driver == "vfio-pci":
                self.note(f"a guest has {programming.slot}: {programming}")
            for name, domain in self._libvirt.domains.items():
                if programming.slot in domain.functions and name != server:
                    self.note(f"{name} has {programming.slot}: {programming}")
                if programming.slot in domain.functions and domain.is_running:
                    self.note(
                        f"{name} runs with {programming.slot}: {programming}"
                    )
        self._seen = len(self.log)

    def begin(self, key: Key, server: str) -> Attempt:
        """Return the state before an attempt."""
        return Attempt(
            key=key,
            server=server,
            done=len(self.log),
            was_faulted=key in self.faulted,
        )

    def handed_over(self, attempt: Attempt, requested: str, most: int) -> None:
        """Check an assignment that succeeded.

        :param most: largest number of programmings for it.
        """
        part = self._host.part(*attempt.key)
        if not part.is_enabled or part.function != requested:
            self.note(f"handed over {part}, requested {requested}")
        if attempt.was_faulted:
            self.note(f"handed over {attempt.key}, which failed before")
        done = len(self.log) - attempt.done
        if done > most:
            self.note(f"{done} programmings for one hand-over: {attempt}")
        self.check_log(attempt.server)

    def refused(self, attempt: Attempt, why: str) -> None:
        """Check that a refusal programmed nothing."""
        if len(self.log) != attempt.done:
            self.note(f"{attempt} was refused, and touched: {why}")
        self.check_log(attempt.server)

    def failed(self, attempt: Attempt) -> None:
        """Record a programming that failed: the region is faulty."""
        if attempt.was_faulted:
            self.note(f"{attempt.key} was programmed though it had failed")
        self.faulted[attempt.key] = self.read_function(attempt.key)
        self.ever_failed.add(names.region_address(*attempt.key))
        self.check_log(attempt.server)

    def changed_by_hand(self, key: Key) -> None:
        """Note that an operator loaded another function."""
        before, now = self.faulted.get(key), self.read_function(key)
        if None not in (before, now) and before != now:
            self.faulted.pop(key)

    def healed(self, key: Key) -> None:
        """Note that an operator healed a region."""
        self.faulted.pop(key, None)
