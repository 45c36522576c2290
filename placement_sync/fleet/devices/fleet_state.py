# SPDX-License-Identifier: Apache-2.0
"""Devices of a cloud with their holders, as read from Placement and Nova."""

import collections
import dataclasses
from collections.abc import Mapping

from nova_accel.model import providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import drain_notes
from placement_sync.fleet.flavors import offered_devices

# Units by resource class.
Amounts = Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Devices of a query, their holders, and the reasons of unread sources.

    ``servers`` are by uuid; a consumer that is not among them is a
    migration, or a server that Nova does not show. ``project_names`` are
    those of the servers' projects, by id, as far as they were read. ``gaps``
    name what could not be read, with the reason: without one of them, an
    empty answer means that there is nothing. ``has_holdings`` is false if
    holdings were not read, because too many devices have some. ``drains``
    are the notes on drained devices by provider, and ``faults`` the texts of
    faults; both are empty if they were not read.
    """

    cloud: offered_devices.Cloud = dataclasses.field(
        default_factory=offered_devices.Cloud
    )
    holdings: tuple[providers.Allocation, ...] = ()
    servers: Mapping[str, nova_api.Server] = dataclasses.field(
        default_factory=dict
    )
    project_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    has_holdings: bool = True
    drains: Mapping[str, tuple[drain_notes.DrainNote, ...]] = (
        dataclasses.field(default_factory=dict)
    )
    faults: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def devices(self) -> tuple[offered_devices.OfferedDevice, ...]:
        return self.cloud.devices

    def list_consumers(self) -> Mapping[str, frozenset[str]]:
        """Return the consumers of each device, by its provider's uuid."""
        consumers: dict[str, set[str]] = collections.defaultdict(set)
        for holding in self.holdings:
            consumers[holding.provider].add(holding.consumer)
        return {uuid: frozenset(each) for uuid, each in consumers.items()}

    def find_project(self, consumer: str) -> str:
        """Return the project of a consumer, empty if it is not known."""
        server = self.servers.get(consumer)
        return server.project if server else ""
