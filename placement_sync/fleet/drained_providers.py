# SPDX-License-Identifier: Apache-2.0
"""Providers of drained devices: whether they can still get a server."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from nova_accel.model import names, providers
from placement_sync.client import resource_providers
from placement_sync.flavors import offered_devices


@dataclasses.dataclass(frozen=True, slots=True)
class DrainedProviders:
    """Providers of drained devices, in Placement.

    ``uuids`` are those of the devices, by the uuid of the compute node. The
    regions of a card are drained with it.
    """

    placement: resource_providers.PlacementClient
    uuids: Mapping[str, Collection[str]]

    def find_offered(
        self, marks: frozenset[str] = offered_devices.UNAVAILABLE_TRAITS
    ) -> str:
        """Return the reason to wait while a device is offered, or "".

        :param marks: traits of which each device gets one.
        """
        for provider in self._list():
            if not provider.traits & marks:
                return f"{provider.name} has no {names.DRAINED_TRAIT} yet"
        return ""

    def list_consumers(self) -> frozenset[str]:
        """Return the consumers with allocations of the devices."""
        uuids = {provider.uuid for provider in self._list()}
        return frozenset(
            consumer
            for uuid in uuids.union(*self.uuids.values())
            for consumer in self.placement.fetch_allocations(uuid)
        )

    def _list(self) -> Iterator[providers.ProviderNode]:
        for root, uuids in self.uuids.items():
            for provider in self.placement.fetch(root).tree.nodes:
                if provider.uuid in uuids or provider.parent in uuids:
                    yield provider
