# SPDX-License-Identifier: Apache-2.0
"""Checks of this host's claims against Nova and Placement.

Nova calls its driver once at most when a server or a migration ends. A
delete whose clean-up failed, a confirmation that failed here or a move that
failed on another host leaves claims that no later call releases, so each
pass checks which consumers Nova still backs.

After Placement was restored from an older backup, or an operator deleted
an allocation, Placement would offer a server's devices again. nova-compute
looks for such claims; the provider tree reserves their amounts, and the
claims file lists them for placement-sync.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

import nova.conf
from nova import context as nova_context
from nova import objects

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from placement_sync.client import provider_records
from virt_hooks import error_guards
from virt_hooks.guest import connection
from virt_hooks.instance import ledger, nova_records
from virt_hooks.report import server_allocations
from virt_hooks.spawn import claim_store, lifecycle

LOG = logging.getLogger(__name__)

# Seconds between two checks of all providers that have claims. Placement
# raises no generation when it deletes a consumer's allocations, so that
# each provider costs a request. Providers with a missing allocation are
# checked in each pass.
CHECK_S = 300.0

# Why Nova does not back a consumer.
_UNKNOWN = "Nova has no server, migration or allocation for it on this host"
_NOT_ARRIVED = "its live migration to this host has ended"


class Consumers:
    """Releases the claims of consumers that Nova does not back any more."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        domains: connection.HostdevReader,
        allocations: server_allocations.ServerAllocations,
        forget: Callable[[str, Iterable[model.Slot]], None],
    ) -> None:
        """Compare the claims of a Lifecycle.

        :param forget: is called with a consumer and its released slots.
        """
        self._accel = accel
        self._domains = domains
        self._allocations = allocations
        self._forget = forget
        #: Projects of this host's servers, as last read from Nova.
        self.projects: Mapping[str, str] = {}
        #: Consumers with running guests that were logged.
        self._logged: frozenset[str] = frozenset()

    def release_unbacked(
        self, versions: Mapping[str, int], records: nova_records.Records
    ) -> None:
        """Release the claims of consumers that Nova does not back any more.

        A release that fails is tried again with the next pass; until then
        the claims are reserved.

        :param versions: as of ``ClaimStore.versions``, read before the
            records: Nova saves a server before its claims.
        :raises nova.exception.NovaException: Nova's database can't be read;
            then every consumer counts as backed.
        :raises ServiceError: the same for Placement.
        """
        self.projects = {
            uuid: instance.project_id
            for uuid, instance in records.instances.items()
        }
        backed = ledger.build(
            nova.conf.CONF.host,
            records.instances,
            [m for m in records.migrations if m.status != "error"],
        )
        unbacked = {
            consumer: reason
            for consumer in sorted(versions.keys() - backed.keys())
            if (reason := self._explain_unbacked(consumer))
        }
        self._accel.set_unbacked_consumers(frozenset(unbacked))
        self._logged &= self._accel.unbacked_consumers
        for uuid, reason in unbacked.items():
            with error_guards.log_errors(
                "can't release accelerators of %s", uuid
            ):
                self._release(uuid, versions[uuid], reason)

    def _release(self, uuid: str, version: int, reason: str) -> None:
        """Release the claims of a consumer unless a guest runs with them.

        :param version: of the claims; newer claims stay.
        :param reason: why Nova does not back the consumer.
        """
        claims = self._accel.claims_of(uuid)
        running = self._domains.read_running()
        if any(map(running.holds, claim_store.handles_of(claims))):
            if uuid not in self._logged:
                self._logged |= {uuid}
                LOG.warning(
                    "a guest runs with accelerators of %s, for which Nova has"
                    " no server, migration or allocation on this host: they"
                    " stay reserved until the guest is gone",
                    uuid,
                )
            return
        claimed = self._accel.slots_of(uuid)
        if self._accel.is_busy(claimed):
            return
        LOG.warning("releasing accelerators of %s: %s", uuid, reason)
        self._accel.release(
            uuid,
            claimed,
            lambda claim: self._domains.read_running().holds(claim.handle),
            is_due=lambda: self._accel.store.versions().get(uuid) == version,
        )
        if not self._accel.claims_of(uuid):
            self._forget(uuid, claimed)

    def _explain_unbacked(self, consumer: str) -> str:
        """Return why Nova does not back a consumer that it gives no slots.

        Empty if Placement allocates what it claims.
        """
        owners = ledger.find_owners(
            nova.conf.CONF.host,
            consumer,
            objects.MigrationList.get_by_filters(
                nova_context.get_admin_context(), {"instance_uuid": consumer}
            ),
            nova_records.find_instance,
        )
        claimed = {claim.provider for claim in self._accel.claims_of(consumer)}
        if any(
            claimed & self._allocations.providers_of(uuid) for uuid in owners
        ):
            return ""
        return _UNKNOWN if owners else _NOT_ARRIVED


class MissingAllocations:
    """Checks claims for allocations. Not reentrant."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        allocations: server_allocations.ServerAllocations,
        is_pending: Callable[[str, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the claims of a Lifecycle.

        :param is_pending: returns whether the allocations of a consumer on
            a provider are still to be moved to it.
        :param clock: returns seconds.
        """
        self._accel, self._allocations, self._clock = accel, allocations, clock
        self._is_pending = is_pending
        self._next_check = clock()

    def update(self) -> None:
        """Reserve the amounts that are claimed and not allocated.

        Pending allocations are not missing: a reshape that moves them to
        the provider needs the units. The allocation of a claim exists
        before the claim is made, and until it is released: a claim counts
        if it existed before and after Placement was read.
        """
        if not self._accel.is_ready:
            return
        reserved = self._accel.unallocated
        claims = self._accel.claims()
        providers = {claim.provider for claim in claims}
        if self._clock() < self._next_check:
            providers &= {provider for _, provider, _, _ in reserved}
        else:
            self._next_check = self._clock() + CHECK_S
        allocated = self._read(providers)
        missing = claim_plan.find_unallocated(
            claims, self._charges(claims), allocated
        )
        missing |= {
            key: amount
            for key, amount in reserved.items()
            if key[1] not in allocated
        }
        current = {claim.key for claim in self._accel.claims()}
        missing = {
            key: amount
            for key, amount in missing.items()
            if key[:3] in current and not self._is_pending(key[0], key[1])
        }
        for consumer, provider, slot, name in sorted(
            missing.keys() - reserved
        ):
            LOG.warning(
                "server %s has slot %s of provider %s, and %d of its %s are"
                " not allocated; they are reserved. See `nova-accel"
                " audit`",
                *(consumer, slot, provider),
                *(missing[consumer, provider, slot, name], name),
            )
        if missing != reserved:
            self._accel.set_unallocated(missing)

    def _charges(
        self, claims: Iterable[model.Claim]
    ) -> dict[model.ClaimKey, dict[str, int]]:
        """Return the amounts that each claim needs of its device, by class."""
        host = self._accel.host.state
        return {
            claim.key: claim_plan.claim_charges(device, claim)
            for claim in claims
            if (device := host.device(claim.device)) is not None
        }

    def _read(
        self, providers: Iterable[str]
    ) -> dict[str, provider_records.Amounts]:
        """Return amounts by provider, consumer and class.

        Providers whose allocations can't be read are missing.
        """
        allocated: dict[str, provider_records.Amounts] = {}
        for uuid in sorted(providers):
            try:
                by_consumer = self._allocations.consumers_of(uuid)
            except errors.ServiceError as e:
                LOG.debug("allocations of %s are not known: %s", uuid, e)
                continue
            if by_consumer is not None:
                allocated[uuid] = by_consumer
        return allocated
