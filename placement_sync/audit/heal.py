# SPDX-License-Identifier: Apache-2.0
"""Repairs of findings (``--heal``), after a second proof.

Before each change all sources are read and compared again; a finding that
is not confirmed is skipped. Placement refuses a change after a concurrent
one (generation of the consumer, allocations of a provider), and so does
the kernel (an mdev that a guest has open).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from nova_accel import errors
from nova_accel.claims import claim_plan
from nova_accel.discovery import plugin
from nova_accel.host.execute import action_executor, open_files
from nova_accel.model import providers
from placement_sync.audit import (
    checks,
    collected_state,
    collector,
    findings,
    placement_checks,
)
from placement_sync.audit.findings import FindingKind
from placement_sync.client import (
    nova_api,
    provider_records,
    service_client,
)

LOG = logging.getLogger(__name__)

# The newest microversion that leaves a consumer's type unchanged: from 1.38
# on a type is required, and "no type" can't be written.
_UNTYPED = "1.36"
# Nova sets no consumer type; INSTANCE and MIGRATION are those of
# Placement's API reference for servers and migrations.
_NOVA_TYPES = frozenset({None, "unknown", "INSTANCE", "MIGRATION"})


class NotHealedError(errors.AcceleratorError):
    """A finding is not healed.

    :param reason: why.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealResult:
    """Result for a finding; ``reason`` is why it was not healed."""

    finding: findings.AuditFinding
    reason: str = ""

    @property
    def is_healed(self) -> bool:
        return not self.reason


class Healer:
    """Repairs findings one by one."""

    def __init__(
        self,
        reader: collector.StateCollector,
        placement: service_client.ServiceClient,
        drivers: Mapping[str, plugin.Driver],
        executor: action_executor.Executor | None,
    ) -> None:
        """Change nothing yet.

        :param executor: executes changes of the host; None if the findings
            are of another machine.
        """
        self._reader = reader
        self._placement = placement
        self._drivers = drivers
        self._executor = executor
        self._repairs: Mapping[
            FindingKind, Callable[[findings.AuditFinding], None]
        ] = {
            FindingKind.LEAKED: self._delete_allocation,
            FindingKind.UNALLOCATED: self._allocate,
            FindingKind.UNREVERTED: self._revert_allocations,
            FindingKind.ORPHAN: self._remove_mdev,
            FindingKind.GONE: self._delete_provider,
            FindingKind.UNSERVED: self._close_provider,
        }

    def heal(
        self, reported: Iterable[findings.AuditFinding]
    ) -> tuple[HealResult, ...]:
        """Heal the safe findings; return the result of each finding.

        Leaked allocations go first, because a partition with a pending
        allocation is not removed. Children go before their parents.
        """
        ordered = sorted(reported, key=lambda f: _ORDER.index(f.kind))
        return tuple(map(self._heal, self._sort_bottom_up(ordered)))

    def _sort_bottom_up(
        self, ordered: list[findings.AuditFinding]
    ) -> list[findings.AuditFinding]:
        """Return findings with providers of gone hosts, children first."""
        gone = [f for f in ordered if f.kind is FindingKind.GONE and f.is_safe]
        if len(gone) < 2:  # noqa: PLR2004
            return ordered
        parents = {
            p.uuid: p.parent
            for p in self._reader.collect_all_hosts().everywhere or ()
        }

        def depth(finding: findings.AuditFinding) -> int:
            count, uuid = 0, finding.provider
            while uuid in parents:
                count, uuid = count + 1, parents[uuid]
            return count

        others = [f for f in ordered if f not in gone]
        return others + sorted(gone, key=depth, reverse=True)

    def _heal(self, finding: findings.AuditFinding) -> HealResult:
        if not finding.is_safe:
            return HealResult(
                finding=finding, reason="it can't be proved that it is safe"
            )
        try:
            self._repairs[finding.kind](finding)
        except errors.AcceleratorError as error:
            return HealResult(finding=finding, reason=str(error))
        return HealResult(finding=finding)

    def _prove(
        self,
        finding: findings.AuditFinding,
        state: collected_state.CollectedState,
    ) -> None:
        """Raise NotHealedError unless a new state confirms the finding."""
        confirmed = checks.compare(state).finding(finding.key)
        if confirmed is not None and confirmed.is_safe:
            return
        gaps = [f"{source.value}: {r}" for source, r in state.unread.items()]
        raise NotHealedError(
            "; ".join(["a second comparison does not confirm it", *gaps])
        )

    def _delete_allocation(self, finding: findings.AuditFinding) -> None:
        path = f"/allocations/{finding.consumer}"
        # Read before the proof: its generation makes a later change of
        # another client a conflict.
        before, fields, consumer_type = provider_records.fetch_consumer(
            self._placement.fetch, finding.consumer
        )
        self._prove(
            finding, self._reader.collect(frozenset({finding.consumer}))
        )
        if finding.provider not in before:
            raise NotHealedError(
                "its allocation has just been made; audit again"
            )
        _check_type(consumer_type)
        after = {u: before[u] for u in before if u != finding.provider}
        self._placement.put(path, _build_body(after) | fields, _UNTYPED)
        LOG.info(
            "Deleted leaked allocation of consumer %s on %s; %d other"
            " providers unchanged",
            finding.consumer,
            finding.where,
            len(after),
        )

    def _allocate(self, finding: findings.AuditFinding) -> None:
        """Allocate the amounts of a server's claims on one provider."""
        uuid, provider = finding.consumer, finding.provider
        # Read before the proof: its generation makes a later change of
        # another client a conflict.
        before, fields, consumer_type = provider_records.fetch_consumer(
            self._placement.fetch, uuid
        )
        state = self._reader.collect(frozenset({uuid}))
        self._prove(finding, state)
        _check_type(consumer_type)
        index = collected_state.StateIndex(state)
        server = index.servers[uuid]
        if server is None:
            raise NotHealedError("Nova has just deleted the server")
        after = placement_checks.add_claimed_amounts(
            placement_checks.add_node_allocation(before, index, server),
            index,
            provider,
            index.unallocated()[uuid, provider],
        )
        body = _build_body(after) | (fields or _build_consumer(server))
        allocated = before.get(provider, {})
        added = {
            name: amount - allocated.get(name, 0)
            for name, amount in after[provider].items()
        }
        self._put_allocations(f"/allocations/{uuid}", body, provider, added)
        LOG.info(
            "Allocated %s of %s to server %s, which had claimed it",
            *(_format_amounts(after[provider]), finding.where, uuid),
        )
        root = self._reader.root
        if root.uuid not in before:
            LOG.info(
                "Allocated %s of compute node %s to server %s, by its flavor",
                *(_format_amounts(after[root.uuid]), root.name, uuid),
            )

    def _revert_allocations(self, finding: findings.AuditFinding) -> None:
        """Move the allocations of a failed migration back to its server.

        As Nova does, one request also replaces the allocations that the
        server has on the destination.
        """
        listed = self._reader.collect(frozenset()).migrations or ()
        migration = next(
            (m for m in listed if m.uuid == finding.consumer), None
        )
        if migration is None:
            raise NotHealedError("Nova does not list this migration any more")
        # Read before the proof: their generations make a later change of
        # another client a conflict.
        moved, fields, consumer_type = provider_records.fetch_consumer(
            self._placement.fetch, migration.uuid
        )
        _, own_fields, own_type = provider_records.fetch_consumer(
            self._placement.fetch, migration.server
        )
        self._prove(finding, self._reader.collect(frozenset()))
        _check_type(consumer_type)
        _check_type(own_type)
        # A consumer without allocations has no generation.
        own_fields = own_fields or fields | {"consumer_generation": None}
        self._placement.post(
            "/allocations",
            {
                migration.server: _build_body(moved) | own_fields,
                migration.uuid: _build_body({}) | fields,
            },
            _UNTYPED,
        )
        LOG.info(
            "Moved the allocations of failed migration %s back to server %s:"
            " %d providers",
            *(migration.uuid, migration.server, len(moved)),
        )

    def _put_allocations(
        self,
        path: str,
        body: Mapping[str, object],
        provider: str,
        added: Mapping[str, int],
    ) -> None:
        """Write allocations; after a conflict once more, with room made.

        :param added: additional amounts on the provider, by class.
        """
        try:
            self._placement.put(path, body, _UNTYPED)
        except errors.ServiceError as error:
            if not error.is_conflict:
                raise
            self._lower_reserved(provider, added)
            self._placement.put(path, body, _UNTYPED)

    def _lower_reserved(self, provider: str, added: Mapping[str, int]) -> None:
        """Release units that this library has reserved for an allocation.

        Placement's reshaper would change both in one request, but its
        policy admits services only. If another client allocates first, the
        allocation is refused, and the next pass reserves the units again.

        :param added: units to be allocated, by resource class.
        """
        self._change_inventories(
            provider,
            lambda name, inventory: _lower(inventory, added.get(name, 0)),
        )

    def _close_provider(self, finding: findings.AuditFinding) -> None:
        self._prove(finding, self._reader.collect(frozenset()))
        self._change_inventories(
            finding.provider,
            lambda _, inventory: inventory.with_own_reserved(inventory.total),
        )
        LOG.info(
            "Closed provider %s of %s, whose nova-compute runs without"
            " nova-accel",
            *(finding.where, self._reader.root.name),
        )

    def _change_inventories(
        self,
        provider: str,
        change: Callable[[str, providers.Inventory], providers.Inventory],
    ) -> None:
        """Replace a provider's inventories.

        :param change: returns the new record of a resource class.
        """
        path = provider_records.provider_path(provider, "inventories")
        stored = provider_records.fetch_inventories(
            self._placement.fetch, provider
        )
        if stored is None:
            raise NotHealedError(
                "its provider has just been deleted; audit again"
            )
        generation, inventories = stored
        changed = {n: change(n, i) for n, i in inventories.items()}
        self._placement.put(
            path,
            {
                "resource_provider_generation": generation,
                "inventories": providers.as_dicts(changed),
            },
        )

    def _remove_mdev(self, finding: findings.AuditFinding) -> None:
        state = self._reader.collect(frozenset())
        self._prove(finding, state)
        device = collected_state.StateIndex(state).device(finding.provider)
        if self._executor is None or device is None:
            raise NotHealedError("the device is not one of this machine")
        if pids := open_files.find_processes(
            self._executor.root, finding.handle
        ):
            numbers = ", ".join(map(str, sorted(pids)))
            raise NotHealedError(f"it is open in the processes {numbers}")
        claim = claim_plan.claim_from_partition(
            device,
            next(p for p in device.partitions if p.handle == finding.handle),
        )
        actions = self._drivers[device.plugin].plan_release(claim)
        # A claim is published before its partition is created, and the uuid
        # of a slot's mdev does not depend on the server.
        if self._reader.is_claimed(finding.handle):
            raise NotHealedError("a server has claimed it just now")
        self._executor.apply_all(actions)
        LOG.info(
            "Removed orphaned mdev %s (%s) on %s",
            claim.handle,
            claim.profile,
            device.address,
        )

    def _delete_provider(self, finding: findings.AuditFinding) -> None:
        state = self._reader.collect_all_hosts(finding.provider)
        self._prove(finding, state)
        self._placement.delete(f"/resource_providers/{finding.provider}")
        LOG.info(
            "Deleted provider %s (%s) of a removed compute node",
            finding.where,
            finding.provider,
        )


def _lower(inventory: providers.Inventory, amount: int) -> providers.Inventory:
    """Return an inventory with fewer units reserved by this library.

    Unchanged if an operator has reserved units, too.
    """
    own = inventory.own_reserved
    if inventory.reserved == own >= amount > 0:
        return inventory.with_own_reserved(own - amount)
    return inventory


def _build_body(amounts: provider_records.Amounts) -> dict[str, object]:
    """Return amounts by provider in the format of Placement's API."""
    return {
        "allocations": {
            uuid: {"resources": dict(by_class)}
            for uuid, by_class in amounts.items()
        }
    }


def _build_consumer(server: nova_api.Server) -> dict[str, object]:
    """Return the fields of a consumer that has no allocation yet."""
    return {
        "project_id": server.project,
        "user_id": server.user,
        "consumer_generation": None,
    }


def _format_amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(amounts.items()))


def _check_type(consumer_type: str | None) -> None:
    """Raise NotHealedError for a consumer of another service."""
    if consumer_type not in _NOVA_TYPES:
        raise NotHealedError(
            f"its consumer has the type {consumer_type}, which is not Nova's"
        )


_ORDER = (
    FindingKind.LEAKED,
    *(kind for kind in FindingKind if kind is not FindingKind.LEAKED),
)
