# SPDX-License-Identifier: Apache-2.0
"""Error counts of devices that an operator acknowledged.

The kernel never takes its counters back. What `nova-accel heal` was told
of is written down here, and only what comes on top of it counts.
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

# An id that is new with each boot: Documentation/admin-guide/sysctl/
# kernel.rst. Counters begin at nothing then.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read_boot_id(path: str = _BOOT_ID) -> str:
    """Return the id of this boot of the kernel, empty if unknown."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


class ErrorBaseline:
    """How many fatal errors of each function are seen to. Thread-safe."""

    def __init__(self, state_dir: str, boot: str | None = None) -> None:
        """Keep notes in ``acknowledged`` below a directory.

        :param boot: the id of this boot; that of this machine if None.
        """
        self.place = os.path.join(state_dir, "acknowledged")
        self._boot = read_boot_id() if boot is None else boot
        self._notes = notes.NoteDirectory(self.place, health.Acknowledgment)
        self._guard = threading.Lock()
        self._last: Mapping[str, int] = {}
        self._error = ""  # that of the last read
        # Outdated ones that could not be removed.
        self._void: dict[str, health.Acknowledgment] = {}

    def read(self) -> Mapping[str, int]:
        """Return the numbers by the function's address.

        What was written in another boot does not count. Where nothing can
        be read, the last ones known are returned.
        """
        try:
            found = self._notes.read()
        except errors.UnreadableError as error:
            with self._guard:
                if str(error) != self._error:
                    LOG.warning(
                        "%s; what is acknowledged stays as it was", error
                    )
                self._error = str(error)
                return self._last
        with self._guard:
            self._error = ""
            self._last = {
                address: note.count
                for address, note in found.items()
                if note.boot == self._boot and self._void.get(address) != note
            }
            return self._last

    def put(self, counts: Mapping[str, int]) -> None:
        """Write down that so many errors of some functions are seen to.

        :param counts: by the function's address.
        :raises OSError: it can't be written down.
        """
        for address, count in counts.items():
            with self._guard:
                self._void.pop(address, None)
            self._notes.write(
                health.Acknowledgment(
                    address=address,
                    reason="its operator has seen to these errors",
                    when=notes.now(),
                    fatal=str(count),
                    boot=self._boot,
                )
            )

    def forget(self, addresses: Iterable[str]) -> None:
        """Forget what was acknowledged of some functions.

        A note that can't be removed is left aside from now on.
        """
        for address in addresses:
            with contextlib.suppress(OSError, errors.UnreadableError):
                note = self._notes.read().get(address)
                if note is None:
                    continue
                with self._guard:
                    self._void[address] = note
                self._notes.remove(address)
