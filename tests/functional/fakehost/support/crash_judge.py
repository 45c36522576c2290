# SPDX-License-Identifier: Apache-2.0
"""Comparison of kernel, Nova, libvirt and claims after a crash."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.host.state import claims_file
from nova_accel.model import providers
from tests.functional.fakehost.support import crash_outside, crash_technologies

#: Kinds of findings.
FAULTS = ("leaked", "lost", "doubly held", "miscounted")


class Judge:
    """Collects the differences between the records of the cards."""

    def __init__(
        self,
        outside: crash_outside.Outside,
        technology: crash_technologies.Technology,
        published: claims_file.ClaimsFile,
    ) -> None:
        self._outside = outside
        self._technology = technology
        self._published = published
        self.findings: list[tuple[str, str]] = []

    def compare(
        self,
        stage: str,
        claims: tuple[model.Claim, ...],
        nodes: Sequence[providers.ProviderNode],
    ) -> None:
        """Compare all records while no operation runs."""
        partitions = self.list_partitions()
        for fault, what in (
            *(("leaked", what) for what in self._leaked(partitions)),
            *(("lost", what) for what in self._lost(partitions, claims)),
            *(("doubly held", what) for what in self._doubly(claims)),
            *(("miscounted", what) for what in self._miscounted(nodes)),
            *(("miscounted", what) for what in self._unpublished(claims)),
        ):
            self.findings.append((fault, f"{stage}: {what}"))

    def list_partitions(self) -> frozenset[str]:
        """Return the partitions that the kernel has."""
        return self._technology.list_partitions(self._outside.kernel)

    def _owners(self) -> dict[str, str]:
        """Return the servers of this host, by their partitions."""
        return {
            self._technology.handle(slot): server
            for server, record in self._outside.records.items()
            for slot in record.slots
            if record.is_here
        }

    def _leaked(self, partitions: frozenset[str]) -> Iterator[str]:
        for handle in partitions - self._owners().keys():
            yield f"{handle} has no server"

    def _lost(
        self, partitions: frozenset[str], claims: tuple[model.Claim, ...]
    ) -> Iterator[str]:
        owners = self._owners()
        claimed = {claim.handle: claim.consumer for claim in claims}
        for handle in partitions & owners.keys():
            if claimed.get(handle) != owners[handle]:
                yield f"{handle} of {owners[handle]} has no claim"
        for server, domain in self._outside.domains.items():
            for device in domain.devices:
                if domain.is_running and device not in partitions:
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

    def _unpublished(self, claims: tuple[model.Claim, ...]) -> Iterator[str]:
        published = self._published.read()
        if not published.is_known:
            yield f"the claims file: {published.reason}"
        elif {(c.consumer, c.handle) for c in published.claims} != {
            (c.consumer, c.handle) for c in claims
        }:
            yield f"the claims file has {published.claims}"
