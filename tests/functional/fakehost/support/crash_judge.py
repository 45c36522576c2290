# SPDX-License-Identifier: Apache-2.0
"""Comparison of kernel, Nova, libvirt and claims after a crash."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.host.state import claims_file
from nova_accel.model import providers
from tests.functional.fakehost.support import crash_outside, crash_technologies

#: What must never be.
FAULTS = ("leaked", "lost", "doubly held", "miscounted")


class Judge:
    """Counts what differs on the cards, and tells it in words."""

    def __init__(
        self,
        outside: crash_outside.Outside,
        technology: crash_technologies.Technology,
        book: claims_file.ClaimsFile,
    ) -> None:
        self._outside = outside
        self._technology = technology
        self._book = book
        self.found: list[tuple[str, str]] = []

    def look(
        self,
        stage: str,
        claims: tuple[model.Claim, ...],
        nodes: Sequence[providers.ProviderNode],
    ) -> None:
        """Compare them at one moment, when no operation is under way."""
        made = self.made()
        for fault, what in (
            *(("leaked", what) for what in self._leaked(made)),
            *(("lost", what) for what in self._lost(made, claims)),
            *(("doubly held", what) for what in self._doubly(claims)),
            *(("miscounted", what) for what in self._miscounted(nodes)),
            *(("miscounted", what) for what in self._misprinted(claims)),
        ):
            self.found.append((fault, f"{stage}: {what}"))

    def made(self) -> frozenset[str]:
        """Return the partitions that the kernel has."""
        return self._technology.made(self._outside.kernel)

    def _owners(self) -> dict[str, str]:
        """Return the servers of this host by the partitions they may have."""
        return {
            self._technology.handle(slot): server
            for server, record in self._outside.records.items()
            for slot in record.slots
            if record.is_here
        }

    def _leaked(self, made: frozenset[str]) -> Iterator[str]:
        for handle in made - self._owners().keys():
            yield f"{handle} is nobody's"

    def _lost(
        self, made: frozenset[str], claims: tuple[model.Claim, ...]
    ) -> Iterator[str]:
        owners = self._owners()
        claimed = {claim.handle: claim.consumer for claim in claims}
        for handle in made & owners.keys():
            if claimed.get(handle) != owners[handle]:
                yield f"{handle} of {owners[handle]} is not in the book"
        for server, domain in self._outside.domains.items():
            for device in domain.devices:
                if domain.is_running and device not in made:
                    yield f"{device} is gone, {server} runs"
                if owners.get(device) != server:
                    yield f"{device} is in a domain of {server}, not its own"
        for server, record in self._outside.records.items():
            if record.state == "active" and not (
                self._outside.do_is_running(server)
            ):
                yield f"{server} does not run"

    def _doubly(self, claims: tuple[model.Claim, ...]) -> Iterator[str]:
        for where, handles in (
            ("claims", [claim.handle for claim in claims]),
            (
                "domains",
                [
                    device
                    for domain in self._outside.domains.values()
                    for device in domain.devices
                ],
            ),
        ):
            for handle, number in collections.Counter(handles).items():
                if number > 1:
                    yield f"{handle} is in {number} {where}"

    def _miscounted(
        self, nodes: Sequence[providers.ProviderNode]
    ) -> Iterator[str]:
        return self._technology.miscounted(nodes, self._outside.kernel)

    def _misprinted(self, claims: tuple[model.Claim, ...]) -> Iterator[str]:
        told = self._book.read()
        if not told.is_known:
            yield f"the published book: {told.reason}"
        elif {(c.consumer, c.handle) for c in told.claims} != {
            (c.consumer, c.handle) for c in claims
        }:
            yield f"the published book says {told.claims}"
