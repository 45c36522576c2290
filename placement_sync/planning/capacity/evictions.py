# SPDX-License-Identifier: Apache-2.0
"""Servers that a plan moves: those of a host, or of cards to change."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from nova_accel import errors
from placement_sync.client import nova_api, rest
from placement_sync.fleet.explain import server_request, simulation
from placement_sync.fleet.flavors import cloud, offered_devices
from placement_sync.fleet.moves import movable_servers
from placement_sync.planning import snapshot
from placement_sync.planning.capacity import capacity_plan

_Devices = Mapping[str, offered_devices.OfferedDevice]
_Held = Mapping[str, list[Mapping[str, int]]]


class Evictions:
    """Reader of the requests of servers that a plan moves.

    :param compute: client of Nova's API, for zones, hints and groups; None
        without a cloud.
    """

    def __init__(
        self, planned: snapshot.CloudSnapshot, compute: rest.RestClient | None
    ) -> None:
        self._snapshot = planned
        self._compute = compute
        self._groups: server_request.HostGroups | None = None

    def empty_host(self, uuid: str) -> list[capacity_plan.EvictedServer]:
        """Remove a host from the snapshot; return its servers.

        Those that have accelerators; servers without any are not planned.
        """
        host = self._snapshot.hosts[uuid]
        evicted = list(self._list(host.name, host.devices))
        self._snapshot.remove_host(uuid)
        return evicted

    def empty_cards(
        self, cards: _Devices
    ) -> list[capacity_plan.EvictedServer]:
        """Return the servers of cards, and free their CPU and memory."""
        elsewhere = {
            holding.consumer
            for holding in self._snapshot.holdings
            if holding.provider not in cards
        }
        evicted = []
        for host in {device.host for device in cards.values()}:
            own = {u: d for u, d in cards.items() if d.host == host}
            for each in self._list(host, own):
                is_whole = each.server.uuid not in elsewhere
                evicted.append(each if is_whole else _leave(each))
                self._free(next(iter(own.values())).root, each.server)
        return evicted

    def _free(self, uuid: str, server: nova_api.Server) -> None:
        """Give back the CPU, memory and disk that a server had of a host."""
        host = self._snapshot.hosts[uuid]
        needs = movable_servers.list_needs(server)
        self._snapshot.add_host(
            dataclasses.replace(
                host,
                capacities={
                    name: dataclasses.replace(
                        capacity,
                        used=max(0, capacity.used - needs.get(name, 0)),
                    )
                    for name, capacity in host.capacities.items()
                },
            )
        )

    def _list(
        self, host: str, devices: _Devices
    ) -> Iterator[capacity_plan.EvictedServer]:
        holdings: dict[str, list[Mapping[str, int]]] = collections.defaultdict(
            list
        )
        for holding in self._snapshot.holdings:
            if holding.provider in devices:
                holdings[holding.consumer].append(holding.amounts)
        for consumer, amounts in sorted(holdings.items()):
            server = self._snapshot.servers.get(consumer)
            evicted = capacity_plan.EvictedServer(
                server=server or nova_api.Server(uuid=consumer),
                host=host,
                size=capacity_plan.measure_size(amounts),
            )
            if server is None:
                problem = "Nova shows no such server: it is another project's"
                problem += ", or a migration that is not over"
                yield dataclasses.replace(evicted, problem=problem)
            else:
                yield self._add_request(evicted)

    def _add_request(
        self, evicted: capacity_plan.EvictedServer
    ) -> capacity_plan.EvictedServer:
        """Return a server with its request, or with why there is none."""
        server = evicted.server
        if server.flavor is None:
            return dataclasses.replace(
                evicted, problem="Nova does not show the flavor of the server"
            )
        flavor = cloud.Flavor(
            id="",
            name=server.flavor.name,
            specs=server.flavor.extra_specs,
            needs=movable_servers.list_needs(server),
        )
        try:
            choices = build_choices(flavor, self._snapshot)
        except errors.MalformedError as error:
            return dataclasses.replace(evicted, problem=str(error))
        request = capacity_plan.PlacementRequest(choices=choices)
        return dataclasses.replace(
            evicted, request=self._add_exclusions(request, server)
        )

    def _add_exclusions(
        self, request: capacity_plan.PlacementRequest, server: nova_api.Server
    ) -> capacity_plan.PlacementRequest:
        """Return a request with the hosts that can't get the server.

        As for a migration: of a group with affinity the other servers bind
        it to their host.

        :raises ServiceError: Nova can't be read.
        """
        if self._compute is None:
            return request
        existing = server_request.find_request(self._compute, server.uuid)
        if existing is None:
            return request
        groups = self._groups = server_request.read_host_groups(
            self._compute, existing, self._groups
        )
        is_apart = groups.policy == server_request.ANTI_AFFINITY
        return dataclasses.replace(
            request,
            excluded=server_request.explain_exclusions(existing, groups),
            apart=existing.group if is_apart else "",
        )


def _leave(
    evicted: capacity_plan.EvictedServer,
) -> capacity_plan.EvictedServer:
    """Return a server that can't move, as it has other devices."""
    return dataclasses.replace(
        evicted,
        request=None,
        problem="it has other devices, too; name their cards with --set as"
        " well",
    )


def build_choices(
    flavor: cloud.Flavor, planned: snapshot.CloudSnapshot
) -> tuple[simulation.SimulatedRequest, ...]:
    """Return the requests that Nova schedules for a flavor, in order.

    :raises MalformedError: the list of choices can't be used.
    """
    return tuple(
        simulation.SimulatedRequest(specs=choice.specs, needs=choice.needs)
        for _, choice in cloud.list_choices(flavor, planned.types.catalog)
    )
