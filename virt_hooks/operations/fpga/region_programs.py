# SPDX-License-Identifier: Apache-2.0
"""FPGA regions: programmed for servers, set aside on failure."""

import dataclasses
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams, regions
from nova_accel.host.bitstreams import bitstream_cache
from nova_accel.host.state import device_notes
from virt_hooks.guest import connection
from virt_hooks.operations.fpga import bitstream_images
from virt_hooks.spawn import programs


class RegionPrograms(programs.Programs):
    """Plans the bitstreams of regions; sets regions aside that fail."""

    def __init__(
        self,
        domains: connection.HostdevReader,
        faulted: device_notes.FaultNotes,
        read_bitstream: Callable[[str], model.Bitstream] | None = None,
    ) -> None:
        """Load nothing yet.

        :param read_bitstream: returns the bitstream of an operator's file,
            or raises BitstreamError; without it regions are not blanked.
        """
        self._domains = domains
        self._faults = faulted
        self._read_bitstream = read_bitstream
        #: SHA-512 of the bitstreams that this process loaded, by region.
        self._loaded: dict[str, str] = {}

    def plan(
        self,
        claims: tuple[model.Claim, ...],
        before: Iterable[model.Claim],
        bitstreams: Mapping[str, model.Bitstream],
        holders: Iterable[model.Claim],
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Return a server's claims with the bitstreams to load.

        A region is made if the server's running guest has it, or if it
        still has the function that was loaded for the server. All other
        regions are checked.
        """
        made = {
            claim.handle: claim
            for claim in before
            if claim.state is model.ClaimState.MADE
        }
        running = connection.HostdevUse()
        if made:
            running = self._domains.read_running()
        claims = tuple(
            _mark_made(claim, made.get(claim.handle), running, host)
            for claim in self._mark_forced(
                regions.with_bitstreams(claims, bitstreams)
            )
        )
        due = tuple(
            claim
            for claim in claims
            if claim.region and claim.state is model.ClaimState.PLANNED
        )
        if due:
            regions.check_functions(due, host)
            own = {name for c in made.values() for name in _functions(c)}
            used = self._domains.read_use().functions - own
            regions.check_free(due, used, holders)
        return claims

    def _mark_forced(
        self, claims: Iterable[model.Claim]
    ) -> Iterator[model.Claim]:
        """Yield claims, forced unless this process loaded their bitstream.

        The id of a function does not change with its build.
        """
        for claim in claims:
            loaded = self._loaded.get(claim.device)
            yield dataclasses.replace(
                claim,
                is_forced=claim.bitstream is not None
                and claim.bitstream.sha512 != loaded,
            )

    def note_loaded(self, claims: Iterable[model.Claim]) -> None:
        """Remember the bitstreams that were loaded for made claims."""
        for claim in claims:
            if claim.bitstream is not None:
                self._loaded[claim.device] = claim.bitstream.sha512

    def note_failure(
        self,
        error: BaseException,
        refresh: Callable[[str], model.HostState],
    ) -> None:
        """Set the region of a ProgrammingError aside."""
        if isinstance(error, errors.ProgrammingError):
            self._loaded.pop(error.region, None)
            self._faults.set_aside(
                error.region, str(error), refresh(error.region)
            )

    def plan_blanking(
        self,
        claims: Iterable[model.Claim],
        own_handles: Collection[str],
        host: model.HostState,
        holders: Iterable[model.Claim],
    ) -> tuple[model.Claim, ...]:
        """Return the claims, those of regions with a blank bitstream.

        It is none if policy keeps the function, if the region is at fault,
        or if the server did not get it.
        """
        others = tuple(holders)
        return tuple(
            self._blank(claim, host, others)
            if claim.region is not None and claim.handle in own_handles
            else dataclasses.replace(claim, bitstream=None)
            for claim in claims
        )

    def _blank(
        self,
        claim: model.Claim,
        host: model.HostState,
        holders: tuple[model.Claim, ...],
    ) -> model.Claim:
        unchanged = dataclasses.replace(claim, bitstream=None)
        device = host.device(claim.device)
        if (
            device is None
            or device.region is None
            or device.fault
            or not device.region.blank
            or self._read_bitstream is None
        ):
            return unchanged
        try:
            blank = self._read_bitstream(device.region.blank)
            reason = bitstreams.explain_mismatch(
                blank, device.region, device.vendor_id
            )
            if reason:
                raise errors.BitstreamError(blank.path, reason)
            due = dataclasses.replace(
                claim, region=device.region, bitstream=blank, is_forced=True
            )
            regions.check_free(
                (due,), self._domains.read_use().functions, holders
            )
        except (errors.BitstreamError, errors.ClaimError) as error:
            self._faults.set_aside(
                device.address, f"can't be blanked: {error}", host
            )
            return unchanged
        self._loaded.pop(claim.device, None)
        return due

    def note_unblanked(
        self,
        claim: model.Claim,
        error: BaseException,
        host: model.HostState,
    ) -> bool:
        """Set the region of a claim with a blank bitstream aside."""
        if claim.region is None or claim.bitstream is None:
            return False
        self._loaded.pop(claim.device, None)
        self._faults.set_aside(
            claim.device, f"could not be blanked: {error}", host
        )
        return True


def _functions(claim: model.Claim) -> tuple[str, ...]:
    return claim.slot, *claim.members


def _mark_made(
    claim: model.Claim,
    before: model.Claim | None,
    running: connection.HostdevUse,
    host: model.HostState,
) -> model.Claim:
    """Return a claim, made if its region needs no programming.

    :param before: the server's former claim on the same region.
    """
    if claim.region is None or before is None:
        return claim
    made = dataclasses.replace(claim, state=model.ClaimState.MADE)
    if running.holds(claim.handle):
        return made
    device = host.device(claim.device)
    if device is None or device.region is None or device.fault:
        return claim
    loaded = claim.bitstream or before.bitstream
    if loaded is None or device.region.function != loaded.function:
        return claim
    return made


class GlancePrograms(RegionPrograms):
    """``programs.Programs`` of the FPGA regions of this host."""

    def __init__(self, context: programs.ProgramContext) -> None:
        settings = context.settings
        cache = bitstream_cache.BitstreamCache(
            settings.cache_dir, settings.limit
        )
        super().__init__(context.domains, context.faults, cache.read_file)
        self._images = bitstream_images.BitstreamImages(settings)

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """See ``bitstream_images.BitstreamImages.fetch``."""
        return self._images.fetch(context, images, keep)

    def read_cached(
        self, images: Iterable[str]
    ) -> Mapping[str, model.Bitstream]:
        """See ``bitstream_images.BitstreamImages.read_cached``."""
        return self._images.read_cached(images)

    def remove_partial_files(self) -> None:
        """Remove what interrupted downloads of a killed service left."""
        self._images.remove_partial_files()
