# SPDX-License-Identifier: Apache-2.0
"""Repairs of findings (``--heal``), after a second proof.

Before each change the same comparison is made again, on evidence read
anew: what is not found then is left. What could come in between is refused
by Placement (the generation of the consumer, the allocations of a
provider) or by the kernel (the mdev that a guest has open).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from nova_accel import errors
from nova_accel.claims import claim_plan
from nova_accel.discovery import plugin
from nova_accel.host.execute import action_executor, open_files
from placement_sync.audit import (
    checks,
    collected_state,
    collector,
    findings,
    placement_checks,
)
from placement_sync.audit.findings import FindingKind
from placement_sync.client import nova_types, provider_records, rest

LOG = logging.getLogger(__name__)

# The newest version in which a consumer's type is left as it is: from 1.38
# it must be given, and one that has none can't be given back.
_UNTYPED = "1.36"
# Nova gives its consumers no type; these two are those that Placement's
# API reference has for servers and their moves.
_NOVAS = frozenset({None, "unknown", "INSTANCE", "MIGRATION"})


class NotHealedError(errors.AcceleratorError):
    """A finding is left as it is.

    :param reason: why.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealResult:
    """What became of a finding; ``left`` says why it was not mended."""

    finding: findings.AuditFinding
    left: str = ""

    @property
    def is_mended(self) -> bool:
        """Return whether it is mended."""
        return not self.left


class Healer:
    """Mends findings one by one."""

    def __init__(
        self,
        reader: collector.StateCollector,
        placement: rest.RestClient,
        drivers: Mapping[str, plugin.Driver],
        executor: action_executor.Executor | None,
    ) -> None:
        """Use these.

        :param executor: carries out changes of the host; None where this
            is another machine's.
        """
        self._reader = reader
        self._placement = placement
        self._drivers = drivers
        self._executor = executor
        self._mend: Mapping[
            FindingKind, Callable[[findings.AuditFinding], None]
        ] = {
            FindingKind.LEAKED: self._unset,
            FindingKind.UNALLOCATED: self._allocate,
            FindingKind.ORPHAN: self._unmake,
            FindingKind.GONE: self._delete,
        }

    def mend(
        self, found: Iterable[findings.AuditFinding]
    ) -> tuple[HealResult, ...]:
        """Mend what can be; return what became of each finding.

        Allocations go first: a partition that somebody may be about to
        use is left. Providers go before what they nest in.
        """
        wanted = sorted(found, key=lambda f: _ORDER.index(f.kind))
        outcomes = [self._mend_one(one) for one in self._bottom_up(wanted)]
        return tuple(outcomes)

    def _bottom_up(
        self, wanted: list[findings.AuditFinding]
    ) -> list[findings.AuditFinding]:
        """Return findings, providers of gone hosts behind their parts."""
        lost = [f for f in wanted if f.kind is FindingKind.GONE and f.is_safe]
        if len(lost) < 2:  # noqa: PLR2004
            return wanted
        parents = {
            p.uuid: p.parent
            for p in self._reader.look_everywhere().everywhere or ()
        }

        def depth(finding: findings.AuditFinding) -> int:
            count, uuid = 0, finding.provider
            while uuid in parents:
                count, uuid = count + 1, parents[uuid]
            return count

        others = [f for f in wanted if f not in lost]
        return others + sorted(lost, key=depth, reverse=True)

    def _mend_one(self, finding: findings.AuditFinding) -> HealResult:
        if not finding.is_safe:
            return HealResult(
                finding=finding, left="it can't be proved that it is safe"
            )
        try:
            self._mend[finding.kind](finding)
        except errors.AcceleratorError as error:
            return HealResult(finding=finding, left=str(error))
        return HealResult(finding=finding)

    def _prove(
        self,
        finding: findings.AuditFinding,
        known: collected_state.CollectedState,
    ) -> None:
        """Raise LeftError unless new evidence says the same again."""
        again = checks.compare(known).finding(finding.key)
        if again is not None and again.is_safe:
            return
        unasked = [f"{s.value}: {why}" for s, why in known.unasked.items()]
        raise NotHealedError(
            "; ".join(["a second look does not say so any more", *unasked])
        )

    def _unset(self, finding: findings.AuditFinding) -> None:
        """Take a consumer's part of one of our providers."""
        path = f"/allocations/{finding.consumer}"
        # Of before the proof: whoever changes it meanwhile is noticed.
        held, fields, kind = self._read_consumer(finding.consumer)
        self._prove(finding, self._reader.look(frozenset({finding.consumer})))
        if finding.provider not in held:
            raise NotHealedError(
                "its allocation has just been made; look again"
            )
        _check_type(kind)
        left = {u: held[u] for u in held if u != finding.provider}
        self._placement.put(path, _allocations(left) | fields, _UNTYPED)
        LOG.info(
            "allocations of %s for %s, which is nobody, are taken away; left"
            " are those of %d other providers",
            finding.where,
            finding.consumer,
            len(left),
        )

    def _allocate(self, finding: findings.AuditFinding) -> None:
        """Allocate what a server has claimed of one of our providers."""
        uuid, provider = finding.consumer, finding.provider
        path = f"/allocations/{uuid}"
        # Before the proof: its generation makes a later change a conflict.
        allocations, fields, kind = self._read_consumer(uuid)
        known = self._reader.look(frozenset({uuid}))
        self._prove(finding, known)
        _check_type(kind)
        world = collected_state.StateIndex(known)
        server = world.servers[uuid]
        if server is None:
            raise NotHealedError("Nova has just deleted the server")
        after = placement_checks.allocations_after(
            placement_checks.with_node(allocations, world, server),
            world,
            provider,
            world.unallocated()[uuid, provider],
        )
        change = _allocations(after) | (fields or _new_consumer(server))
        try:
            self._placement.put(path, change, _UNTYPED)
        except errors.ServiceError as error:
            if not error.is_conflict:
                raise
            before = allocations.get(provider, {})
            more = {
                name: amount - before.get(name, 0)
                for name, amount in after[provider].items()
            }
            self._lower_reserved(provider, more)
            self._placement.put(path, change, _UNTYPED)
        LOG.info(
            "Allocated %s of %s to server %s, which had claimed it",
            *(_in_words(after[provider]), finding.where, uuid),
        )
        root = self._reader.root
        if root.uuid not in allocations:
            LOG.info(
                "Allocated %s of compute node %s to server %s, by its flavor",
                *(_in_words(after[root.uuid]), root.name, uuid),
            )

    def _read_consumer(
        self, uuid: str
    ) -> tuple[provider_records.Amounts, dict[str, object], str | None]:
        """Return a consumer's allocations, its other fields, and its type."""
        return self._placement.read(
            f"/allocations/{uuid}", provider_records.parse_consumer
        )

    def _lower_reserved(self, provider: str, more: Mapping[str, int]) -> None:
        """Make room for an allocation of what we have reserved for it.

        Placement's reshaper would change both at once, but its policy
        admits services only. If another client is faster, the allocation is
        refused, and the next pass reserves what it should.

        :param more: what is to be allocated, by resource class.
        """
        path = provider_records.provider_path(provider, "inventories")
        found = self._placement.read(path, provider_records.parse_inventories)
        if found is None:
            raise NotHealedError(
                "its provider has just been deleted; look again"
            )
        generation, inventories = found
        lowered = {
            name: record.reserving(record.own - more.get(name, 0))
            if record.reserved == record.own >= more.get(name, 0) > 0
            else record
            for name, record in inventories.items()
        }
        self._placement.put(
            path,
            {
                "resource_provider_generation": generation,
                "inventories": {
                    name: record.as_dict() for name, record in lowered.items()
                },
            },
        )

    def _unmake(self, finding: findings.AuditFinding) -> None:
        """Remove an mdev that nobody has."""
        known = self._reader.look(frozenset())
        self._prove(finding, known)
        device = known.host.device(finding.where) if known.host else None
        if self._executor is None or device is None:
            raise NotHealedError("the device is not one of this machine")
        if pids := open_files.find(self._executor.root, finding.handle):
            who = ", ".join(map(str, sorted(pids)))
            raise NotHealedError(f"it is open in the processes {who}")
        claim = claim_plan.of_partition(
            device,
            next(p for p in device.partitions if p.handle == finding.handle),
        )
        wanted = self._drivers[device.plugin].plan_release(claim)
        # A claim is published before its partition is made, and an mdev in
        # a slot has the same uuid whoever the slot is for.
        if self._reader.is_claimed(finding.handle):
            raise NotHealedError("a server has claimed it just now")
        self._executor.apply_all(wanted)
        LOG.info(
            "mdev %s (%s) on %s, which nobody has, is removed",
            claim.handle,
            claim.profile,
            device.address,
        )

    def _delete(self, finding: findings.AuditFinding) -> None:
        """Delete a provider of a host that is gone."""
        known = self._reader.look_everywhere(finding.provider)
        self._prove(finding, known)
        self._placement.delete(f"/resource_providers/{finding.provider}")
        LOG.info(
            "provider %s (%s), whose host is gone, is deleted",
            finding.where,
            finding.provider,
        )


def _allocations(amounts: provider_records.Amounts) -> dict[str, object]:
    """Return amounts by provider as Placement's API spells them."""
    return {
        "allocations": {
            uuid: {"resources": dict(each)} for uuid, each in amounts.items()
        }
    }


def _new_consumer(server: nova_types.Server) -> dict[str, object]:
    """Return the fields of a consumer that has no allocation yet."""
    return {
        "project_id": server.project,
        "user_id": server.user,
        "consumer_generation": None,
    }


def _in_words(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(amounts.items()))


def _check_type(found: str | None) -> None:
    """Raise LeftError for a consumer that is another service's."""
    if found not in _NOVAS:
        raise NotHealedError(
            f"its consumer is a {found}, which is not of Nova"
        )


_ORDER = (
    FindingKind.LEAKED,
    *(kind for kind in FindingKind if kind is not FindingKind.LEAKED),
)
