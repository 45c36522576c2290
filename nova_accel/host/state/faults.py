# SPDX-License-Identifier: Apache-2.0
"""Devices at fault, scrubs in progress, functions not yet released.

Nova stores which server has a device. Only these notes store that a device
must not be assigned to another server.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.host.state import notes
from nova_accel.inventory import conditions

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScrubInProgress(model.Note):
    """A function that is being scrubbed, since ``when``.

    ``device`` is the address of the device to set aside if the scrub is
    interrupted, None if unknown.
    """

    device: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unreleased(model.Note):
    """A function that was assigned to a server and not verified clean since.

    ``address`` is the function's, ``device`` that of its device,
    ``profile`` the profile it had and ``consumer`` the uuid of the server;
    None if unknown.
    """

    device: str | None = None
    profile: str | None = None
    consumer: str | None = None


class FaultNotes:
    """Faults of one host's devices. Thread-safe.

    A fault whose note can't be written is kept in memory until the service
    ends.
    """

    def __init__(self, state_dir: str) -> None:
        """Use directories below this one; the first write creates them."""
        self.path = os.path.join(state_dir, "faulted")
        self._notes = notes.NoteDirectory(self.path, model.Fault)
        scrubbing = os.path.join(state_dir, "scrubbing")
        self._scrubs = notes.NoteDirectory(scrubbing, ScrubInProgress)
        unreleased = os.path.join(state_dir, "unreleased")
        self._unreleased = notes.NoteDirectory(unreleased, Unreleased)
        self._unwritten: dict[str, model.Fault] = {}
        self._lock = threading.Lock()

    def read(self) -> conditions.Faults:
        """Return the faults by address, unreadable notes included.

        :raises UnreadableError: the directory can't be listed.
        """
        with self._lock:
            unwritten = dict(self._unwritten)
        return unwritten | self._notes.read()

    def put(self, address: str, reason: str, function: str | None) -> None:
        """Set a device aside: it takes no new server until it is healed.

        :param function: function id in its region, None if unknown.
        """
        fault = model.Fault(
            address=address,
            reason=reason,
            function=function,
            when=notes.now(),
        )
        LOG.error("%s is set aside: %s", address, reason)
        with self._lock:
            try:
                self._notes.write(fault)
                self._unwritten.pop(address, None)
            except OSError as error:
                self._unwritten[address] = fault
                LOG.error(
                    "The fault of %s can't be stored (%s): it is lost when"
                    " this service ends; make [nova_accel] state_dir writable",
                    address,
                    error,
                )

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Remove the faults of some devices; return those that had one.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        healed = set()
        for address in addresses:
            with self._lock:
                if self._unwritten.pop(address, None) is not None:
                    healed.add(address)
                if self._notes.remove(address):
                    healed.add(address)
        return frozenset(healed)

    def begin_scrub(self, address: str, device: str) -> None:
        """Store that a function of a device is being scrubbed.

        The note survives the end of the service; ``end_scrub`` removes it.
        """
        scrub = ScrubInProgress(
            address=address,
            reason="it is being scrubbed",
            when=notes.now(),
            device=device,
        )
        with self._lock:
            try:
                self._scrubs.write(scrub)
            except OSError as error:
                LOG.warning(
                    "The scrub of %s can't be noted (%s); make [nova_accel]"
                    " state_dir writable",
                    address,
                    error,
                )

    def end_scrub(self, address: str) -> None:
        """Remove the note that a function is being scrubbed."""
        with self._lock:
            try:
                self._scrubs.remove(address)
            except (OSError, errors.UnreadableError) as error:
                LOG.error(
                    "The note on the scrub of %s can't be removed: %s",
                    address,
                    error,
                )

    def read_scrubs(self) -> tuple[ScrubInProgress, ...]:
        """Return the scrubs in progress, or interrupted by a service's end.

        :raises UnreadableError: the directory can't be listed.
        """
        return tuple(self._scrubs.read().values())

    def note_assigned(self, claim: model.Claim) -> None:
        """Store that a function is assigned to a server.

        The note stays until ``note_clean``, also across a reboot.

        :raises OSError: the note can't be written.
        """
        with self._lock:
            self._unreleased.write(
                Unreleased(
                    address=claim.slot,
                    reason="a server has it",
                    when=notes.now(),
                    device=claim.device,
                    profile=claim.profile,
                    consumer=claim.consumer,
                )
            )

    def move_note(self, note: Unreleased, address: str) -> Unreleased:
        """Move a note to another function; return the new note.

        :raises OSError: the note can't be written.
        """
        moved = dataclasses.replace(note, address=address)
        with self._lock:
            self._unreleased.write(moved)
        self.note_clean(note.address)
        return moved

    def note_clean(self, address: str) -> None:
        """Remove the note on a function that was verified clean.

        If the note can't be removed, the function is scrubbed again.
        """
        with self._lock:
            try:
                self._unreleased.remove(address)
            except (OSError, errors.UnreadableError) as error:
                LOG.error(
                    "The note that %s must be scrubbed can't be removed: %s",
                    address,
                    error,
                )

    def read_unreleased(self) -> Mapping[str, Unreleased]:
        """Return the notes on functions not verified clean, by address.

        Unreadable notes are included.

        :raises UnreadableError: the directory can't be listed.
        """
        return self._unreleased.read()
