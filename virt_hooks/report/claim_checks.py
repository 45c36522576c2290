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
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states

from nova_accel import model
from nova_accel.claims import claim_plan
from virt_hooks import error_guards
from virt_hooks.guest import connection
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
        providers_of: Callable[[str], frozenset[str]],
        forget: Callable[[str, Iterable[model.Slot]], None],
    ) -> None:
        """Compare the claims of a Lifecycle.

        :param providers_of: returns the uuids of the providers that a
            consumer has allocations of.
        :param forget: is called with a consumer and its released slots.
        """
        self._accel = accel
        self._domains = domains
        self._providers_of = providers_of
        self._forget = forget
        #: Projects of this host's servers, as last read from Nova.
        self.projects: Mapping[str, str] = {}
        #: Consumers with running guests that were logged.
        self._logged: frozenset[str] = frozenset()

    def release_unbacked(self, nodes: Iterable[str]) -> None:
        """Release the claims of consumers that Nova does not back any more.

        A release that fails is tried again with the next pass; until then
        the claims are reserved.

        :param nodes: names of this host's compute nodes.
        """
        unbacked = self._list_unbacked(nodes)
        self._accel.set_unbacked_consumers(frozenset(unbacked))
        self._logged &= self._accel.unbacked_consumers
        for uuid, (version, reason) in unbacked.items():
            with error_guards.log_errors(
                "can't release accelerators of %s", uuid
            ):
                self._release(uuid, version, reason)

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

    def _list_unbacked(
        self, nodes: Iterable[str]
    ) -> Mapping[str, tuple[int, str]]:
        """Return the consumers that Nova does not back, and why.

        Each has the version of its claims, see ``ClaimStore.versions``.

        Nova backs a consumer that is a server of this host, a server of a
        migration in progress or that migration itself, or that has
        allocations of a provider that it has claims of. A migration that
        is finished can be reverted only while its server is in state
        RESIZED: otherwise it counts by its allocations alone.

        :param nodes: names of this host's compute nodes.
        :raises nova.exception.NovaException: Nova or Placement can't be
            read; then every consumer counts as backed.
        """
        # The claims are read first: Nova saves a server before its claims.
        versions = self._accel.store.versions()
        if not versions:
            return {}
        context, host = nova_context.get_admin_context(), nova.conf.CONF.host
        servers = objects.InstanceList.get_by_host(
            context, host, expected_attrs=[]
        )
        self.projects = {s.uuid: s.project_id for s in servers}
        backed = {server.uuid for server in servers}
        if not versions.keys() - backed:
            return {}
        resized = frozenset(
            server.uuid
            for server in servers
            if server.vm_state == vm_states.RESIZED
        )
        for node in nodes:
            backed |= _list_migrating(context, host, node, resized)
        return {
            consumer: (version, reason)
            for consumer, version in sorted(versions.items())
            if consumer not in backed
            and (reason := self._explain_unbacked(context, consumer))
        }

    def _explain_unbacked(
        self, context: nova_context.RequestContext, consumer: str
    ) -> str:
        """Return why Nova does not back a consumer without a migration.

        Empty if Placement allocates what it claims. While a server moves
        away, its migration has its allocations here. Those of a server
        whose live migration to this host failed do not count.
        """
        host = nova.conf.CONF.host
        migrations = objects.MigrationList.get_by_filters(
            context, {"instance_uuid": consumer}
        )
        arrivals = [m for m in migrations if m.dest_compute == host]
        last = max(arrivals, key=lambda m: m.id, default=None)
        if (
            last
            and last.is_live_migration
            and last.status != "completed"
            # Nova saves the host of a migration after that has been claimed.
            and not _is_migrating(context, consumer)
        ):
            return _NOT_ARRIVED
        owners = {m.uuid for m in migrations if m.source_compute == host}
        claimed = {claim.provider for claim in self._accel.claims_of(consumer)}
        is_allocated = any(
            claimed & self._providers_of(uuid) for uuid in (consumer, *owners)
        )
        return "" if is_allocated else _UNKNOWN


def _list_migrating(
    context: nova_context.RequestContext,
    host: str,
    node: str,
    resized: frozenset[str],
) -> frozenset[str]:
    """Return the migrations in progress of a node, and their servers.

    Nova never ends a live migration whose source service ended during it:
    one to this host counts only while its server migrates.

    :param resized: this host's servers that can be reverted.
    """
    migrations = objects.MigrationList.get_in_progress_by_host_and_node(
        context, host, node
    )
    consumers = set()
    for m in migrations:
        if not _is_arrival(m, host) or _is_migrating(context, m.instance_uuid):
            consumers.add(m.instance_uuid)
            if m.status != "finished" or m.instance_uuid in resized:
                consumers.add(m.uuid)
    return frozenset(consumers)


def _is_arrival(migration: Any, host: str) -> bool:
    """Return whether a migration is a live migration to this host."""
    return bool(migration.is_live_migration and migration.dest_compute == host)


def _is_migrating(context: nova_context.RequestContext, uuid: str) -> bool:
    """Return whether a server is migrating live, or has arrived here."""
    try:
        instance = objects.Instance.get_by_uuid(context, uuid)
    except exception.InstanceNotFound:
        return False
    return bool(
        instance.task_state == task_states.MIGRATING
        or instance.host == nova.conf.CONF.host
    )


class MissingAllocations:
    """Checks claims for allocations. Not reentrant."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        virtapi: Any,
        is_pending: Callable[[str, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the claims of a Lifecycle.

        :param virtapi: has Nova's client of Placement.
        :param is_pending: returns whether the allocations of a consumer on
            a provider are still to be moved to it.
        :param clock: returns seconds.
        """
        self._accel, self._virtapi, self._clock = accel, virtapi, clock
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
    ) -> dict[str, Mapping[str, Mapping[str, int]]]:
        """Return amounts by provider, consumer and class.

        Providers whose allocations can't be read are missing.
        """
        context = nova_context.get_admin_context()
        client = self._virtapi.reportclient
        allocated: dict[str, Mapping[str, Mapping[str, int]]] = {}
        for uuid in sorted(providers):
            try:
                answer = client.get_allocations_for_resource_provider(
                    context, uuid
                )
            except exception.ResourceProviderAllocationRetrievalFailed as e:
                LOG.debug("allocations of %s are not known: %s", uuid, e)
                continue
            allocated[uuid] = {
                consumer: record["resources"]
                for consumer, record in answer.allocations.items()
            }
        return allocated
