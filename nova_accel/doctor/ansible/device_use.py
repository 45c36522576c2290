# SPDX-License-Identifier: Apache-2.0
"""Servers that hold devices of this host, and the drain of devices.

A driver is replaced only while no server holds a device of its kind. The
devices are drained first, so that no server gets one meanwhile. nova-compute
reads the drains in its next pass; a server that was scheduled before has an
allocation in Placement, and then a claim.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from nova_accel import errors, model
from nova_accel.cli import registered_readers
from nova_accel.doctor import checked_host
from nova_accel.host.state import claims_file, device_notes
from nova_accel.model import domains

_REASON = "nova-accel driver"
_POLL_S = 1.0


class DevicesInUseError(errors.AcceleratorError):
    """Servers hold devices whose driver was to be changed.

    :param uses: each device with its server.
    """

    def __init__(self, uses: Collection[str]) -> None:
        super().__init__(
            f"{'; '.join(sorted(uses))}: migrate or delete the servers first"
            " (nova-accel drain ADDRESS --wait-empty waits for that)",
            uses,
        )
        self.uses = uses


class DrainTimeoutError(errors.AcceleratorError):
    """Drained devices may still get a server.

    :param reason: what the wait was for.
    """

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(
            f"after {seconds:g} s {reason}: see whether nova-compute or"
            " placement-sync makes its passes, and raise --drain-wait, or set"
            " it to 0",
            seconds,
            reason,
        )
        self.reason = reason


class HeldDevices:
    """Devices of this host that servers may hold.

    :param host: the functions of this host.
    :param addresses: addresses of the cards, None for all devices.
    :param read_domains: returns the domains of libvirt: guests of a Nova
        without nova-accel, and of others.
    :param open_drains: returns the reader of Placement.
    """

    def __init__(
        self,
        host: checked_host.CheckedHost,
        addresses: Collection[str] | None,
        state_dir: str,
        read_domains: Callable[[], Iterable[domains.Domain]],
        open_drains: Callable[[], registered_readers.DrainReader],
    ) -> None:
        self._host = host
        self._addresses = None if addresses is None else frozenset(addresses)
        self._file = claims_file.ClaimsFile(state_dir)
        self._notes = device_notes.DrainNotes(state_dir)
        self._read_domains = read_domains
        self._open_drains = open_drains

    @property
    def has_nova(self) -> bool:
        """Return whether nova-compute has published claims here."""
        return os.path.lexists(self._file.path)

    def check(self) -> None:
        """Check that no server holds one of the devices.

        :raises DevicesInUseError: a server does.
        :raises DomainsError: the domains can't be read.
        :raises AcceleratorError: the claims can't be read.
        """
        if self._addresses == frozenset():
            return
        claims, occupied = self._read_claims()
        uses = {
            f"{claim.device}: server {claim.consumer}"
            for claim in claims
            if self._is_selected(claim.device)
        }
        uses |= {
            f"{address}: a guest"
            for address in occupied
            if self._is_selected(address)
        }
        servers = {claim.consumer for claim in claims}
        for domain in self._read_domains():
            if domain.is_running and domain.uuid not in servers:
                uses |= {
                    f"{handle}: guest {domain.name}"
                    for handle in self._select_handles(domain)
                }
        if uses:
            raise DevicesInUseError(uses)

    def _read_claims(
        self,
    ) -> tuple[tuple[model.Claim, ...], frozenset[str]]:
        """Return nova-compute's claims, and functions of other guests."""
        if not self.has_nova:
            return (), frozenset()
        recorded = self._file.read()
        if not recorded.is_known:
            raise errors.AcceleratorError(
                f"{recorded.reason}; restart nova-compute, which writes it"
                " anew"
            )
        handles = {claim.handle for claim in recorded.claims}
        return recorded.claims, recorded.occupied - handles

    def _select_handles(self, domain: domains.Domain) -> Iterator[str]:
        """Yield the functions and mdevs of a domain on the devices."""
        yield from filter(self._is_selected, domain.functions)
        if self._addresses is None:
            yield from domain.mdevs
        elif domain.mdevs:
            for function in self._host.functions.values():
                if self._is_selected(str(function.address)):
                    names = self._host.names(self._host.path(function, ""))
                    yield from domain.mdevs.intersection(names)

    def _is_selected(self, device: str) -> bool:
        if self._addresses is None:
            return True
        address = device.partition("/")[0]
        function = self._host.functions.get(address)
        card = str(function.physfn or address) if function else address
        return not self._addresses.isdisjoint((address, card))

    def drain(
        self, seconds: float, report: Callable[[str], None]
    ) -> tuple[str, ...]:
        """Drain the devices; return the addresses that were not drained.

        Without nova-compute nothing is drained.

        :param seconds: longest wait until Placement offers the devices to
            no server, and has none that was scheduled before; 0 to read no
            Placement.
        :param report: called with a line when the reason to wait changes.
        :raises ConfigurationError: there are no credentials of Placement;
            nothing is drained.
        :raises DevicesInUseError: a server holds a device.
        :raises DomainsError: the domains can't be read.
        :raises DrainTimeoutError: the wait took too long.
        :raises AcceleratorError: the claims can't be read.
        """
        self.check()
        if not (self.has_nova and self._addresses):
            return ()
        reader = self._open_drains() if seconds else None
        addresses = tuple(
            sorted(set(self._addresses) - self._notes.read().keys())
        )
        for address in addresses:
            self._notes.put(address, _REASON)
        report(f"drained {', '.join(sorted(self._addresses))}")
        # An operator may interrupt the wait.
        with contextlib.ExitStack() as stack:
            stack.callback(self.undrain, addresses)
            if reader is not None:
                self._wait(reader, seconds, report)
            stack.pop_all()
        return addresses

    def undrain(self, addresses: Iterable[str]) -> None:
        """Offer devices again that ``drain`` has drained."""
        self._notes.remove(addresses)

    def _wait(
        self,
        reader: registered_readers.DrainReader,
        seconds: float,
        report: Callable[[str], None],
    ) -> None:
        until = time.monotonic() + seconds
        last = ""
        while reason := self._explain_wait(reader):
            if reason != last:
                report(f"waiting: {reason}")
                last = reason
            rest = until - time.monotonic()
            if rest <= 0:
                raise DrainTimeoutError(seconds, reason)
            time.sleep(min(_POLL_S, rest))
            self.check()
        # Its allocation may have become a claim.
        self.check()

    def _explain_wait(self, reader: registered_readers.DrainReader) -> str:
        """Return why the devices may still get a server."""
        root = self._file.read().root
        if root is None:
            return f"{self._file.path} does not name the compute node"
        try:
            return reader.explain_wait(root.uuid, self._addresses or ())
        except errors.ServiceError as error:
            return str(error)
