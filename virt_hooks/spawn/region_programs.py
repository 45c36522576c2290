# SPDX-License-Identifier: Apache-2.0
"""FPGA regions: programmed for servers, set aside on failure."""

import dataclasses
import logging
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)

from nova_accel import errors, model
from nova_accel.fpga import bitstreams, regions
from nova_accel.host.state import faults
from virt_hooks.guest import connection

LOG = logging.getLogger(__name__)

ReadFile = Callable[[str], model.Bitstream]


class RegionPrograms:
    """What regions are to hold when servers come, and when they go."""

    def __init__(
        self,
        faulted: faults.FaultNotes | None = None,
        read_file: ReadFile | None = None,
    ) -> None:
        """Use these.

        :param faulted: the notes on regions that failed; without them
            they are logged.
        :param read_file: returns the bitstream of an operator's file, or
            raises BitstreamError; without it regions keep what they hold.
        """
        self._faulted = faulted
        self._read_file = read_file
        #: What this process knows to be in regions: digests by address.
        self._loaded: dict[str, str] = {}
        #: What the host's domains hold, or those of them that run.
        self.uses: Callable[[bool], connection.HostdevUse] = _nothing

    def plan(
        self,
        found: tuple[model.Claim, ...],
        before: Iterable[model.Claim],
        bitstreams: Mapping[str, model.Bitstream],
        holders: Iterable[model.Claim],
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Return a server's claims with what is to be loaded for them.

        Regions that the server's guest has are made, and so are those
        that hold what was loaded for it; the others are checked.

        :param found: the claims as planned.
        :param before: what the server had.
        :param bitstreams: those on this host, by image.
        :param holders: the claims of all servers of this host.
        :raises ClaimError: one can't be served; nothing was touched.
        """
        if not any(claim.region for claim in found):
            return found
        had = {c.handle: c for c in before if c.state is model.ClaimState.MADE}
        running = self.uses(True) if had else connection.HostdevUse()
        wanted = tuple(
            _as_held(claim, had.get(claim.handle), running, host)
            for claim in self._distrusted(
                regions.with_bitstreams(found, bitstreams)
            )
        )
        due = tuple(
            claim
            for claim in wanted
            if claim.region and claim.state is model.ClaimState.PLANNED
        )
        if due:
            regions.check(due, host)
            own = {name for c in had.values() for name in _functions(c)}
            used = self.uses(False).functions - own
            regions.check_free(due, used, holders)
        return wanted

    def _distrusted(
        self, claims: Iterable[model.Claim]
    ) -> Iterator[model.Claim]:
        """Yield claims; forced unless what is there is known for certain.

        A function keeps its id from build to build.
        """
        for claim in claims:
            known = self._loaded.get(claim.device)
            yield dataclasses.replace(
                claim,
                is_forced=claim.bitstream is not None
                and claim.bitstream.sha512 != known,
            )

    def note_loaded(self, claims: Iterable[model.Claim]) -> None:
        """Remember what was loaded for claims that are made now."""
        for claim in claims:
            if claim.bitstream is not None:
                self._loaded[claim.device] = claim.bitstream.sha512

    def note(
        self,
        error: BaseException,
        read: Callable[[str], model.HostState],
    ) -> None:
        """Set a region aside if an error says that it was touched.

        :param read: reads a device anew and returns the host.
        """
        if isinstance(error, errors.ProgrammingError):
            self._loaded.pop(error.region, None)
            self.set_aside(error.region, str(error), read(error.region))

    def blanked(
        self,
        claims: Iterable[model.Claim],
        had: Collection[str],
        host: model.HostState,
        holders: Iterable[model.Claim],
    ) -> tuple[model.Claim, ...]:
        """Return the claims by which a server's partitions are released.

        Those of regions have the bitstream that policy wants in them
        then; none where the function is kept, where the region is at
        fault, or where the server did not get it.

        :param had: handles of what the server got.
        :param holders: the claims of the servers that stay.
        """
        others = tuple(holders)
        return tuple(
            self._blanked(claim, host, others)
            if claim.region is not None and claim.handle in had
            else dataclasses.replace(claim, bitstream=None)
            for claim in claims
        )

    def _blanked(
        self,
        claim: model.Claim,
        host: model.HostState,
        holders: tuple[model.Claim, ...],
    ) -> model.Claim:
        kept = dataclasses.replace(claim, bitstream=None)
        device = host.device(claim.device)
        if (
            device is None
            or device.region is None
            or device.fault
            or not device.region.blank
            or self._read_file is None
        ):
            return kept
        try:
            blank = self._read_file(device.region.blank)
            reason = bitstreams.objection(
                blank, device.region, device.vendor_id
            )
            if reason:
                raise errors.BitstreamError(blank.path, reason)
            due = dataclasses.replace(
                claim, region=device.region, bitstream=blank, is_forced=True
            )
            regions.check_free((due,), self.uses(False).functions, holders)
        except (errors.BitstreamError, errors.ClaimError) as error:
            self.set_aside(device.address, f"can't be blanked: {error}", host)
            return kept
        self._loaded.pop(claim.device, None)
        return due

    def note_kept(
        self,
        claim: model.Claim,
        error: BaseException,
        host: model.HostState,
    ) -> bool:
        """Set a region aside that still holds what its last server left.

        :returns: whether the claim is of such a region.
        """
        if claim.region is None or claim.bitstream is None:
            return False
        self._loaded.pop(claim.device, None)
        self.set_aside(claim.device, f"could not be blanked: {error}", host)
        return True

    def set_aside(
        self, address: str, reason: str, host: model.HostState
    ) -> None:
        """Note that a device must not be given away, or log it.

        :param host: tells what the device's region holds, if it is one.
        """
        device = host.device(address)
        region = device.region if device else None
        if self._faulted is None:
            LOG.error("%s failed: %s", address, reason)
            return
        self._faulted.put(address, reason, region.function if region else None)

    @property
    def faulted(self) -> faults.FaultNotes | None:
        """Return the notes on devices that failed, None without any."""
        return self._faulted


def _nothing(_: bool) -> connection.HostdevUse:
    return connection.HostdevUse()


def _functions(claim: model.Claim) -> tuple[str, ...]:
    return claim.slot, *claim.members


def _as_held(
    claim: model.Claim,
    had: model.Claim | None,
    running: connection.HostdevUse,
    host: model.HostState,
) -> model.Claim:
    """Return a claim, made if its region needs no work.

    :param had: the same claim, as the server held it before.
    """
    if claim.region is None or had is None:
        return claim
    made = dataclasses.replace(claim, state=model.ClaimState.MADE)
    if running.holds(claim.handle):
        return made
    device = host.device(claim.device)
    if device is None or device.region is None or device.fault:
        return claim
    loaded = claim.bitstream or had.bitstream
    if loaded is None or device.region.function != loaded.function:
        return claim
    return made
