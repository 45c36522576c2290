# SPDX-License-Identifier: Apache-2.0
"""Error counts of devices that an operator acknowledged.

The kernel never resets its counters. `nova-accel heal` stores the count of
a device here; only errors above this baseline are a fault.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.host.state import notes
from nova_accel.inventory import health

LOG = logging.getLogger(__name__)

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
    """Acknowledged fatal errors of each function. Thread-safe."""

    def __init__(self, state_dir: str, boot: str | None = None) -> None:
        """Use ``acknowledged`` below a directory.

        :param boot: the boot's id; None for this machine's.
        """
        self.path = os.path.join(state_dir, "acknowledged")
        self._boot = read_boot_id() if boot is None else boot
        self._notes = notes.NoteDirectory(self.path, health.Acknowledgment)
        self._lock = threading.Lock()
        self._last_counts: Mapping[str, int] = {}
        self._last_error = ""
        # Outdated notes that could not be removed.
        self._void: dict[str, health.Acknowledgment] = {}

    def read(self) -> Mapping[str, int]:
        """Return the acknowledged counts by the function's address.

        Notes of another boot are ignored. If the directory can't be read,
        the counts of the last reading are returned.
        """
        try:
            by_address = self._notes.read()
        except errors.UnreadableError as error:
            with self._lock:
                self._log(str(error))
                return self._last_counts
        # Each note that can be read has the boot's id.
        unreadable = [n.reason for n in by_address.values() if n.boot is None]
        with self._lock:
            self._log("; ".join(unreadable))
            self._last_counts = {
                address: note.count
                for address, note in by_address.items()
                if note.boot == self._boot and self._void.get(address) != note
            }
            return self._last_counts

    def _log(self, reason: str) -> None:
        """Log once why counts can't be read; empty if they can."""
        if reason and reason != self._last_error:
            LOG.warning(
                "%s; acknowledged error counts are not updated", reason
            )
        self._last_error = reason

    def put(self, counts: Mapping[str, int]) -> None:
        """Acknowledge the present errors of some functions.

        :param counts: numbers of fatal errors by the function's address.
        :raises OSError: a note can't be written.
        """
        for address, count in counts.items():
            with self._lock:
                self._void.pop(address, None)
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
            with contextlib.suppress(OSError, errors.UnreadableError):
                note = self._notes.read().get(address)
                if note is None:
                    continue
                with self._lock:
                    self._void[address] = note
                self._notes.remove(address)
