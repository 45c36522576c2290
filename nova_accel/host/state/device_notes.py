# SPDX-License-Identifier: Apache-2.0
"""Notes on devices: faults, scrubs, drains, acknowledged error counts.

Below ``state_dir``: devices at fault (``faulted``), functions that are being
scrubbed (``scrubbing``) or not seen clean since a server (``unreleased``),
devices that the operator drains (``drained``), and error counts that the
operator acknowledged (``acknowledged``).

Nova stores which server has a device. Only these notes store that a device
must not be assigned to another server.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.host.state import notes, state_dir
from nova_accel.inventory import conditions, health

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStory:
    """Notes on one function since a server got it; a clean one has none.

    ``unreleased`` is on its last server and ``serial`` on the device that
    the server got, ``scrub`` on a scrub that has not ended, and ``fault`` on
    the function's device.
    """

    unreleased: notes.Unreleased | None
    serial: notes.Assignment | None
    scrub: notes.ScrubInProgress | None
    fault: model.Fault | None

    def explain_unclean(self) -> str:
        """Return why no other server gets the function; empty if clean."""
        if self.fault is not None:
            return f"{self.fault.address} is set aside: {self.fault.reason}"
        if self.scrub is not None:
            return f"its scrub, begun at {self.scrub.when}, has not ended"
        if self.unreleased is not None:
            return f"server {self.unreleased.consumer} had it last"
        if self.serial is not None:
            return f"server {self.serial.server} was given this device"
        return ""


class FaultNotes:
    """Faults of one host's devices, and notes on its functions. Thread-safe.

    A function that is assigned to a server gets a note in ``unreleased``
    and, if it has one, its serial number in ``serials``. While it is scrubbed
    after the server it also has one in ``scrubbing``. When it is seen clean
    all of them are removed; otherwise its device gets a fault.
    """

    def __init__(self, path: str | None = None) -> None:
        """Use directories below this one; the first write creates them.

        :param path: None for notes in memory only.
        """
        self._faults = notes.NoteStore(path, notes.FAULTED)
        self._scrubs = notes.NoteStore(path, notes.SCRUBBING)
        self.unreleased = notes.NoteStore(path, notes.UNRELEASED)
        self.serials = notes.NoteStore(path, notes.SERIALS)
        self._stores = (
            *(self._faults, self._scrubs),
            *(self.unreleased, self.serials),
        )
        self.path = self._faults.path
        self._state_dir = path
        #: Why no note could be written at the last try, "" if one could.
        self.write_error = ""

    def read(self) -> conditions.Faults:
        """Return the faults by address, unreadable notes included.

        :raises UnreadableError: the directory can't be listed.
        """
        return self._faults.read()

    def try_write(self) -> None:
        """Set ``write_error`` by a try to write below the directory."""
        if self._state_dir:
            self.write_error = state_dir.find_write_error(self._state_dir)

    def put(self, address: str, reason: str, function: str | None) -> None:
        """Set a device aside: it takes no new server until it is healed.

        :param function: function id in its region, None if unknown.
        """
        LOG.error("%s is set aside: %s", address, reason)
        self._faults.write_or_retain(
            model.Fault(
                address=address,
                reason=reason,
                function=function,
                when=notes.now(),
            )
        )

    def set_aside(
        self, address: str, reason: str, host: model.HostState
    ) -> None:
        """Set a device of any kind aside.

        :param host: has the function of the device's region, if any.
        """
        device = host.device(address)
        region = device.region if device else None
        self.put(address, reason, region.function if region else None)

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Remove the faults of some devices; return those that had one.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        return frozenset(a for a in addresses if self._faults.remove(a))

    def note_assigned(self, claim: model.Claim) -> None:
        """Store that a function is assigned to a server.

        The note stays until ``note_clean``, also across a reboot.

        :raises OSError: the note can't be written.
        """
        note = notes.Unreleased(
            address=claim.slot,
            reason="a server has it",
            when=notes.now(),
            device=claim.device,
            profile=claim.profile,
            consumer=claim.consumer,
        )
        try:
            self.unreleased.write(note)
        except OSError as error:
            self.write_error = state_dir.describe_write_error(
                self._state_dir or "", error
            )
            raise

    def move_note(
        self, note: notes.Unreleased, address: str
    ) -> notes.Unreleased:
        """Move a note to another function; return the new note.

        :raises OSError: the note can't be written.
        """
        moved = dataclasses.replace(note, address=address)
        self.unreleased.write(moved)
        self.note_clean(note.address)
        return moved

    def read_story(self, address: str, device: str) -> FunctionStory:
        """Return all notes on a function and on its device.

        :raises UnreadableError: a directory can't be listed.
        """
        return FunctionStory(
            unreleased=self.unreleased.read().get(address),
            serial=self.serials.read().get(address),
            scrub=self._scrubs.read().get(address),
            fault=self._faults.read().get(device),
        )

    def begin_scrub(self, address: str, device: str) -> None:
        """Store that a function of a device is being scrubbed.

        The note survives the end of the service; ``end_scrub`` removes it.
        """
        self._scrubs.write_or_retain(
            notes.ScrubInProgress(
                address=address,
                reason="it is being scrubbed",
                when=notes.now(),
                device=device,
            )
        )

    def end_scrub(self, address: str, is_clean: bool = False) -> None:
        """Remove the note on a scrub; all notes on a clean function."""
        self._scrubs.remove_or_ignore(address)
        if is_clean:
            self.note_clean(address)
            self.serials.remove_or_ignore(address)

    def note_clean(self, address: str) -> None:
        """Remove the note on the last server of a clean function.

        If it can't be removed, the next service scrubs the function again.
        """
        self.unreleased.remove_or_ignore(address)

    def read_unclean(self) -> Mapping[str, str]:
        """Return why a device or function is not seen clean, by address.

        Functions of servers, faults and unreadable notes are included.

        :raises UnreadableError: a directory can't be listed.
        """
        addresses = frozenset().union(*(s.read() for s in self._stores))
        return {
            address: self.read_story(address, address).explain_unclean()
            for address in sorted(addresses)
        }

    def forget(self, address: str) -> None:
        """Remove all notes on a device or function that is clean.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: a directory can't be listed.
        """
        for store in self._stores:
            store.remove(address)

    def read_scrubs(self) -> tuple[notes.ScrubInProgress, ...]:
        """Return the scrubs in progress, or interrupted by a service's end.

        :raises UnreadableError: the directory can't be listed.
        """
        return tuple(self._scrubs.read().values())

    def read_unreleased(self) -> Mapping[str, notes.Unreleased]:
        """Return the notes on functions not verified clean, by address.

        Unreadable notes are included.

        :raises UnreadableError: the directory can't be listed.
        """
        return self.unreleased.read()


# Reason of the devices of a host that nova-accel is removed from.
LEAVING = "nova-accel is removed from this host"


class DrainNotes:
    """Drain marks of one host's devices. Thread-safe.

    Root writes them (``nova-accel drain``), nova-compute's user reads
    them.
    """

    def __init__(self, state_dir: str) -> None:
        """Use ``drained`` below a directory; the first write creates it."""
        self._notes = notes.NoteStore(state_dir, notes.DRAINED)
        self.path = self._notes.path

    def read(self) -> Mapping[str, model.Drain]:
        """Return the drains by address, unreadable notes included.

        :raises UnreadableError: the directory can't be listed.
        """
        return {
            address: dataclasses.replace(
                drain, author=notes.single_line(drain.author)
            )
            for address, drain in self._notes.read().items()
        }

    def put(self, address: str, reason: str, author: str = "") -> None:
        """Drain a device: it takes no new server from now on.

        :param address: see ``conditions.resolve_address``; a card's also
            drains its regions.
        :param reason: text for the operator; stored as one line.
        :param author: name of the operator, "" if it is not known.
        :raises OSError: the note can't be written.
        """
        line = notes.single_line(reason)
        self._notes.write(
            model.Drain(
                address=address,
                reason=line,
                when=notes.now(),
                author=notes.single_line(author),
            )
        )
        LOG.info("%s is drained: %s", address, line)

    def remove(self, addresses: Iterable[str]) -> frozenset[str]:
        """End the drain of some devices; return those that were drained.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        removed = frozenset(a for a in addresses if self._notes.remove(a))
        for address in sorted(removed):
            LOG.info("%s is no longer drained", address)
        return removed


# An id that each boot changes (Documentation/admin-guide/sysctl/
# kernel.rst). Counters start at 0 with a boot.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read_boot_id(path: str = _BOOT_ID) -> str:
    """Return the id of this boot of the kernel, empty if unknown."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


class ErrorBaseline:
    """Acknowledged fatal errors of each function. Thread-safe.

    The kernel never resets its counters. ``nova-accel heal`` stores the count
    of a device here; only errors above this baseline are a fault.
    """

    def __init__(self, state_dir: str, boot: str | None = None) -> None:
        """Use ``acknowledged`` below a directory.

        :param boot: the boot's id; None for this machine's.
        """
        self._notes = notes.NoteStore(state_dir, notes.ACKNOWLEDGED)
        self.path = self._notes.path
        self._boot = read_boot_id() if boot is None else boot

    def read(self) -> Mapping[str, int]:
        """Return the acknowledged counts by the function's address.

        Notes of another boot are ignored. If the directory can't be read,
        the counts of the last reading are returned.
        """
        by_address = self._notes.read_last(
            "acknowledged error counts are not updated"
        )
        return {
            address: note.count
            for address, note in by_address.items()
            if note.boot == self._boot
        }

    def put(self, counts: Mapping[str, int]) -> None:
        """Acknowledge the present errors of some functions.

        :param counts: numbers of fatal errors by the function's address.
        :raises OSError: a note can't be written.
        """
        for address, count in counts.items():
            self._notes.write(
                health.Acknowledgment(
                    address=address,
                    reason="the operator has acknowledged these errors",
                    when=notes.now(),
                    fatal=str(count),
                    boot=self._boot,
                )
            )

    def forget(self, addresses: Iterable[str]) -> None:
        """Remove the acknowledgments of some functions.

        A note that can't be removed is ignored from now on.
        """
        for address in addresses:
            self._notes.remove_or_ignore(address)
