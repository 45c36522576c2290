# SPDX-License-Identifier: Apache-2.0
"""Providers of drained devices: whether they can still get a server."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_accel.config import conf
from nova_accel.model import names, providers
from placement_sync.client import resource_providers, rest


@dataclasses.dataclass(frozen=True, slots=True)
class DrainedProviders:
    """Providers of drained devices, in Placement.

    ``uuids`` are those of the devices, by the uuid of the compute node. The
    regions of a card are drained with it.
    """

    placement: resource_providers.PlacementClient
    uuids: Mapping[str, Collection[str]]

    def find_offered(
        self, marks: frozenset[str] = names.UNAVAILABLE_TRAITS
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


class PlacementDrains:
    """Reader of drained devices for ``nova-accel driver``."""

    def __init__(self, config_files: Sequence[str]) -> None:
        """Send no request yet.

        :raises ConfigurationError: the files have no usable credentials.
        """
        parsed, _ = conf.parse_files(config_files)
        self._placement = resource_providers.PlacementClient(
            rest.from_conf(parsed)
        )

    def explain_wait(self, root: str, addresses: Collection[str]) -> str:
        """Return why devices may still get a server, "" if they can't.

        :param root: uuid of the compute node.
        :raises ServiceError: Placement can't be read.
        """
        uuids = {names.provider_uuid(root, a) for a in addresses}
        drained = DrainedProviders(self._placement, {root: uuids})
        if reason := drained.find_offered():
            return reason
        consumers = ", ".join(sorted(drained.list_consumers()))
        return f"Placement has allocations of {consumers}" if consumers else ""
