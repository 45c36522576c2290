# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a server: ensure, recall, release."""

import dataclasses
import errno
import logging
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, scrub
from nova_accel.config import policy
from nova_accel.discovery import plugin, snapshot
from nova_accel.host.execute import action_executor
from nova_accel.host.execute.serials import SerialNumbers
from nova_accel.host.state import claims_file, service_lock
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import actions, flavors, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import (
    card_modes,
    claim_store,
    device_locks,
    orphan_cleanup,
    ownership,
    region_programs,
    release,
    spawn_checks,
)

LOG = logging.getLogger(__name__)

_NOTHING = connection.HostdevUse()
_NO_BITSTREAMS: Mapping[str, model.Bitstream] = types.MappingProxyType({})


class Lifecycle:
    """The accelerators of one compute node's servers.

    Thread-safe. Changes to one card are made one after another, changes
    to different cards side by side.
    """

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.Policy,
        executor: action_executor.Executor,
        host: snapshot.Snapshot,
        look: Callable[[], host_reader.HostReader] | None = None,
        programs: region_programs.RegionPrograms | None = None,
    ) -> None:
        """Use these drivers, rules, and this host.

        :param look: returns a fresh reader of the host; without it cards
            stay in the mode they are in.
        :param programs: what FPGA regions are to hold; without it they are
            given as they are.
        """
        self.host = host
        self.root: providers.ProviderRoot | None = None
        #: What the host's domains hold now; libvirt is asked.
        self.read_use: Callable[[], connection.HostdevUse] = lambda: _NOTHING
        #: The same, of domains that run.
        self.read_running = self.read_use
        #: Where others can see what this host's servers hold.
        self.published: claims_file.ClaimsFile | None = None
        #: Held by the one nova-compute of this host.
        self.service_lock: service_lock.ServiceLock | None = None
        #: Whether all claims of the host's servers are known, because no
        #: other nova-compute makes any.
        self.is_alone = True
        #: Slots of servers that are still to be recalled.
        self.read_awaited: Callable[[], Iterable[model.Slot]] = tuple
        #: Consumers of claims that Nova does not back any more.
        self.orphans: frozenset[str] = frozenset()
        #: What claims take that Placement has not allocated.
        self.unallocated: Mapping[model.ClassKey, int] = {}
        self._telling, self._is_known = threading.Lock(), False
        self._is_cut_off_noted = False
        self._programs = programs or region_programs.RegionPrograms()
        self._programs.uses = self._uses
        self._use, self._using = _NOTHING, threading.Lock()
        #: Handles given back since domains were asked for last.
        self._given_back: set[str] = set()
        self._drivers = drivers
        self._rules = rules
        self._executor = executor
        self.book = claim_store.ClaimStore(self._tell)
        self._cards = device_locks.DeviceLocks()
        self._unmaking = release.PartitionRelease(
            drivers, executor, self.book, host, self._programs, rules
        )
        self._sweeper = orphan_cleanup.OrphanCleanup(
            self.book, self._cards, self._unmaking
        )
        self._arranged: model.HostState | None = None
        self._arranger = (
            card_modes.CardModeSetter(
                drivers, rules, executor, self._cards, look
            )
            if look is not None
            else None
        )

    @property
    def serials(self) -> SerialNumbers | None:
        """Return the serial numbers of whole functions, None without them."""
        return self._unmaking.serials

    @serials.setter
    def serials(self, numbers: SerialNumbers) -> None:
        self._unmaking.serials = numbers

    def adopt(self, root: providers.ProviderRoot) -> None:
        """Serve the compute node of this name and uuid."""
        if self.root != root:
            LOG.info("accelerators are children of %s", root.name)
        self.root = root

    @property
    def is_known(self) -> bool:
        """Return whether it is known what servers and guests hold.

        Not before the first tidying: until then a tree would reserve what
        they have, and nothing is published.
        """
        return self._is_known and self.root is not None

    def _tell(self) -> None:
        """Let others see what is held, those who look from outside too."""
        if self.published is None or self.root is None or not self._is_known:
            return
        with self._telling:
            self.published.write(
                self.root, self._marked_claims(), self._use.functions
            )

    def tree(
        self, owner_traits: frozenset[str]
    ) -> providers.ProviderTree | None:
        """Return the desired tree from the last reading, no I/O.

        None before the compute node is known.
        """
        if self.root is None:
            return None
        return tree_builder.build_tree(
            self.root,
            self.host.state,
            self._rules,
            self._marked_claims(),
            owner_traits,
            self._use.functions,
        )

    def set_orphans(self, consumers: frozenset[str]) -> None:
        """Reserve what consumers hold that Nova does not back any more.

        :param consumers: all of them; Nova backs any other consumer.
        """
        if consumers != self.orphans:
            self.orphans = consumers
            self._tell()

    def set_unallocated(self, missing: Mapping[model.ClassKey, int]) -> None:
        """Reserve what claims take that is not allocated, and no more."""
        self.unallocated = missing
        self._tell()

    def _marked_claims(self) -> tuple[model.Claim, ...]:
        """Return all claims, with whether Placement and Nova back them."""
        orphans = self.orphans
        missing: dict[model.ClaimKey, dict[str, int]] = {}
        for (*key, name), amount in self.unallocated.items():
            missing.setdefault((key[0], key[1], key[2]), {})[name] = amount
        return tuple(
            dataclasses.replace(claim, is_allocated=False, is_backed=False)
            if claim.consumer in orphans
            else dataclasses.replace(
                claim,
                is_allocated=claim.key not in missing,
                unallocated=tuple(missing.get(claim.key, {}).items()),
            )
            for claim in self.claims()
        )

    def claims(self) -> tuple[model.Claim, ...]:
        """Return the claims of all servers of this host."""
        return self.book.claims()

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        """Return the claims of one server."""
        return self.book.claims_of(consumer)

    def slots_of(self, consumer: str) -> tuple[model.Slot, ...]:
        """Return the slots that one server's claims stand for."""
        return claim_store.slots_of(self.claims_of(consumer))

    def ensure(
        self,
        consumer: str,
        groups: tuple[flavors.RequestGroup, ...],
        slots: tuple[model.Slot, ...],
        booked: model.Booked = types.MappingProxyType({}),
        bitstreams: Mapping[str, model.Bitstream] = _NO_BITSTREAMS,
    ) -> tuple[model.Claim, ...]:
        """Make what a server's slots stand for, unless it is made.

        All of it or nothing: what was made is taken back on a failure.
        A partition that somebody else left in a slot is made anew, never
        passed on.

        :param booked: the server's allocations, where they are known: for
            a server that comes. A device that is drained or at fault takes
            none.
        :param bitstreams: those on this host that the groups name.
        :returns: the claims, made.
        :raises ClaimError: the slots can't be met by this host.
        :raises ActionError: the kernel refused to make one.
        """
        spawn_checks.check_booked(consumer, groups, slots, self.host.state)
        if not slots:
            return ()
        root = self._known_root(consumer)
        with self._cards.hold(self._locks(slots)):
            host = self._look_at(root, slots)
            known = self.claims_of(consumer)
            before = claim_store.only_made(known)
            if booked:  # it comes: one that is here already keeps its own
                spawn_checks.check_all_open(
                    consumer, root, slots, host, self.book.holds
                )
            # First what can be refused: then the other server keeps its own.
            if self._unmaking.clear(consumer, root, slots, before):
                host = self._look_at(root, slots)
            self.book.evict(consumer, slots)
            left = self.book.beside(consumer, host)
            found = ownership.unless_held(
                before,
                claim_plan.plan(consumer, groups, slots, root, left, booked),
            )
            found = self._programs.plan(
                found, before, bitstreams, self.claims(), host
            )
            self._check_serials(consumer, found)
            self._unmaking.note_assigned(ownership.but(found, before))
            self.book.write_down(consumer, found)
            if all(c.state is model.ClaimState.MADE for c in found):
                return found
            try:
                self._executor.apply_all(self._prepare(found))
            except BaseException as error:
                self._programs.note(error, self._read_anew)
                self.book.write_down(consumer, known)
                is_late = getattr(error, "number", 0) == errno.ETIMEDOUT
                self._unmaking.check(ownership.but(found, before), is_late)
                raise
            made = tuple(
                dataclasses.replace(claim, state=model.ClaimState.MADE)
                for claim in found
            )
            self.book.write_down(consumer, made)
            self._programs.note_loaded(made)
            self._look_at(root, slots)
        return made

    def recall(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        groups: tuple[flavors.RequestGroup, ...] = (),
        still: Callable[[], Iterable[model.Slot]] | None = None,
        is_built: bool = True,
    ) -> tuple[model.Claim, ...]:
        """Write down what a server already holds, and return it.

        For the start of the service: nothing is made. What a reboot has
        unmade keeps its room, where the server's groups tell how much.
        What else the server holds stays, and what is known to be made.

        A partition that an earlier server may have left in a slot is not
        the server's: its claim is planned, and ``ensure`` cleans the slot.

        :param still: which of the slots are the server's once the cards
            are held; somebody may have had them for a while.
        :param is_built: whether the server has been spawned on this host.
        """
        root, wanted = self._known_root(consumer), tuple(slots)
        with self._cards.hold(self._locks(wanted)):
            wanted = wanted if still is None else tuple(still())
            known = claim_store.within(self.claims_of(consumer), wanted)
            if len(claim_store.only_made(known)) == len(wanted):
                return known
            host = self.host.state
            found = more = tuple(
                claim
                for claim in claim_plan.find(consumer, wanted, root, host)
                if claim.profile != model.UNKNOWN
            )
            if groups and len(found) < len(wanted):
                left = self.book.beside(consumer, host)
                more = ownership.expected(
                    consumer, found, groups, wanted, root, left
                )
            made = claim_store.only_made(known)
            if is_built:
                made += self._unmaking.without_unclean(consumer, more)
            more = ownership.unless_held(made, more)
            more += claim_store.without(
                claim_store.only_made(known), claim_store.slots_of(more)
            )
            self.book.recall(consumer, wanted, found, more)
        return more

    def release(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        in_use: Callable[[model.Claim], bool],
        had: connection.HostdevUse = _NOTHING,
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        """Unmake or scrub what a server's slots stand for, and verify it.

        A partition that can't be unmade stays reserved; it is tried again.
        An error leaves the claims as they are.

        :param in_use: tells whether the server's guest still runs with
            what a claim stands for; then nothing is unmade.
        :param had: what the server's own domain had.
        :param is_due: tells, once the cards are locked, whether the slots
            are still to be released.
        """
        # Claims know no resource class: the same slot may come twice.
        places = {(slot.provider, slot.identifier): slot for slot in slots}
        wanted = tuple(places.values())
        if not wanted or self.root is None:
            return
        with self._cards.hold(self._locks(wanted)):
            if not is_due():
                return
            host = self._look_at(self.root, wanted)
            held = self.book.own(
                consumer, claim_store.within(self.claims_of(consumer), wanted)
            )
            if not any(in_use(claim) for claim in held):
                host = self._unmaking.await_drivers(held, host)
            found = self._standing(consumer, wanted, held, had, host)
            # The host's driver may use by now what the guest gave back.
            left = found + ownership.but(held, found)
            if any(in_use(claim) for claim in left):
                LOG.error("server %s still runs: nothing is unmade", consumer)
                return
            mine = had.functions | {claim.handle for claim in held}
            due = self._programs.blanked(
                found, mine, host, ownership.but(self.claims(), held)
            )
            self._unmaking.scrub(left)
            self.book.forget(consumer, wanted)
            for claim in due:
                if (
                    claim.region is None
                    or claim.handle in mine
                    or self._unmaking.is_last(consumer, claim.slot)
                ):
                    self._unmaking.unmake(claim)
            gone = {a for c in found for a in (c.handle, *c.members)}
            with self._using:
                self._given_back |= gone
                self._use = self._use.without(self._given_back)
            try:
                self._unmaking.check(found)
            finally:
                self._tell()

    def _standing(
        self,
        consumer: str,
        slots: tuple[model.Slot, ...],
        held: tuple[model.Claim, ...],
        had: connection.HostdevUse,
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Return the claims of what stands in a server's slots.

        Without what another domain has, unless the server's claims are for
        it: the slot may be another server's by now.
        """
        root = self._known_root(consumer)
        known = self._unmaking.made(host)
        found = tuple(
            ownership.as_made(claim, known)
            for claim in self.book.own(
                consumer, claim_plan.find(consumer, slots, root, host)
            )
            if had.holds(claim.handle) or ownership.is_ours(claim, known)
        )
        if unknown := ownership.but(found, held):
            use = self.read_use().without(had.mdevs | had.functions)
            taken = [c for c in unknown if use.holds(c.handle)]
            found = ownership.but(found, taken)
        return found

    def is_busy(self, slots: Iterable[model.Slot]) -> bool:
        """Return whether a change to a card of some slots is in progress.

        For passes, which come again: a bitstream may take an hour to load.
        """
        return self._cards.is_any_held(self._locks(tuple(slots)))

    def arrange(self, is_again: bool = True) -> bool:
        """Bring cards into the modes that policy asks for.

        The host is read again if any was changed; returned is whether
        that was so. Nothing that fails stops the caller. Nothing is looked
        at while the host is as it was when there was nothing to do.

        :param is_again: try what has failed, too. A pass that uevents wake
            must not: an attempt that fails may send some itself.
        """
        before = self.host.state
        if self._arranger is None or self._arranged is before:
            return False
        if self._arranger.arrange(
            self.root, self.read_running, self._read_held, is_again
        ):
            self.host.refresh()
            return True
        if self._arranger.is_settled:
            self._arranged = before
        return False

    def _read_held(self) -> tuple[model.Slot, ...] | None:
        """Return the slots of this host's servers, None if not all."""
        if not self.is_alone:
            return None
        return (*claim_store.slots_of(self.claims()), *self.read_awaited())

    def tidy_now(self) -> None:
        """Ask what the host's domains hold, and tidy by the answer.

        What is given back meanwhile nobody holds any more. For one caller
        at a time.
        """
        with self._using:
            self._given_back = set()
        use = self.read_use()
        with self._using:
            self._use = use = use.without(self._given_back)
        self._sweep(use)

    def tidy(self, use: connection.HostdevUse) -> None:
        """Remove partitions that are provably ours and unused.

        :param use: what the host's domains hold; whole functions among it
            are reserved from now on unless a claim of ours stands for them.
        """
        self._use = use
        self._sweep(use)

    def _sweep(self, use: connection.HostdevUse) -> None:
        if self.is_alone and not self._is_cut_off_noted:
            self._unmaking.note_cut_off(self.claims())
            self._is_cut_off_noted = True
        self._is_known = True
        self._tell()
        root = self.root
        if root is not None and self.is_alone:
            found = self._sweeper.sweep(
                root, lambda: self.host.state, use, self._is_still_alone
            )
            if found:
                self._unmaking.check(found)

    def _is_still_alone(self) -> bool:
        lock = self.service_lock
        return self.is_alone and (lock is None or lock.acquire())

    def _prepare(
        self, found: Iterable[model.Claim]
    ) -> Iterator[actions.Action]:
        for claim in found:
            if claim.state is not model.ClaimState.MADE:
                yield from self._drivers[claim.plugin].plan_prepare(claim)

    def _check_serials(
        self, consumer: str, found: tuple[model.Claim, ...]
    ) -> None:
        """Note the devices of functions that a server is given as they are.

        :raises ClaimError: one is not the device that it was.
        """
        if self.serials is None:
            return
        for claim in filter(scrub.addresses, found):
            self.serials.check(consumer, claim.slot)

    def _look_at(
        self, root: providers.ProviderRoot, slots: tuple[model.Slot, ...]
    ) -> model.HostState:
        """Read the cards that some slots are of; all, if one is new."""
        wanted = {slot.provider for slot in slots}
        addresses = {
            device.address
            for device in ownership.devices_of(root, self.host.state, slots)
        }
        if len(addresses) < len(wanted):
            return self.host.refresh()
        return self.host.refresh_cards(addresses)

    def _locks(self, slots: tuple[model.Slot, ...]) -> frozenset[str]:
        """Return the locks for some slots: their cards', whole and parts."""
        host = self.host.state
        return frozenset(slot.provider for slot in slots) | {
            ownership.provider_of(self.root, device.parent)
            for device in ownership.devices_of(self.root, host, slots)
            if device.parent
        }

    def _uses(self, is_running: bool) -> connection.HostdevUse:
        return self.read_running() if is_running else self.read_use()

    def _read_anew(self, address: str) -> model.HostState:
        return self.host.refresh_cards({address})

    def _known_root(self, consumer: str) -> providers.ProviderRoot:
        if self.root is None:
            raise errors.ClaimError(
                consumer, "this compute node has not registered itself yet"
            )
        return self.root
