# SPDX-License-Identifier: Apache-2.0
"""Snapshot of a cloud in memory, on which plans place servers.

Nothing is written: a plan changes the snapshot as Placement and the hosts
would change if its servers were created.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from filters.fit import candidate_fit, provider_facts
from filters.request import AcceleratorRequest
from nova_accel import model
from nova_accel.geometry.scheduling import card_state
from nova_accel.model import providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.planning import card_claims

# Layouts in which used units do not determine the partitions.
_UNEVEN = frozenset({model.Layout.MIXED, model.Layout.MIG})
_Capacities = Mapping[str, providers.ClassCapacity]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHost:
    """Compute node of a snapshot.

    ``capacities`` are its own, without those of its devices; a class that
    is not among them is not limited. ``devices`` are by uuid.
    ``is_disabled`` is true if its compute service takes no servers.
    """

    uuid: str
    name: str
    capacities: _Capacities = dataclasses.field(default_factory=dict)
    devices: Mapping[str, offered_devices.OfferedDevice]
    is_disabled: bool = False

    @property
    def is_closed(self) -> bool:
        """Return whether it gets no server at all."""
        is_stale = any(d.is_stale for d in self.devices.values())
        return self.is_disabled or is_stale


class CloudSnapshot:
    """Hosts with their devices, and the servers on them.

    ``hosts`` are by uuid; the objects are replaced, never changed.
    """

    def __init__(
        self,
        types: offered_devices.VgpuTypes,
        fleet: fleet_state.Fleet | None = None,
    ) -> None:
        """Take the hosts of a fleet; bare-metal nodes are left out."""
        self.types = types
        self.hosts: dict[str, PlannedHost] = {}
        self._fleet = fleet or fleet_state.Fleet()
        self._claims = card_claims.CardClaims(types)
        self._holdings = list(self._fleet.holdings)
        self._servers = dict(self._fleet.servers)
        self._read_hosts()

    def _read_hosts(self) -> None:
        amounts = collections.defaultdict(list)
        for holding in self._holdings:
            amounts[holding.provider].append(holding.amounts)
        by_host: dict[str, list[offered_devices.OfferedDevice]] = (
            collections.defaultdict(list)
        )
        for device in self._fleet.devices:
            if not device.counts:
                allocations = tuple(amounts[device.uuid])
                by_host[device.root].append(
                    self._add_allocations(device, allocations)
                )
        cloud = self._fleet.cloud
        for uuid, devices in by_host.items():
            self.add_host(
                PlannedHost(
                    uuid=uuid,
                    name=devices[0].host,
                    capacities=cloud.hosts.get(uuid, {}),
                    devices={device.uuid: device for device in devices},
                    is_disabled=uuid in cloud.disabled,
                )
            )

    def _add_allocations(
        self,
        device: offered_devices.OfferedDevice,
        allocations: tuple[Mapping[str, int], ...],
    ) -> offered_devices.OfferedDevice:
        """Return a device with allocations if its traits do not show all.

        Those of other cards are not needed: nova-scheduler has none either.
        """
        plain = dataclasses.replace(device, allocations=None)
        if card_state.parse_layout(device.traits) not in _UNEVEN or (
            self.types.geometry.states.is_occupancy_known(plain)
        ):
            return plain
        return dataclasses.replace(plain, allocations=allocations)

    @property
    def holdings(self) -> Sequence[providers.Allocation]:
        """Return the allocations of devices."""
        return tuple(self._holdings)

    @property
    def servers(self) -> Mapping[str, nova_api.Server]:
        """Return the servers by uuid, planned ones too."""
        return self._servers

    # -- changes ------------------------------------------------------------

    def add_host(self, host: PlannedHost) -> None:
        """Add a host, or replace the one with its uuid."""
        self.hosts[host.uuid] = host

    def remove_host(self, uuid: str) -> None:
        """Remove a host with the allocations of its devices."""
        self.release(self.hosts.pop(uuid).devices)

    def release(
        self, devices: Mapping[str, offered_devices.OfferedDevice]
    ) -> None:
        """Forget the allocations of devices that are removed or replaced."""
        self._holdings = [
            holding
            for holding in self._holdings
            if holding.provider not in devices
        ]

    def place(
        self,
        server: nova_api.Server,
        uuid: str,
        request: AcceleratorRequest,
        candidate: provider_facts.Candidate,
    ) -> None:
        """Allocate a candidate of a host to a server.

        :param uuid: that of the host.
        """
        host = self.hosts[uuid]
        allocations = {
            provider: part["resources"]
            for provider, part in candidate["allocations"].items()
        }
        added = provider_facts.list_added(request.groups, candidate)
        devices = dict(host.devices)
        for provider, amounts in allocations.items():
            if provider in devices:
                devices[provider] = self._claims.add(
                    devices[provider], added.get(provider, ()), amounts
                )
                self._holdings.append(
                    providers.Allocation(
                        provider=provider,
                        consumer=server.uuid,
                        amounts=amounts,
                    )
                )
        self._servers[server.uuid] = server
        self.hosts[uuid] = dataclasses.replace(
            host,
            devices=devices,
            capacities=_take(host.capacities, allocations.get(uuid, {})),
        )

    # -- reading ------------------------------------------------------------

    def find_ambiguous(
        self, request: AcceleratorRequest, host: PlannedHost
    ) -> frozenset[str]:
        """Return the cards whose partitions nova-scheduler does not know.

        It reads the allocations of these only if no host is sure.
        """
        cards = [
            dataclasses.replace(device, allocations=None)
            for device in host.devices.values()
            if device.allocations is not None
        ]
        states = self.types.geometry.states
        return candidate_fit.find_ambiguous(request, cards, states)

    def build_fleet(self) -> fleet_state.Fleet:
        """Return the fleet with the hosts and servers of the snapshot."""
        devices = [
            device
            for host in self.hosts.values()
            for device in host.devices.values()
        ]
        return dataclasses.replace(
            self._fleet,
            cloud=offered_devices.Cloud(
                devices=tuple(devices),
                hosts={u: h.capacities for u, h in self.hosts.items()},
                disabled=frozenset(
                    u for u, h in self.hosts.items() if h.is_disabled
                ),
            ),
            holdings=tuple(self._holdings),
            servers=self._servers,
        )


def _take(capacities: _Capacities, amounts: Mapping[str, int]) -> _Capacities:
    """Return a host's capacities with one more server."""
    return {
        name: dataclasses.replace(c, used=c.used + amounts.get(name, 0))
        for name, c in capacities.items()
    }
