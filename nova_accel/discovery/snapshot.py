# SPDX-License-Identifier: Apache-2.0
"""Last reading of the host, for callers that must not wait.

Readings are numbered in the order in which they begin. A device keeps the
state of the highest-numbered reading, whichever ends last.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.discovery import change_detection
from nova_accel.discovery.change_detection import list_names
from nova_accel.host.nvml import gpu_reader

LOG = logging.getLogger(__name__)


class Snapshot:
    """Last reading of the host. Thread-safe.

    Nova calls ``update_provider_tree`` under the lock of all its claims;
    the snapshot serves it without reading kernel files. Cards are read
    concurrently; a full reading does not overwrite the state of a card
    that was read after it began.
    """

    def __init__(self, detector: change_detection.ChangeDetector) -> None:
        """Store the readings of a detector; nothing is read yet."""
        self._detector = detector
        self._full_read_lock = threading.Lock()
        self._state_lock = threading.Lock()
        # Incomplete: no device may be taken for absent before the first
        # reading.
        self._state = model.HostState(complete=False)
        self._last_number = 0
        self._full_number = 0
        self._card_numbers: dict[str, int] = {}

    @property
    def state(self) -> model.HostState:
        """Return the last reading; without devices before the first."""
        return self._state

    @property
    def gpus(self) -> Mapping[str, gpu_reader.NvmlGpu]:
        """Return NVML's last answers by PCI address; no I/O."""
        return self._detector.gpus

    def refresh(self) -> model.HostState:
        """Read the whole host now and return it.

        Problems are logged once, when they appear and when they change.
        """
        with self._full_read_lock:
            number = self._next_number()
            return self._replace(self._detector.read(), number)

    def refresh_changed(self) -> model.HostState:
        """Return the host, read again if it may have changed.

        An incomplete reading, or one with unknown devices, is repeated.
        """
        if self._state.unknown or not self._state.complete:
            return self.refresh()
        with self._full_read_lock:
            names = self._detector.find_changes()
        if names is None or not self._refresh_functions(names):
            return self.refresh()
        return self.state

    def _refresh_functions(self, names: frozenset[str]) -> bool:
        """Read some functions; return whether that shows all changes.

        It does not if one is of no device, or a device has appeared.
        """
        devices = self._state.devices
        changed = [d for d in devices if names & {*list_names(d)}]
        others = names.difference(*map(list_names, changed))
        if not all(map(self._detector.is_irrelevant, others)):
            return False
        host = self._read_devices(changed, names)
        before = {device.address for device in devices}
        return all(device.address in before for device in host.devices)

    def refresh_cards(
        self, addresses: Iterable[str], slots: Iterable[str] = ()
    ) -> model.HostState:
        """Read some cards now and return the host.

        The whole host is read if a card is not in the last reading.

        :param slots: slots of these cards; only the partitions in them are
            read, and what the cards can hold now. Empty to read all.
        """
        cards, slots = frozenset(addresses), frozenset(slots)
        devices = [d for d in self._state.devices if d.address in cards]
        if len(devices) < len(cards):
            return self.refresh()
        places = [
            place
            for device in devices
            for place in change_detection.list_partition_places(device, slots)
        ]
        self._read_devices(devices, places)
        return self.state

    def _read_devices(
        self, devices: Collection[model.Device], places: Collection[str]
    ) -> model.HostState:
        """Read some devices, store the result, and return it."""
        number = self._next_number()
        host = self._detector.read_devices(devices, places)
        with self._state_lock:
            before = self._state
            updated = {
                device.address
                for device in devices
                if number
                > max(
                    self._full_number,
                    self._card_numbers.get(device.address, 0),
                )
            }
            self._state = change_detection.merge(before, host, updated)
            self._card_numbers |= dict.fromkeys(updated, number)
            after = self._state
        _log_new_problems(after, before)
        return host

    def _next_number(self) -> int:
        with self._state_lock:
            self._last_number += 1
            return self._last_number

    def _replace(self, host: model.HostState, number: int) -> model.HostState:
        """Store a full reading, but not over cards that were read later."""
        with self._state_lock:
            before = self._state
            newer = {
                card
                for card, card_number in self._card_numbers.items()
                if card_number > number
            }
            self._state = change_detection.merge(host, before, newer)
            self._full_number = number
            after = self._state
        _log_new_problems(after, before)
        return after


def _log_new_problems(after: model.HostState, before: model.HostState) -> None:
    for problem in after.problems:
        if problem not in before.problems:
            LOG.warning("%s: %s", problem.where, problem.reason)
