# SPDX-License-Identifier: Apache-2.0
"""Error counts of devices that an operator acknowledged.

The kernel never resets its counters. `nova-accel heal` stores the count of
a device here; only errors above this baseline are a fault.
"""

from collections.abc import Iterable, Mapping

from nova_accel.host.state import notes
from nova_accel.inventory import health

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
