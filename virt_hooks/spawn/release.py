# SPDX-License-Identifier: Apache-2.0
"""Release of partitions: given back, orphaned, or reused."""

import logging
import time
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, scrub
from nova_accel.config import policy
from nova_accel.discovery import plugin, snapshot
from nova_accel.host.execute import action_executor, serials
from nova_accel.host.state import faults
from nova_accel.inventory import conditions
from nova_accel.model import providers
from virt_hooks.guest import connection
from virt_hooks.spawn import (
    claim_store,
    ownership,
    region_programs,
    scrubbing,
    spawn_checks,
)

LOG = logging.getLogger(__name__)

# Seconds that a host's driver gets to take back a function: dfl-pci needs
# one of an emulated processor's.
_BIND_S, _BIND_STEP_S = 5.0, 0.25
# Seconds during which the kernel may still make what it was asked for: the
# write that timed out goes on in the driver, for minutes with a busy GPU.
_LATE_S = 600.0
# Technologies whose devices are cleaned as a whole.
_IN_ONE = model.UNDIVIDED - {"vf"}
Notes = Mapping[str, faults.Unreleased]
_UNSCRUBBED = "could not be scrubbed after its last server"


class PartitionRelease:
    """Takes partitions from cards; whoever calls holds the cards."""

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        executor: action_executor.Executor,
        notes: claim_store.ClaimStore,
        host: snapshot.Snapshot,
        programs: region_programs.RegionPrograms,
        rules: policy.Policy,
    ) -> None:
        """Use these; what is unmade is forgotten in ``notes``."""
        self._drivers = drivers
        self._executor = executor
        self._book = notes
        self._host = host
        self._programs = programs
        self._scrubbing = scrubbing.Scrubber(executor, rules, host)
        #: Serial numbers of whole functions; None: they are not compared.
        self.serials: serials.SerialNumbers | None = None
        #: Functions that this service is scrubbing now.
        self._scrubbed: set[str] = set()
        #: Until when the kernel may make partitions late, by handle.
        self._late: dict[str, float] = {}

    def clear(
        self,
        consumer: str,
        root: providers.ProviderRoot,
        slots: tuple[model.Slot, ...],
        before: tuple[model.Claim, ...],
    ) -> bool:
        """Unmake what earlier holders left in a server's slots.

        A removal of theirs failed; it is not for the next one to see. The
        slots are this consumer's now, so nobody else can hold them.

        :returns: whether there was anything.
        :raises ClaimError: it is not ours, or a guest runs with it:
            removing it would block, and take the device from that guest.
        :raises ActionError: it can't be removed now either.
        """
        host = self._host.state
        known = self.made(host)
        own = {held.handle for held in before}
        present = [
            ownership.as_made(claim, known)
            for claim in claim_plan.find(consumer, slots, root, host)
            if claim.handle not in own
        ]
        leftovers = [
            claim
            for claim in present
            if claim.technology not in model.UNDIVIDED
            and self._drivers[claim.plugin].plan_release(claim)
        ]
        unclean = self._unclean(consumer, present, host)
        use = connection.HostdevUse()
        if leftovers or unclean:
            use = self._programs.uses(False)
        for claim in leftovers:
            device = host.device(claim.device)
            handles = (
                ownership.our_handles(root, device, known) if device else ()
            )
            if use.holds(claim.handle) or claim.handle not in handles:
                raise errors.ClaimError(
                    consumer, spawn_checks.explain_left(claim, use)
                )
        for claim in unclean:
            if use.functions.intersection((claim.slot, *claim.members)):
                raise errors.ClaimError(
                    consumer, spawn_checks.explain_left(claim, use)
                )
        for claim in leftovers:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        self._clean_all(consumer, unclean, host)
        return bool(leftovers or unclean)

    def made(
        self,
        host: model.HostState,
        notes: Notes | None = None,
    ) -> Mapping[str, model.Claim]:
        """Return the claims whose partitions this library made, by handle.

        Those of earlier services are among them, as far as a note on the
        function says what was made of it.

        :param notes: those on functions; they are read if None. Without
            them no function counts that an earlier service typed.
        """
        made = dict(self._book.made())
        if not any(d.technology in ownership.NAMELESS for d in host.devices):
            return made
        if notes is None:
            try:
                notes = self.notes()
            except errors.UnreadableError as error:
                LOG.warning("typed functions may stay typed: %s", error)
                notes = {}
        for address, note in notes.items():
            device = host.device(note.device or "")
            if device is None or device.technology not in ownership.NAMELESS:
                continue
            for partition in device.partitions:
                if (partition.handle, partition.profile) == (
                    address,
                    note.profile,
                ):
                    made.setdefault(
                        address, claim_plan.of_partition(device, partition)
                    )
        return made

    def notes(self) -> Notes:
        """Return the notes on functions that were not seen clean.

        :raises UnreadableError: the directory can't be listed.
        """
        if self._programs.faulted is None:
            return {}
        return self._programs.faulted.unreleased()

    def without_unclean(
        self, consumer: str, present: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return the claims but those on functions of another consumer.

        A note says so until the function was seen clean.
        """
        try:
            notes = self.notes()
        except errors.UnreadableError as error:
            LOG.warning("unclean functions are not known: %s", error)
            notes = {}
        return tuple(
            c for c in present if not _is_left(notes.get(c.slot), consumer)
        )

    def is_last(self, consumer: str, address: str) -> bool:
        """Return whether no other consumer left a function unclean."""
        try:
            return not _is_left(self.notes().get(address), consumer)
        except errors.UnreadableError:
            return False

    def _unclean(
        self,
        consumer: str,
        present: Iterable[model.Claim],
        host: model.HostState,
    ) -> list[model.Claim]:
        """Return claims on functions that another consumer left unclean.

        :raises ClaimError: the use of a card was changed before it was seen
            clean.
        """
        whole = [c for c in present if c.technology in model.UNDIVIDED]
        if not whole:
            return []
        notes = self.notes()
        for address in {claim.device for claim in whole}:
            if (device := host.device(address)) is None:
                continue
            notes = self.adapt_notes(device, notes)
            current = self._host.state.device(address)
            if current is not None and current.fault and not device.fault:
                raise errors.ClaimError(consumer, current.fault)
        return [c for c in whole if _is_left(notes.get(c.slot), consumer)]

    def adapt_notes(self, device: model.Device, notes: Notes) -> Notes:
        """Return the notes after those of a device's former use are adapted.

        A card that is offered in another way than before has other slots
        than the notes name. Where it is offered whole, the scrub of the card
        covers its VFs, so their notes become the card's. Where it is offered
        in parts, no part can be cleaned of what a server left in the card,
        so the card is set aside.
        """
        faulted, found = self._programs.faulted, dict(notes)
        held = {claim.slot for claim in self._book.claims()}
        for note in notes.values():
            if (
                faulted is None
                or note.device != device.address
                or note.address in {*device.slots, *held}
            ):
                continue
            if device.technology in _IN_ONE and device.slots:
                try:
                    moved = faulted.move_note(note, device.slots[0])
                except OSError as error:
                    LOG.error("the note on %s stays: %s", note.address, error)
                    continue
                del found[note.address]
                found[moved.address] = moved
            elif note.address == device.address:
                self._set_aside(
                    device.address,
                    f"its use was changed before {note.address} was seen"
                    f" clean; server {note.consumer} had it: reset the card",
                )
                faulted.note_clean(note.address)
                del found[note.address]
        return found

    def _clean_all(
        self,
        consumer: str,
        unclean: Iterable[model.Claim],
        host: model.HostState,
    ) -> None:
        for claim in unclean:
            LOG.warning(
                "%s was not released cleanly by its last server: cleaning it"
                " before server %s gets it",
                claim.slot,
                consumer,
            )
            if not self.clean(claim, host):
                device = self._host.state.device(claim.device)
                reason = (
                    f"{device.address} is set aside: {device.fault}"
                    if device and device.fault
                    else "see `nova-accel inspect` for the reason"
                )
                raise errors.ClaimError(
                    consumer,
                    f"{claim.slot} could not be cleaned after its last"
                    f" server; {reason}",
                )

    def note_assigned(self, planned: Iterable[model.Claim]) -> None:
        """Write a note for each function before it is assigned to a server.

        :raises ClaimError: a note can't be written: after a restart the
            function would be taken for clean.
        """
        faulted = self._programs.faulted
        due = [claim for claim in planned if _is_function(claim)]
        if faulted is None or not due:
            return
        notes = faulted.unreleased()
        for claim in due:
            note = notes.get(claim.slot)
            if note is not None and (note.consumer, note.profile) == (
                claim.consumer,
                claim.profile,
            ):
                continue
            try:
                faulted.note_assigned(claim)
            except OSError as error:
                raise errors.ClaimError(
                    claim.consumer,
                    f"the note that {claim.slot} is assigned can't be written"
                    f" ({error}); make [nova_accel] state_dir writable",
                ) from error

    def clean(self, claim: model.Claim, host: model.HostState) -> bool:
        """Scrub or blank a function that no server has any more.

        :param host: the last reading of the claim's device.
        :returns: whether the function was seen clean; else its device is
            set aside, or is not there.
        """
        if claim.technology not in model.UNDIVIDED:
            return False
        if claim.region is None:
            return claim in self.scrub((claim,))
        others = [c for c in self._book.claims() if c.handle != claim.handle]
        (due,) = self._programs.blanked((claim,), {claim.handle}, host, others)
        is_clean = self.unmake(due)
        self._host.refresh_cards({claim.device})
        return is_clean

    def unmake(self, claim: model.Claim) -> bool:
        """Unmake what a claim stands for; what can't be is kept.

        It stays reserved, or is set aside, and the log says so.

        :returns: whether it is unmade; of a region, whether it is clean.
        """
        try:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        except errors.ActionError as error:
            if not self._programs.note_kept(claim, error, self._host.state):
                LOG.error("%s; it stays reserved and is tried again", error)
            return False
        except Exception as error:  # a vendor's own code, or the daemon
            LOG.exception("%s stays", claim.handle)
            self._programs.note_kept(claim, error, self._host.state)
            return False
        if claim.region is not None:
            return self._note_region(claim)
        return True

    def _note_region(self, claim: model.Claim) -> bool:
        """Remove the note on a region unless it was just set aside."""
        faulted = self._programs.faulted
        if faulted is not None and claim.device in faulted.read():
            return False
        self.note_clean(claim.slot)
        return True

    def scrub(
        self, claims_left: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Scrub functions that are given as they are.

        A device of which one can't be scrubbed is set aside, and that is
        known before this returns. The claims must still be in the book:
        the functions are not offered meanwhile.

        :returns: the claims whose functions were seen clean.
        :raises libvirt.libvirtError: libvirt can't say which guests run;
            nothing was touched.
        """
        due = tuple(filter(scrub.addresses, claims_left))
        if not due:
            return ()
        running = self._programs.uses(True)
        return tuple(c for c in due if self._scrub(c, running.functions))

    def _scrub(self, claim: model.Claim, running: frozenset[str]) -> bool:
        """Scrub the functions of a claim; return whether they are clean.

        A function that is another device now is set aside instead: it may
        hold data of another server.
        """
        if self.serials and (reason := self.serials.objection(claim.slot)):
            self._set_aside(claim.device, reason)
            return False
        faulted, is_clean = self._programs.faulted, False
        self._scrubbed.add(claim.slot)
        if faulted is not None:
            faulted.begin(claim.slot, claim.device)
        try:
            is_clean = self._scrubbing.scrub(claim, running)
        except errors.ActionError as error:
            self._set_aside(claim.device, f"{_UNSCRUBBED}: {error}")
        except Exception as error:  # the daemon
            LOG.exception("%s can't be scrubbed", claim.handle)
            self._set_aside(claim.device, f"{_UNSCRUBBED}: {error!r}")
        if faulted is not None:
            faulted.end(claim.slot)
            if is_clean:
                faulted.note_clean(claim.slot)
        self._scrubbed.discard(claim.slot)
        if is_clean and self.serials is not None:
            self.serials.forget(claim.slot)
        return is_clean

    def note_cut_off(self, held: Iterable[model.Claim]) -> None:
        """Set aside what a service was scrubbing when it ended.

        For the start, and not of servers that still hold theirs: what took
        it from them goes on, or is done again, and scrubs it then.

        :param held: the claims of all servers of this host.
        """
        if self._programs.faulted is None:
            return
        slots = {claim.slot for claim in held}
        try:
            left = self._programs.faulted.begun()
        except errors.UnreadableError as error:
            LOG.warning("what was being scrubbed is not known: %s", error)
            return
        for begun in left:
            if begun.address in slots | self._scrubbed:
                continue
            device = conditions.device_of(self._host.state, begun.address)
            self._set_aside(
                device.address if device else begun.device or begun.address,
                f"the scrub of {begun.address} after its last server was cut"
                f" off; it began {begun.when or 'some time ago'}",
            )
            self._programs.faulted.end(begun.address)

    def _set_aside(self, address: str, reason: str) -> None:
        """Set a device aside, and know that before this returns."""
        self._programs.set_aside(address, reason, self._host.state)
        self._host.refresh_cards({address})

    def await_drivers(
        self, found: Iterable[model.Claim], host: model.HostState
    ) -> model.HostState:
        """Return the host once its drivers have back what guests had.

        libvirt answers while the kernel is still binding them: a device
        read just then has nothing to offer, is not to be seen, or does not
        tell its function.
        """
        whole = {
            claim.device
            for claim in found
            if claim.technology in model.UNDIVIDED
        }
        until = time.monotonic() + _BIND_S
        while time.monotonic() < until:
            bare = {
                address for address in whole if _is_bare(host.device(address))
            }
            if not bare:
                break
            time.sleep(_BIND_STEP_S)
            host = self._host.refresh_cards(bare)
        return host

    def check(
        self, found: Iterable[model.Claim], is_late: bool = False
    ) -> None:
        """Read the host, and forget what is not there any more.

        What is there still stays ours, and the next tidying tries again.

        :param is_late: the kernel may be at it yet: nothing is forgotten.
        """
        claims_left = tuple(found)
        host = self._host.refresh_cards({c.device for c in claims_left})
        until = time.monotonic() + _LATE_S if is_late else 0.0
        self._late |= dict.fromkeys((c.handle for c in claims_left), until)
        host = self.await_drivers(claims_left, host) if not is_late else host
        self.forget(
            claim
            for claim in claims_left
            if (device := host.device(claim.device)) is not None
            and claim.handle not in {p.handle for p in device.partitions}
        )

    def forget(self, unmade: Iterable[model.Claim]) -> None:
        """Forget claims whose partitions were seen not to exist any more.

        But for those that the kernel may still be making.
        """
        now = time.monotonic()
        gone = tuple(c for c in unmade if self._late.get(c.handle, 0.0) <= now)
        for claim in gone:
            self._late.pop(claim.handle, None)
        self._book.unmade(claim.handle for claim in gone)
        for claim in gone:
            if claim.technology in ownership.NAMELESS:
                self.note_clean(claim.handle)

    def note_clean(self, address: str) -> None:
        """Remove the note on a function that was seen clean."""
        if self._programs.faulted is not None:
            self._programs.faulted.note_clean(address)


def _is_left(note: faults.Unreleased | None, consumer: str) -> bool:
    """Return whether a note says that another consumer had a function."""
    return note is not None and note.consumer != consumer


def _is_function(claim: model.Claim) -> bool:
    """Return whether a claim is on a function that keeps its identity."""
    return claim.technology in model.UNDIVIDED | {*ownership.NAMELESS}


def _is_bare(device: model.Device | None) -> bool:
    """Return whether a device's driver on the host is not done with it."""
    if device is None or not device.counters:
        return True
    region = device.region
    if region is None or device.fault:
        return False
    return bool(region.driver) and region.function is None
