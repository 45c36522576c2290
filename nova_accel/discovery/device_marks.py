# SPDX-License-Identifier: Apache-2.0
"""Drain marks and faults of one host's devices, as operators change them."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.state import drains, error_baseline, faults
from nova_accel.host.sysfs import error_counters, host_reader
from nova_accel.inventory import conditions
from nova_accel.model import pci
from nova_accel.vendors import pci_passthrough
from nova_accel.vendors.common import reset_policy

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
        rules: policy.DeviceRules,
        faulted: faults.FaultNotes | None = None,
    ) -> None:
        """Use the notes below a directory; nothing is read yet.

        :param read_host: returns a fresh reader of the host.
        :param rules: which devices are offered without a reset.
        :param faulted: the notes of this process on faulted devices, which
            may have some in memory only.
        """
        self._state_dir = state_dir
        self._read_host = read_host
        # A device that a server had is not offered for that reason here.
        self._rules = dataclasses.replace(rules, assigned=frozenset())
        self._drained = drains.DrainNotes(state_dir)
        self._faulted = faulted or faults.FaultNotes(state_dir)
        self._baseline = error_baseline.ErrorBaseline(state_dir)

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
        current = error_counters.find_faults(
            self._read_host(), host.devices, self._baseline
        )
        return current, self._faulted.read()

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
        fault that the host still shows, or that nothing can reset the device
        and policy does not offer it without a reset. A device without a fault
        is not among them.

        :raises UnreadableError: the notes can't be listed.
        """
        reader = self._read_host()
        current = error_counters.find_faults(
            reader, host.devices, self._baseline
        )
        noted = self._faulted.read()
        unreset = {
            address: reason
            for address in {*addresses} & (noted.keys() | current.keys())
            if (reason := self._explain_unreset(address, host, reader))
        }
        addresses = {*addresses} - unreset.keys()
        with self._writing():
            for device in host.devices:
                if device.address in current and device.address in addresses:
                    self._baseline.put(
                        error_counters.read_counts(reader, device)
                    )
            healed = self._faulted.heal(addresses)
        healed |= current.keys() & set(addresses)
        remaining = error_counters.find_faults(
            reader, host.devices, self._baseline
        )
        return unreset | {
            address: remaining[address].reason if address in remaining else ""
            for address in sorted(healed)
        }

    def _explain_unreset(
        self,
        address: str,
        host: model.HostState,
        reader: host_reader.HostReader,
    ) -> str:
        """Return why no server could have a device for want of a reset.

        The next pass would set it aside again, or not offer it. Of a card
        with VFs, those that were not seen clean count.
        """
        card, device = reader.function(address), host.device(address)
        if card is None:
            return ""
        units: Iterable[tuple[pci.PciFunction, ...]]
        if device is not None and device.technology == "vf":
            unclean = self._faulted.read_unreleased()
            vfs = (reader.function(s) for s in device.slots if s in unclean)
            units, pf = ((vf,) for vf in vfs if vf is not None), card
        else:
            whole = pci_passthrough.list_assigned(reader, self._rules)
            units, pf = (unit for unit in whole if card in unit), None
        reasons = (
            reset_policy.check_whole(unit, reader, self._rules, pf)
            for unit in units
        )
        return next(filter(None, reasons), "")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.ConfigurationError(
                _OPTION,
                self._state_dir,
                f"a note can't be changed ({error.strerror}); let the user of"
                " this process write this directory and those below it",
            ) from error
