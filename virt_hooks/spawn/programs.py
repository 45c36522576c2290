# SPDX-License-Identifier: Apache-2.0
"""Programs that are loaded into devices for servers: bitstreams of FPGAs.

FPGAs are registered as an entry point of the group ``nova_accel.programs``:
a class that takes a ``ProgramContext``. A spawn and a release call it, and
know no FPGA by name.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.config import conf
from nova_accel.host.state import device_notes
from virt_hooks.guest import connection

GROUP = "nova_accel.programs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramContext:
    """Objects of one nova-compute that programs may use."""

    settings: conf.BitstreamSettings
    domains: connection.HostdevReader
    faults: device_notes.FaultNotes


class Programs:
    """Programs of a host without programmable devices."""

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """Return the bitstreams of images, by the text that named each.

        :param context: of the request: its user must see the images.
        :param keep: images that other servers need here.
        :raises BitstreamError: one may not be loaded, or can't be fetched.
        """
        return {}

    def read_cached(
        self, images: Iterable[str]
    ) -> Mapping[str, model.Bitstream]:
        """Return the bitstreams that are on this host and still allowed."""
        return {}

    def remove_partial_files(self) -> None:
        """Remove what interrupted downloads of a killed service left."""

    def plan(
        self,
        claims: tuple[model.Claim, ...],
        before: Iterable[model.Claim],
        bitstreams: Mapping[str, model.Bitstream],
        holders: Iterable[model.Claim],
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Return a server's claims with the bitstreams to load for them.

        :param claims: the planned claims, of which some have a region.
        :param before: the claims that the server had.
        :param bitstreams: those on this host, by image.
        :param holders: the claims of all servers of this host.
        :raises ClaimError: a region can't be used; nothing was changed.
        """
        return claims

    def note_loaded(self, claims: Iterable[model.Claim]) -> None:
        """Remember the bitstreams that were loaded for made claims."""

    def note_failure(
        self, error: BaseException, refresh: Callable[[str], model.HostState]
    ) -> None:
        """Set a region aside if it was touched before an error.

        :param refresh: reads a device again and returns the host.
        """

    def plan_blanking(
        self,
        claims: Iterable[model.Claim],
        own_handles: Collection[str],
        host: model.HostState,
        holders: Iterable[model.Claim],
    ) -> tuple[model.Claim, ...]:
        """Return the claims to release a server's partitions with.

        Those of regions have the bitstream that policy loads after a server.

        :param own_handles: handles that the server got.
        :param holders: the claims of all other servers.
        """
        return tuple(
            dataclasses.replace(claim, bitstream=None) for claim in claims
        )

    def note_unblanked(
        self, claim: model.Claim, error: BaseException, host: model.HostState
    ) -> bool:
        """Set a region aside that still has its last server's function.

        :returns: whether the claim is of such a region.
        """
        return False
