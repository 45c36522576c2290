# SPDX-License-Identifier: Apache-2.0
"""Notes on functions: which server had each last, and whether it is clean.

A function gets a note before a server gets it. The note stays until the
function was seen clean after that server, also if this service ends
meanwhile. Until then no other server gets it, and it is scrubbed again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.discovery import snapshot
from nova_accel.host.execute import serials
from nova_accel.host.state import notes
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store, host_access, ownership

LOG = logging.getLogger(__name__)

# Technologies whose cards are scrubbed as a whole.
_WHOLE_CARD = model.UNDIVIDED - {"vf"}
Notes = Mapping[str, notes.Unreleased]


class FunctionNotes:
    """Last servers of functions; callers hold the locks of the cards."""

    def __init__(
        self,
        store: claim_store.ClaimStore,
        host: snapshot.Snapshot,
        access: host_access.HostAccess,
        root: str,
    ) -> None:
        """Use the notes of ``access``.

        :param root: the directory that holds ``sys``.
        """
        self._store = store
        self._host = host
        self._domains = access.domains
        self._faults = access.faults
        self.serials = serials.SerialNumbers(access.faults.serials, root)
        #: Consumers and slots of claims, if it could not be read whether the
        #: consumer was the last one of the function.
        self._undecided: set[tuple[str, str]] = set()

    def read(self) -> Notes:
        """Return the notes on functions that were not seen clean.

        :raises UnreadableError: the directory can't be listed.
        """
        return self._faults.read_unreleased()

    def read_if_possible(self) -> Notes | None:
        """Return the notes; None if the directory can't be listed."""
        return self._faults.unreleased.read_if_possible(
            "unclean functions are not cleaned"
        )

    def exclude_unclean(
        self, consumer: str, claims: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return the claims on functions that no other consumer had last.

        While the note on a function can't be read, only the consumer's own
        domain shows that the function is its own; without it the claim is
        undecided.

        :raises libvirt.libvirtError: a note can't be read, nor can libvirt
            list its domains.
        """
        claims = tuple(claims)
        notes = self.read_if_possible()
        unread = tuple(c for c in claims if _is_unread(c, notes))
        use = self._domains.read_use() if unread else connection.HostdevUse()
        doubtful = tuple(c for c in unread if not use.is_of(consumer, c.slot))
        self._undecided -= {(consumer, claim.slot) for claim in claims}
        self._undecided |= {(consumer, claim.slot) for claim in doubtful}
        return tuple(
            claim
            for claim in claims
            if claim not in doubtful
            and (
                claim in unread
                or not _is_of_other((notes or {}).get(claim.slot), consumer)
            )
        )

    def list_undecided(
        self, consumer: str, claims: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return planned claims, made if the last consumer was this one."""
        return tuple(
            claim
            for claim in claims
            if claim.state is model.ClaimState.PLANNED
            and (consumer, claim.slot) in self._undecided
        )

    def is_last_consumer(self, consumer: str, address: str) -> bool:
        """Return whether no other consumer has left a function unclean."""
        notes = self.read_if_possible()
        return notes is not None and not _is_of_other(
            notes.get(address), consumer
        )

    def find_unclean(
        self,
        consumer: str,
        claims: Iterable[model.Claim],
        host: model.HostState,
        may_erase: Callable[[model.Claim], bool],
    ) -> list[model.Claim]:
        """Return claims on functions that another consumer left unclean.

        Those whose note can't be read are included, unless they are in the
        consumer's own domain.

        :param may_erase: returns whether the scrub of a claim may erase what
            the consumer itself has stored.
        :raises ClaimError: the use of a card was changed before it was seen
            clean, or a note can't be read and the scrub may erase.
        """
        undivided = [c for c in claims if c.technology in model.UNDIVIDED]
        if not undivided:
            return []
        notes = self.read()
        for address in {claim.device for claim in undivided}:
            if (device := host.device(address)) is None:
                continue
            notes = self.adapt(device, notes)
            current = self._host.state.device(address)
            if current is not None and current.fault and not device.fault:
                raise errors.ClaimError(consumer, current.fault)
        unclean = [
            claim
            for claim in undivided
            if _is_of_other(notes.get(claim.slot), consumer)
        ]
        return [*self._exclude_own(consumer, unclean, notes, may_erase)]

    def _exclude_own(
        self,
        consumer: str,
        unclean: Iterable[model.Claim],
        notes: Notes,
        may_erase: Callable[[model.Claim], bool],
    ) -> tuple[model.Claim, ...]:
        """Return unclean claims, but for those in the consumer's domain."""
        unclean = tuple(unclean)
        unread = [claim for claim in unclean if _is_unread(claim, notes)]
        if not unread:
            return unclean
        use = self._domains.read_use()
        own = [claim for claim in unread if use.is_of(consumer, claim.slot)]
        for claim in ownership.exclude(unread, own):
            if may_erase(claim):
                raise errors.ClaimError(
                    consumer, _explain_unread(claim, notes[claim.slot])
                )
        return ownership.exclude(unclean, own)

    def list_unread_handles(self, claims: Iterable[model.Claim]) -> set[str]:
        """Return the handles of typed functions with an unreadable note.

        A note exists for each function that this library has typed.
        """
        nameless = [c for c in claims if c.technology in ownership.NAMELESS]
        notes = (self.read_if_possible() if nameless else None) or {}
        return {c.handle for c in nameless if _is_unread(c, notes)}

    def adapt(self, device: model.Device, notes: Notes) -> Notes:
        """Return the notes after those of a device's former use are adapted.

        A card that is offered in another way than before has other slots
        than the notes name. If it is offered whole, the scrub of the card
        covers its VFs, so their notes become the card's. If it is offered
        in parts, no scrub of a part can clean what a server left in the
        card, so the card is set aside.
        """
        adapted = dict(notes)
        claimed = {claim.slot for claim in self._store.claims()}
        for note in notes.values():
            if note.device != device.address or note.address in {
                *device.slots,
                *claimed,
            }:
                continue
            if device.technology in _WHOLE_CARD and device.slots:
                try:
                    moved = self._faults.move_note(note, device.slots[0])
                except OSError as error:
                    logs.error(
                        LOG,
                        "can't move the note on %s: %s",
                        note.address,
                        error,
                    )
                    continue
                del adapted[note.address]
                adapted[moved.address] = moved
            elif note.address == device.address:
                self.set_aside(
                    device.address,
                    f"its use was changed before {note.address} was seen"
                    f" clean; server {note.consumer} had it: reset the card",
                )
                self._faults.note_clean(note.address)
                del adapted[note.address]
        return adapted

    def note_assigned(self, planned: Iterable[model.Claim]) -> None:
        """Write a note for each function before it is assigned to a server.

        :raises ClaimError: a note can't be written: after a restart the
            function would be taken for clean.
        """
        due = [claim for claim in planned if _is_function(claim)]
        notes = self._faults.read_unreleased() if due else {}
        for claim in due:
            note = notes.get(claim.slot)
            if note is not None and (note.consumer, note.profile) == (
                claim.consumer,
                claim.profile,
            ):
                continue
            try:
                self._faults.note_assigned(claim)
            except OSError as error:
                raise errors.ClaimError(
                    claim.consumer,
                    f"the note that {claim.slot} is assigned can't be written"
                    f" ({error}); make [nova_accel] state_dir writable",
                ) from error

    def check_serials(self, claims: Iterable[model.Claim]) -> None:
        """Record serial numbers of functions that are assigned unchanged.

        :raises ClaimError: a function is another device than before.
        """
        for claim in claims:
            if claim.scrubbed:
                self.serials.check(claim.consumer, claim.slot)

    def set_aside(self, address: str, reason: str) -> None:
        """Set a device aside and read it again."""
        self._faults.set_aside(address, reason, self._host.state)
        self._host.refresh_cards({address})

    def note_clean(self, address: str) -> None:
        """Remove the note on a function that was seen clean."""
        self._faults.note_clean(address)


def _is_unread(claim: model.Claim, notes: Notes | None) -> bool:
    """Return whether it can't be read which consumer had a function last."""
    if not _is_function(claim):
        return False
    if notes is None:
        return True
    note = notes.get(claim.slot)
    return note is not None and note.consumer is None


def _is_of_other(note: notes.Unreleased | None, consumer: str) -> bool:
    """Return whether a note names another consumer of a function."""
    return note is not None and note.consumer != consumer


def _is_function(claim: model.Claim) -> bool:
    """Return whether a claim is on a function that keeps its identity."""
    return claim.technology in model.NOTED


def _explain_unread(claim: model.Claim, note: model.Note) -> str:
    """Return why a function with an unreadable note is not scrubbed."""
    return (
        f"{note.reason}, so that it is not known whether this server or"
        f" another one had {claim.slot} last, and the scrub_command of its"
        " device_spec line may erase what this server has stored; make the"
        " file readable, or remove it if no other server had the device since"
    )
