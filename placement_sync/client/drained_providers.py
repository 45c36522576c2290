# SPDX-License-Identifier: Apache-2.0
"""Providers of drained devices: whether a server uses or can get them."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from nova_accel.discovery import nova_conf
from nova_accel.model import names, providers
from placement_sync.client import cloud_client, resource_providers


def _read_no_claims() -> tuple[frozenset[str], str]:
    return frozenset(), ""


@dataclasses.dataclass(frozen=True, slots=True)
class DrainedProviders:
    """Providers of drained devices, in Placement.

    ``uuids`` are those of the devices, by the uuid of the compute node. The
    regions of a card are drained with it. ``read_claims`` returns the servers
    with claims of the devices on their host, and the reason if some are
    unknown.
    """

    placement: resource_providers.PlacementClient
    uuids: Mapping[str, Collection[str]]
    read_claims: Callable[[], tuple[frozenset[str], str]] = _read_no_claims

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

    def find_drained(self) -> str:
        """Return the reason to wait while a device is drained, or "".

        A region that is drained by itself does not count for its card.
        """
        for root, uuids in self.uuids.items():
            for provider in self.placement.fetch(root).tree.nodes:
                is_drained = names.DRAINED_TRAIT in provider.traits
                if provider.uuid in uuids and is_drained:
                    return f"{provider.name} still has {names.DRAINED_TRAIT}"
        return ""

    def find_use(
        self, migrate: Callable[[Collection[str]], None] | None = None
    ) -> str:
        """Return why a server has a device or can get one, or "".

        A missing or unreadable device is not offered, and no pass marks it as
        drained.

        :param migrate: is called with the consumers of devices that are not
            offered.
        """
        # An offered device can get a server at any time.
        if reason := self.find_offered():
            return reason
        claimants, reason = self.read_claims()
        consumers = self._list_consumers() | claimants
        if migrate is not None:
            migrate(consumers)
        if consumers:
            return f"in use by {', '.join(sorted(consumers))}"
        return reason

    def _list_consumers(self) -> frozenset[str]:
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
        parsed, _ = nova_conf.parse_files(config_files)
        self._placement = resource_providers.PlacementClient(
            cloud_client.from_conf(parsed)
        )

    def explain_wait(self, root: str, addresses: Collection[str]) -> str:
        """Return why devices may still get a server, "" if they can't.

        :param root: uuid of the compute node.
        :raises ServiceError: Placement can't be read.
        """
        uuids = {names.provider_uuid(root, a) for a in addresses}
        return DrainedProviders(self._placement, {root: uuids}).find_use()
