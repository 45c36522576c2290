# SPDX-License-Identifier: Apache-2.0
"""Lifecycle of the partitions of a server: ensure, restore, release.

``ensure`` makes the partitions of a server's slots, and undoes only what it
has made itself; ``release`` retires them, however their use ends; ``clean_up``
retires those that no server has. Each is idempotent, holds the locks of the
cards that it changes, so that other cards are changed in parallel, and records
the result in the node's claims (``claim_store.NodeClaims``). The changes are
planned in ``spawn_plan``, undone in ``release``, and found in
``orphan_cleanup`` if no server has them.
"""

import dataclasses
import errno
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.config import policy
from nova_accel.discovery import plugin, snapshot
from nova_accel.host.execute import action_executor
from nova_accel.model import actions, flavors, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import (
    card_modes,
    claim_store,
    host_access,
    orphan_cleanup,
    ownership,
    release,
    scrubbing,
    spawn_plan,
)

LOG = logging.getLogger(__name__)

_NO_USE = connection.HostdevUse()
_NO_BITSTREAMS: Mapping[str, model.Bitstream] = types.MappingProxyType({})


class Lifecycle(claim_store.NodeClaims):
    """Partitions of the servers of one compute node. Thread-safe."""

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        executor: action_executor.Executor,
        host: snapshot.Snapshot,
        access: host_access.HostAccess | None = None,
    ) -> None:
        access = access or host_access.HostAccess()
        super().__init__(rules, host, access)
        self.drivers = drivers
        self._executor = executor
        self._domains = access.domains
        self.uevents = access.uevents
        self.faults = access.faults
        self.programs = access.programs
        self._locks = host_access.DeviceLocks()
        self._release = release.PartitionRelease(
            drivers,
            scrubbing.Scrubber(executor, rules, host),
            self.store,
            host,
            access,
        )
        self._planner = spawn_plan.SpawnPlanner(
            self.store, self._release, self.programs, host
        )
        self._orphan_cleanup = orphan_cleanup.OrphanCleanup(
            self.store, self._locks, self._release, access.domains
        )
        self._mode_setter: card_modes.CardModeSetter | None = None
        if access.read_host is not None:
            self._mode_setter = card_modes.CardModeSetter(
                drivers, rules, executor, self._locks, access.read_host
            )
        #: Host for which all cards were last seen in their modes.
        self._checked_host: model.HostState | None = None
        self._service_lock = access.service_lock
        #: Whether no other nova-compute makes claims on this host.
        self.is_alone = True
        self._has_checked_scrubs = False

    # -- spawn -------------------------------------------------------------

    def ensure(
        self,
        consumer: str,
        groups: tuple[flavors.RequestGroup, ...],
        slots: tuple[model.Slot, ...],
        allocations: model.Allocations = types.MappingProxyType({}),
        bitstreams: Mapping[str, model.Bitstream] = _NO_BITSTREAMS,
    ) -> tuple[model.Claim, ...]:
        """Make the partitions of a server's slots unless they are made.

        All or none: after an error the partitions made are removed again.
        A partition that another server left in a slot is replaced, never
        reused.

        :param allocations: the server's allocations by provider, for a
            server that comes to this host. A drained or faulty device is
            then refused.
        :param bitstreams: the bitstreams on this host, by image.
        :returns: the claims, all made.
        :raises ClaimError: this host can't make the partitions.
        :raises ActionError: the kernel refused to make a partition.
        """
        spawn_plan.check_allocated(consumer, groups, slots, self.host.state)
        if not slots:
            return ()
        root = self._require_root(consumer)
        request = spawn_plan.SpawnRequest(
            consumer=consumer,
            root=root,
            groups=groups,
            slots=slots,
            allocations=allocations,
            bitstreams=bitstreams,
        )
        with self._locks.hold(self._lock_keys(slots)):
            host = spawn_plan.refresh_cards(self.host, root, slots, groups)
            previous = self.claims_of(consumer)
            try:
                claims = self._planner.plan(request, previous, host)
            except errors.ClaimError:
                # Another program may have used the card: report it at once.
                spawn_plan.refresh_cards(self.host, root, slots, is_whole=True)
                raise
            self.store.set_claims(consumer, claims)
            if all(c.state is model.ClaimState.MADE for c in claims):
                return claims
            self._make_partitions(consumer, claims, previous)
            made = tuple(
                dataclasses.replace(claim, state=model.ClaimState.MADE)
                for claim in claims
            )
            self.store.set_claims(consumer, made)
            if any(claim.bitstream for claim in made):
                self.programs.note_loaded(made)
            spawn_plan.refresh_cards(self.host, root, slots)
        return made

    def _make_partitions(
        self,
        consumer: str,
        claims: tuple[model.Claim, ...],
        previous: tuple[model.Claim, ...],
    ) -> None:
        """Make the planned partitions; after an error restore the claims.

        The executor undoes its actions, and the result is verified. This
        is no retirement: no guest has had the partitions, so that no
        function needs a scrub and no region a blank bitstream. The server's
        other partitions may be in a guest, and stay.
        """
        try:
            self._executor.apply_all(self._plan_actions(claims))
        except BaseException as error:
            self.programs.note_failure(
                error, lambda address: self.host.refresh_cards({address})
            )
            self.store.set_claims(consumer, previous)
            is_late = getattr(error, "number", 0) == errno.ETIMEDOUT
            self._release.verify(
                ownership.exclude(claims, claim_store.made_only(previous)),
                is_late,
            )
            # The kernel's refusal contradicts the last reading.
            self.host.refresh_cards({claim.device for claim in claims})
            raise

    def _plan_actions(
        self, claims: Iterable[model.Claim]
    ) -> Iterator[actions.Action]:
        for claim in claims:
            if claim.state is not model.ClaimState.MADE:
                yield from self.drivers[claim.plugin].plan_prepare(claim)

    def has_undecided(self, consumer: str) -> bool:
        """Return whether a note on one of its functions can't be read."""
        claims = self.claims_of(consumer)
        return bool(self._release.notes.list_undecided(consumer, claims))

    # -- start of the service ----------------------------------------------

    def restore(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        groups: tuple[flavors.RequestGroup, ...] = (),
        read_slots: Callable[[], Iterable[model.Slot]] | None = None,
        is_built: bool = True,
    ) -> tuple[model.Claim, ...]:
        """Add the claims of a server that has slots in Nova's database.

        No partition is made. A partition that a reboot of the host has
        removed is claimed too, if the server's groups show how much it
        needs. Other claims of the server stay, and so does what is known
        of partitions that are made.

        A partition that may have been left in a slot by an earlier server
        is not the server's: its claim is planned, and ``ensure`` clears
        the slot.

        :param read_slots: returns the slots that the server still has once
            the cards are locked; waiting for the locks may take long.
        :param is_built: whether the server has been spawned on this host.
        :returns: the claims on these slots.
        """
        root, slots = self._require_root(consumer), tuple(slots)
        with self._locks.hold(self._lock_keys(slots)):
            if read_slots is not None:
                slots = tuple(read_slots())
            previous = claim_store.in_slots(self.claims_of(consumer), slots)
            before = claim_store.made_only(previous)
            if len(before) == len(slots):
                return previous
            host = self.host.state
            existing = tuple(
                claim
                for claim in claim_plan.find_existing(
                    consumer, slots, root, host
                )
                if claim.profile != model.UNKNOWN
                and self._is_partition_of(consumer, claim)
            )
            claims = ownership.plan_missing(
                consumer, existing, groups, slots, root, host, self.store
            )
            made = before
            if is_built:
                made += self._release.notes.exclude_unclean(
                    consumer,
                    [
                        claim
                        for claim in claims
                        if claim in existing or matching.is_in_own_slot(claim)
                    ],
                )
            claims = ownership.plan_unless_made(made, claims)
            claims += claim_store.not_in_slots(
                before, claim_store.slots_of(claims)
            )
            self.store.restore(consumer, slots, existing, claims)
        return claims

    def _is_partition_of(self, consumer: str, claim: model.Claim) -> bool:
        """Return whether the partition in a server's slot is the server's."""
        return matching.is_in_own_slot(
            claim
        ) or self._domains.read_use().is_of(consumer, claim.handle)

    # -- release -----------------------------------------------------------

    def release(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        is_in_guest: Callable[[model.Claim], bool],
        domain: connection.HostdevUse = _NO_USE,
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        """Remove or scrub the partitions of a server's slots, and verify.

        A partition that can't be removed stays reserved; a later clean-up
        tries again. After an error the claims are unchanged.

        :param is_in_guest: returns whether the server's running guest has
            the partition of a claim; then none is removed.
        :param domain: the host devices of the server's own domain.
        :param is_due: returns, once the cards are locked, whether the
            slots are still to be released.
        """
        # Claims have no resource class: the same slot may come twice.
        unique = {slot.key: slot for slot in slots}
        slots = tuple(unique.values())
        if not slots or self.root is None:
            return
        with self._locks.hold(self._lock_keys(slots)):
            if not is_due():
                return
            host = spawn_plan.refresh_cards(self.host, self.root, slots)
            claims = self.store.exclude_claimed_by_others(
                consumer, claim_store.in_slots(self.claims_of(consumer), slots)
            )
            if not any(is_in_guest(claim) for claim in claims):
                host = self._release.scrubber.await_drivers(claims, host)
            existing = self._find_existing(
                consumer, slots, claims, domain, host
            )
            absent = ownership.exclude(claims, existing)
            if any(is_in_guest(claim) for claim in existing + absent):
                LOG.error(
                    "server %s still runs: none of its partitions is removed",
                    consumer,
                )
                return
            # Functions that the host's driver has bound again do not exist
            # as partitions, but have to be scrubbed.
            self._release.retire(
                existing,
                host,
                absent,
                ownership.assigned_handles(claims, domain),
            )
            self._use.release(existing)
            self.store.remove_claims(consumer, slots)
        # The guest may have started meanwhile. ServerPartitions.starting finds
        # one that starts later, as the claims are removed by now.
        self.retain_running(consumer, existing + absent, is_in_guest)

    def retain_running(
        self,
        consumer: str,
        claims: Iterable[model.Claim],
        is_in_guest: Callable[[model.Claim], bool],
    ) -> bool:
        """Claim partitions again that a guest runs with.

        A release may overlap the start of the guest. The claims count as
        unbacked: a pass releases them when the guest is gone.

        :param claims: those that the server had.
        :returns: whether there were any.
        """
        current = self.claims_of(consumer)
        lost = self.store.exclude_claimed_by_others(
            consumer, ownership.exclude(claims, current)
        )
        running = tuple(claim for claim in lost if is_in_guest(claim))
        if not running:
            return False
        LOG.error(
            "server %s runs with %s, released while it started: reserved",
            consumer,
            ", ".join(claim.handle for claim in running),
        )
        self.store.set_claims(consumer, (*current, *running))
        self.set_unbacked_consumers(self.unbacked_consumers | {consumer})
        self._release.notes.note_assigned(running)
        return True

    def _find_existing(
        self,
        consumer: str,
        slots: tuple[model.Slot, ...],
        claims: tuple[model.Claim, ...],
        domain: connection.HostdevUse,
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Return the claims of the partitions that exist in some slots.

        A partition without a claim is excluded if another domain has it:
        Nova may have reassigned the slot.

        :param claims: the server's claims on these slots.
        """
        root = self._require_root(consumer)
        made = self._release.made(host)
        existing = tuple(
            ownership.recorded_claim(claim, made)
            for claim in self.store.exclude_claimed_by_others(
                consumer, claim_plan.find_existing(consumer, slots, root, host)
            )
            if domain.holds(claim.handle) or ownership.is_owned(claim, made)
        )
        assigned = ownership.assigned_handles(claims, domain)
        existing = tuple(
            claim
            for claim in existing
            if claim.region is None
            or claim.handle in assigned
            or self._release.notes.is_last_consumer(consumer, claim.slot)
        )
        if unclaimed := ownership.exclude(existing, claims):
            use = self._domains.read_use().without(
                domain.mdevs | domain.functions
            )
            in_use = [claim for claim in unclaimed if use.holds(claim.handle)]
            existing = ownership.exclude(existing, in_use)
        return existing

    # -- periodic passes ---------------------------------------------------

    def set_alone(self, is_alone: bool) -> None:
        self.is_alone = is_alone

    def acquire_service_lock(self) -> bool:
        """Return whether this is the only nova-compute of the host.

        Try to acquire the lock of the service if it is not held yet.
        """
        return self._service_lock is None or self._service_lock.acquire()

    def is_busy(self, slots: Iterable[model.Slot]) -> bool:
        """Return whether a change to a card of some slots is in progress.

        Periodic passes skip such cards: loading a bitstream may take an
        hour.
        """
        return self._locks.is_any_held(self._lock_keys(tuple(slots)))

    def set_card_modes(
        self,
        read_awaited: Callable[[], Iterable[model.Slot]] = tuple,
        retries_failed: bool = True,
    ) -> bool:
        """Set cards to the modes that policy asks for.

        The host is read again if any card was changed. Errors are logged.
        Nothing is read while the host is as it was when all cards were in
        their modes.

        :param read_awaited: returns slots of servers whose claims are not
            restored yet.
        :param retries_failed: retry changes that have failed before. A
            pass that uevents start must not: a failing change may send
            uevents itself.
        :returns: whether any card was changed.
        """
        before = self.host.state
        if self._mode_setter is None or self._checked_host is before:
            return False

        def read_assigned() -> tuple[model.Slot, ...] | None:
            if not self.is_alone:
                return None
            return (*claim_store.slots_of(self.claims()), *read_awaited())

        if self._mode_setter.set_modes(
            self.root,
            self._domains.read_running,
            read_assigned,
            retries_failed,
        ):
            self.host.refresh()
            return True
        if self._mode_setter.is_complete:
            self._checked_host = before
        return False

    def clean_up(self) -> None:
        """Remove partitions that are provably owned and unused.

        It reads the hostdevs of all domains, those of a pass first and those
        of now before a removal. Partitions that are released meanwhile count
        as unused; whole functions in a domain are reserved unless a claim
        has them. Not reentrant.
        """
        use = self._use.read()
        if self.is_alone and not self._has_checked_scrubs:
            self._has_checked_scrubs = self._release.set_aside_interrupted(
                self.claims()
            )
        self._has_read_use = True
        self._publish_claims()
        root = self.root
        if root is not None and self.is_alone:
            self._orphan_cleanup.run(
                root, lambda: self.host.state, use, self._is_still_alone
            )

    def _is_still_alone(self) -> bool:
        return self.is_alone and self.acquire_service_lock()

    # -- cards -------------------------------------------------------------

    def _lock_keys(self, slots: tuple[model.Slot, ...]) -> frozenset[str]:
        """Return the lock keys of the cards of some slots, and their parents'.

        A card and its parts have the same lock.
        """
        host = self.host.state
        return frozenset(slot.provider for slot in slots) | {
            ownership.provider_of(self.root, device.parent)
            for device in ownership.devices_of(self.root, host, slots)
            if device.parent
        }

    def _require_root(self, consumer: str) -> providers.ProviderRoot:
        if self.root is None:
            raise errors.ClaimError(
                consumer, "this compute node has not registered itself yet"
            )
        return self.root
