# SPDX-License-Identifier: Apache-2.0
"""A judge of FPGA regions, who asks the simulated hardware alone.

The laws: what a guest has is never programmed, nor what another server's
domain is defined with. What is handed over holds what was asked for. A
region that failed is set aside, and not handed over before it has healed.
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
    """What the hardware had done before somebody tried to get a region."""

    key: Key
    server: str
    done: int
    was_faulted: bool


class Judge:
    """Counts what must never happen, and what does."""

    def __init__(
        self,
        host: kernel.DirectKernel,
        libvirt: guests.Libvirt,
    ) -> None:
        self._host = host
        self._libvirt = libvirt
        self._seen = 0
        #: Regions that failed, and what they showed then.
        self.faulted: dict[Key, str | None] = {}
        self.ever_failed: set[str] = set()
        self.wrong: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()

    @property
    def log(self) -> list[fpga.Programming]:
        """Return what was loaded, in the hardware's own words."""
        return self._host.kernel.fpga.log

    def note(self, what: str) -> None:
        """Write down what is wrong."""
        self.wrong.append(what)

    def shown(self, key: Key) -> str | None:
        """Return what the host's driver shows of a region, if it does."""
        part = self._host.part(*key)
        function = self._host.kernel.pci.functions.get(part.slot)
        driver = function.driver.name if function and function.driver else ""
        is_shown = driver in ("dfl-pci", "intel-fpga-pci", "xocl")
        return part.function if is_shown and part.is_enabled else None

    def check_log(self, server: str = "") -> None:
        """Judge what was loaded since the last look.

        :param server: for whom, empty for nobody.
        """
        for one in self.log[self._seen :]:
            self.counts["programmings"] += 1
            if one.held or one.driver == "vfio-pci":
                self.note(f"a guest has {one.slot}: {one}")
            for name, domain in self._libvirt.domains.items():
                if one.slot in domain.functions and name != server:
                    self.note(f"{name} has {one.slot}: {one}")
                if one.slot in domain.functions and domain.is_running:
                    self.note(f"{name} runs with {one.slot}: {one}")
        self._seen = len(self.log)

    def begin(self, key: Key, server: str) -> Attempt:
        """Return what is so before an attempt."""
        return Attempt(
            key=key,
            server=server,
            done=len(self.log),
            was_faulted=key in self.faulted,
        )

    def handed_over(self, attempt: Attempt, wanted: str, most: int) -> None:
        """Judge a success.

        :param most: how many bitstreams might be loaded for it.
        """
        part = self._host.part(*attempt.key)
        if not part.is_enabled or part.function != wanted:
            self.note(f"handed over {part}, wanted {wanted}")
        if attempt.was_faulted:
            self.note(f"handed over {attempt.key}, which failed before")
        done = len(self.log) - attempt.done
        if done > most:
            self.note(f"{done} programmings for one hand-over: {attempt}")
        self.check_log(attempt.server)

    def refused(self, attempt: Attempt, why: str) -> None:
        """Judge a refusal: it must have touched nothing."""
        if len(self.log) != attempt.done:
            self.note(f"{attempt} was refused, and touched: {why}")
        self.check_log(attempt.server)

    def failed(self, attempt: Attempt) -> None:
        """Judge a programming that failed: the region is uncertain."""
        if attempt.was_faulted:
            self.note(f"{attempt.key} was programmed though it had failed")
        self.faulted[attempt.key] = self.shown(attempt.key)
        self.ever_failed.add(names.region_address(*attempt.key))
        self.check_log(attempt.server)

    def changed_by_hand(self, key: Key) -> None:
        """Take notice that somebody put another function there."""
        before, now = self.faulted.get(key), self.shown(key)
        if None not in (before, now) and before != now:
            self.faulted.pop(key)

    def healed(self, key: Key) -> None:
        """Take notice that somebody says a region is in order."""
        self.faulted.pop(key, None)
