# SPDX-License-Identifier: Apache-2.0
"""Last reading of the host, for callers that must not wait."""

import logging
import threading
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.discovery import change_detection
from nova_accel.discovery.host_readings import list_names
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader

LOG = logging.getLogger(__name__)


class Snapshot:
    """Last reading of the host. Thread-safe.

    Nova calls ``update_provider_tree`` under the lock of all its claims
    (COMPUTE_RESOURCE_SEMAPHORE): every server of the host waits for it, so
    the snapshot serves it without reading kernel files. Problems are logged
    once, when they appear and when they change.
    """

    def __init__(self, detector: change_detection.ChangeDetector) -> None:
        """Serve the readings of a detector; nothing is read yet."""
        self._detector = detector
        self._full_read_lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._logged: frozenset[model.Problem] = frozenset()

    @property
    def state(self) -> model.HostState:
        """Return the last reading; without devices before the first."""
        return self._detector.state

    @property
    def gpus(self) -> Mapping[str, nvml_gpus.NvmlGpu]:
        """Return NVML's last answers by PCI address; no I/O."""
        return self._detector.gpus

    def open_reader(self) -> host_reader.HostReader:
        """Return a fresh reader of the host, with NVML's last answers."""
        return self._detector.open_reader()

    def refresh(self) -> model.HostState:
        """Read the whole host now and return it."""
        with self._full_read_lock:
            return self._log_problems(self._detector.read())

    def refresh_changed(self) -> model.HostState:
        """Return the host, read again if it may have changed.

        An incomplete reading, or one with unknown devices, is repeated.
        """
        if self.state.unknown or not self.state.complete:
            return self.refresh()
        with self._full_read_lock:
            names = self._detector.find_changes()
        if names is None or not self._refresh_functions(names):
            return self.refresh()
        return self.state

    def _refresh_functions(self, names: frozenset[str]) -> bool:
        """Read some functions; return whether that shows all changes.

        It does not if one is of no device.
        """
        devices = self.state.devices
        changed = [d for d in devices if names & {*list_names(d)}]
        others = names.difference(*map(list_names, changed))
        if not all(map(self._detector.is_irrelevant, others)):
            return False
        self._log_problems(self._detector.read_devices(changed, names))
        return True

    def refresh_cards(
        self,
        addresses: Iterable[str],
        slots: Iterable[str] = (),
        traits: Iterable[str] = (),
    ) -> model.HostState:
        """Read some cards now and return the host.

        The whole host is read if a card is not in the last reading.

        :param slots: slots of these cards; only the partitions in them are
            read, and what the cards can hold now. Empty to read all.
        :param traits: of the profiles that are needed in these slots.
        """
        cards = frozenset(addresses)
        devices = [d for d in self.state.devices if d.address in cards]
        if len(devices) < len(cards):
            return self.refresh()
        return self._log_problems(
            self._detector.read_devices(devices, (), slots, traits)
        )

    def _log_problems(self, host: model.HostState) -> model.HostState:
        with self._log_lock:
            problems = frozenset(host.problems)
            new, self._logged = problems - self._logged, problems
        for problem in host.problems:
            if problem in new:
                LOG.warning("%s: %s", problem.where, problem.reason)
        return host
