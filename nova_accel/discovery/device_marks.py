# SPDX-License-Identifier: Apache-2.0
"""Drain marks and faults of one host's devices, as operators change them."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.state import device_notes, state_dir
from nova_accel.host.sysfs import error_counters, host_reader
from nova_accel.inventory import conditions
from nova_accel.model import names

_OPTION = "[nova_accel] state_dir"


class DeviceMarks:
    """Changes the notes on drained and on faulted devices. Thread-safe.

    Each method takes the last reading of the host, and raises
    ConfigurationError if a note can't be written or removed.
    """

    def __init__(
        self,
        state_dir: str,
        read_host: Callable[[], host_reader.HostReader],
        read_unassigned: Callable[[], model.HostState],
        faulted: device_notes.FaultNotes | None = None,
    ) -> None:
        """Use the notes below a directory; nothing is read yet.

        :param read_host: returns a fresh reader of the host.
        :param read_unassigned: returns the devices of the host as if no
            server had any.
        :param faulted: the notes of this process on faulted devices, which
            may have some in memory only.
        """
        self._state_dir = state_dir
        self._read_host = read_host
        self._read_unassigned = read_unassigned
        self._drained = device_notes.DrainNotes(state_dir)
        self._faulted = faulted or device_notes.FaultNotes(state_dir)
        self._baseline = device_notes.ErrorBaseline(state_dir)

    def list_addresses(self, host: model.HostState) -> frozenset[str]:
        """Return the devices of the host, and those that notes name.

        :raises UnreadableError: the notes can't be listed.
        """
        return frozenset(
            {device.address for device in host.devices}
            | host.unknown
            | self._drained.read().keys()
            | self._faulted.read().keys()
        )

    def read_drains(self) -> conditions.Drains:
        """Return the drains by address.

        :raises UnreadableError: the notes can't be listed.
        """
        return self._drained.read()

    def drain(
        self, addresses: Iterable[str], reason: str, author: str
    ) -> None:
        """Drain devices: they take no new server from now on."""
        with self._writing():
            for address in addresses:
                self._drained.put(address, reason, author)

    def undrain(self, addresses: Iterable[str]) -> frozenset[str]:
        """End the drain of devices; return those that were drained.

        :raises UnreadableError: the notes can't be listed.
        """
        with self._writing():
            return self._drained.remove(addresses)

    def read_faults(
        self, host: model.HostState
    ) -> tuple[conditions.Faults, conditions.Faults]:
        """Return the faults that the host shows now, and the noted ones.

        :raises UnreadableError: the notes can't be listed.
        """
        current = self._find_faults(self._read_host(), host)
        return current, self._faulted.read()

    def _find_faults(
        self, reader: host_reader.HostReader, host: model.HostState
    ) -> conditions.Faults:
        """Return the faults of the host that no note has."""
        return {
            **error_counters.find_faults(reader, host.devices, self._baseline),
            **conditions.find_unnoted(host.devices, self._faulted.write_error),
        }

    def add_assigned(self, rules: policy.DeviceRules) -> policy.DeviceRules:
        """Return rules by which devices that servers have stay offered.

        :raises UnreadableError: the notes on these can't be listed.
        """
        assigned = frozenset(self._faulted.read_unreleased())
        return dataclasses.replace(rules, assigned=assigned)

    def heal(
        self, host: model.HostState, addresses: Collection[str]
    ) -> Mapping[str, str]:
        """Offer devices again that were set aside.

        Return the devices with the reason why they stay set aside, or "": a
        fault that the host still shows, or why it is not offered once no
        server has it, as nothing can reset it. A device without a fault is
        not among them.

        :raises UnreadableError: the notes can't be listed.
        """
        reader = self._read_host()
        current = self._find_faults(reader, host)
        noted = self._faulted.read()
        unoffered = {
            address: reason
            for address in {*addresses} & (noted.keys() | current.keys())
            if (reason := self._explain_unoffered(address, host, reader))
        }
        addresses = {*addresses} - unoffered.keys()
        with self._writing():
            for device in host.devices:
                if device.address in current and device.address in addresses:
                    self._baseline.put(
                        error_counters.read_counts(reader, device)
                    )
            healed = self._faulted.heal(addresses)
        healed |= current.keys() & set(addresses)
        remaining = self._find_faults(reader, host)
        return unoffered | {
            address: remaining[address].reason if address in remaining else ""
            for address in sorted(healed)
        }

    def _explain_unoffered(
        self,
        address: str,
        host: model.HostState,
        reader: host_reader.HostReader,
    ) -> str:
        """Return why no server could have a device, "" if one could.

        The next pass would set it aside again, or not offer it. Of a card
        with VFs, those that were not seen clean count.
        """
        if reader.function(names.card_address(address)) is None:
            return ""
        unclean = self._faulted.read_unreleased().keys()
        before, state = host.device(address), self._read_unassigned()
        device = state.device(address)
        slots = unclean & {*(before.slots if before else ())}
        if device is not None and slots <= {*device.slots}:
            return ""
        reasons = (
            problem.reason
            for problem in state.problems
            if problem.address in {address, *slots}
        )
        return "; ".join(reasons)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.ConfigurationError(
                _OPTION,
                self._state_dir,
                f"a note can't be changed ({error.strerror});"
                f" {state_dir.explain_remedy(error)}",
            ) from error
