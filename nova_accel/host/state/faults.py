# SPDX-License-Identifier: Apache-2.0
"""Devices at fault, and scrubs under way.

What a server holds, Nova remembers. That a region must not be given to
the next server, nobody else does.
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
class ScrubInProgress:
    """A function that is being scrubbed, since ``when``.

    ``device`` is the address of what is set aside should that be cut off,
    None if unknown.
    """

    address: str
    reason: str = ""
    when: str = ""
    device: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unreleased:
    """A function that a server got, and that was not seen clean since.

    ``address`` is the function's, ``device`` that of its device,
    ``profile`` what was made of it and ``consumer`` the uuid of its
    server; None where unknown.
    """

    address: str
    reason: str = ""
    when: str = ""
    device: str | None = None
    profile: str | None = None
    consumer: str | None = None


class FaultNotes:
    """The faults of one host's devices. Thread-safe.

    A fault that can't be written down counts all the same, until the
    service ends.
    """

    def __init__(self, state_dir: str) -> None:
        """Keep notes in directories below this one; none is made yet."""
        self.place = os.path.join(state_dir, "faulted")
        self._notes = notes.NoteDirectory(self.place, model.Fault)
        begun = os.path.join(state_dir, "scrubbing")
        self._begun = notes.NoteDirectory(begun, ScrubInProgress)
        unreleased = os.path.join(state_dir, "unreleased")
        self._unreleased = notes.NoteDirectory(unreleased, Unreleased)
        self._unwritten: dict[str, model.Fault] = {}
        self._guard = threading.Lock()

    def read(self) -> conditions.Faults:
        """Return the faults by address; one that can't be read counts too.

        :raises UnreadableError: the directory can't be listed.
        """
        with self._guard:
            found = dict(self._unwritten)
        return found | self._notes.read()

    def put(self, address: str, reason: str, function: str | None) -> None:
        """Set a device aside.

        :param function: what its region holds now, None if unknown.
        """
        fault = model.Fault(
            address=address,
            reason=reason,
            function=function,
            when=notes.now(),
        )
        LOG.error("%s is set aside: %s", address, reason)
        with self._guard:
            try:
                self._notes.write(fault)
                self._unwritten.pop(address, None)
            except OSError as error:
                self._unwritten[address] = fault
                LOG.error(
                    "that %s failed can't be written down (%s): it is"
                    " forgotten when this service ends; mend [nova_accel]"
                    " state_dir",
                    address,
                    error,
                )

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Forget the faults of some devices; return which there were.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        healed = set()
        for address in addresses:
            with self._guard:
                if self._unwritten.pop(address, None) is not None:
                    healed.add(address)
                if self._notes.remove(address):
                    healed.add(address)
        return frozenset(healed)

    def begin(self, address: str, device: str) -> None:
        """Note that a function of a device is being scrubbed.

        The note outlives a service that ends meanwhile; ``end`` removes it.
        """
        begun = ScrubInProgress(
            address=address,
            reason="it is being scrubbed",
            when=notes.now(),
            device=device,
        )
        with self._guard:
            try:
                self._begun.write(begun)
            except OSError as error:
                LOG.warning(
                    "that %s is being scrubbed can't be written down (%s);"
                    " mend [nova_accel] state_dir",
                    address,
                    error,
                )

    def end(self, address: str) -> None:
        """Note that a function is being scrubbed no more."""
        with self._guard:
            try:
                self._begun.remove(address)
            except (OSError, errors.UnreadableError) as error:
                LOG.error(
                    "the note that %s is being scrubbed stays: %s",
                    address,
                    error,
                )

    def begun(self) -> tuple[ScrubInProgress, ...]:
        """Return what is being scrubbed, or was when a service ended.

        :raises UnreadableError: the directory can't be listed.
        """
        return tuple(self._begun.read().values())

    def note_assigned(self, claim: model.Claim) -> None:
        """Note that a function is a server's, until it was seen clean.

        The note outlives the service and a reboot of the host.

        :raises OSError: the note can't be written.
        """
        with self._guard:
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
        """Replace a note by the same one on another function; return that.

        :raises OSError: the note can't be written.
        """
        moved = dataclasses.replace(note, address=address)
        with self._guard:
            self._unreleased.write(moved)
        self.note_clean(note.address)
        return moved

    def note_clean(self, address: str) -> None:
        """Remove the note on a function that was seen clean.

        A note that can't be removed has the function scrubbed once more.
        """
        with self._guard:
            try:
                self._unreleased.remove(address)
            except (OSError, errors.UnreadableError) as error:
                LOG.error(
                    "the note that %s must be scrubbed stays: %s",
                    address,
                    error,
                )

    def unreleased(self) -> Mapping[str, Unreleased]:
        """Return the functions not seen clean since a server got them.

        A note that can't be read counts too.

        :returns: notes by the function's address.
        :raises UnreadableError: the directory can't be listed.
        """
        return self._unreleased.read()
