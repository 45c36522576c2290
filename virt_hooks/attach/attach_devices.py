# SPDX-License-Identifier: Apache-2.0
"""Choice of the device for a profile that is attached to a server."""

import dataclasses
import functools
from typing import Any

from nova_accel import errors
from nova_accel.claims import attach_candidates
from nova_accel.model import providers
from virt_hooks.attach import attach_allocations
from virt_hooks.operations import server_partitions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Devices with room for a profile, best first.

    ``refusal`` is the error if none of them can be allocated.
    """

    ranked: tuple[attach_candidates.AttachCandidate, ...]
    refusal: errors.ClaimError


class AttachDevices:
    """Chooses devices of this host, by its state and by Placement."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        allocations: attach_allocations.AttachAllocations,
    ) -> None:
        self._partitions, self._accel = partitions, partitions.accel
        self._allocations = allocations

    def choose(
        self, context: Any, uuid: str, profile: str, bitstream: str
    ) -> DeviceChoice:
        """Return the devices for one more profile of a server.

        A bitstream is fetched, and the devices are those that can load it.

        :param context: Glance is read with it.
        :param profile: its name, or its trait.
        :param bitstream: id of an image, empty for none.
        :raises AcceleratorError: no device has the profile, the bitstream
            can't be fetched, or Placement did not answer.
        """
        root = self._accel.root
        if root is None:
            raise errors.ClaimError(uuid, "this host has no name yet")
        candidates = self._find_candidates(context, root, profile, bitstream)
        open_providers = self._find_open_providers(context, root, candidates)
        reasons = "; ".join(
            attach_candidates.list_refusals(candidates, open_providers)
        )
        return DeviceChoice(
            ranked=attach_candidates.rank(
                candidates, open_providers, self._accel.claims()
            ),
            refusal=errors.ClaimError(
                uuid,
                f"no device of {self._allocations.hostname} can give"
                f" {profile} now: {reasons or 'others were faster'}",
                public=f"no room on its host for {profile} now",
            ),
        )

    def _find_candidates(
        self,
        context: Any,
        root: providers.ProviderRoot,
        profile: str,
        bitstream: str,
    ) -> tuple[attach_candidates.AttachCandidate, ...]:
        """Return the devices of this host that offer a profile."""
        find = functools.partial(
            attach_candidates.find, profile, root, rules=self._accel.rules
        )
        candidates = find(self._accel.host.state, bool(bitstream))
        if not bitstream:
            return candidates
        fetched = self._partitions.accel.programs.fetch(
            context, {bitstream}, self._partitions.list_images()
        )
        # The host may have changed during the download.
        candidates = find(self._accel.host.state, bool(bitstream))
        return attach_candidates.with_bitstream(candidates, fetched[bitstream])

    def _find_open_providers(
        self,
        context: Any,
        root: providers.ProviderRoot,
        candidates: tuple[attach_candidates.AttachCandidate, ...],
    ) -> set[str]:
        """Return the uuids of the providers that Placement has room on."""
        groups = [
            candidate.request_group()
            for candidate in candidates
            if not attach_candidates.explain_refusal(candidate)
        ]
        open_providers: set[str] = set()
        for group in {str(group): group for group in groups}.values():
            open_providers |= self._allocations.find_candidates(
                context, root.uuid, group
            )
        return open_providers
