# SPDX-License-Identifier: Apache-2.0
"""Reader of a cloud for plans of moves.

Beside the requests of ``fleet_reader`` one for each device, for the units that
an operator reserves, two listings of Nova, and one for each 1,000 server
groups.
"""

import argparse
import dataclasses
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nova_accel import errors
from placement_sync.client import nova_api, provider_records, rest
from placement_sync.fleet.cli import fleet_command
from placement_sync.fleet.devices import fleet_query, fleet_state
from placement_sync.fleet.explain import server_request
from placement_sync.fleet.flavors import cloud
from placement_sync.fleet.moves import movable_servers

_ALL_PROJECTS = {"all_tenants": 1}
_PAGE = 1000
# The rule of a group (microversion 2.64).
_MOST = "max_server_per_host"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCloud:
    """A fleet with all that moves depend on.

    ``services`` are the names of nova-compute services by the uuid of the
    node; ``hosts`` the nodes of all servers, by server.
    """

    fleet: fleet_state.Fleet
    groups: tuple[movable_servers.ServerGroup, ...]
    services: Mapping[str, str]
    hosts: Mapping[str, str]

    def restrict(self, nodes: Collection[str]) -> "PlannedCloud":
        """Return the cloud without the devices of other compute nodes.

        :param nodes: uuids of compute nodes.
        """
        offered = self.fleet.cloud
        devices = tuple(d for d in offered.devices if d.root in nodes)
        offered = dataclasses.replace(offered, devices=devices)
        return dataclasses.replace(
            self, fleet=dataclasses.replace(self.fleet, cloud=offered)
        )


class PlanningReader:
    """Clients of a command about moves."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Send no request yet.

        :raises ConfigurationError: there are no credentials for Placement
            or for Nova.
        """
        self._reader = fleet_command.CloudReader(arguments)
        self.placement = self._reader.placement
        self.compute = self._reader.compute
        self.types = self._reader.types
        self.link: int = self._reader.options.settings.live_migration_link

    def read(self) -> PlannedCloud:
        """Return the cloud as it is now.

        :raises ServiceError: Placement or Nova can't be read.
        """
        fleet = self._reader.read(fleet_query.FleetQuery())
        if fleet.gaps:
            raise errors.ServiceError(
                "Nova's API", "GET /os-services", None, "; ".join(fleet.gaps)
            )
        uuids = {device.uuid for device in fleet.devices}
        offered = cloud.read_totals(self.placement, fleet.cloud, uuids)
        consumers = {holding.consumer for holding in fleet.holdings}
        services = dict(nova_api.list_hypervisors(self.compute))
        roots = {host: root for root, host in services.items()}
        servers, hosts = {}, {}
        for server in nova_api.list_servers(self.compute, _ALL_PROJECTS):
            if server.host in roots:
                hosts[server.uuid] = roots[server.host]
            if server.uuid in consumers:
                servers[server.uuid] = server
        return PlannedCloud(
            fleet=dataclasses.replace(fleet, cloud=offered, servers=servers),
            groups=tuple(_list_groups(self.compute)),
            services=services,
            hosts=hosts,
        )

    def read_exclusions(self, uuid: str) -> Mapping[str, str]:
        """Return why nodes can't get a server, by uuid.

        By its zone, its project, its scheduler hints and its server group.

        :raises ServiceError: Nova can't be read.
        """
        request = server_request.find_request(self.compute, uuid)
        if request is None:
            return {}
        groups = server_request.read_host_groups(self.compute, request)
        return server_request.explain_exclusions(request, groups)

    def read_generation(self, uuid: str) -> int:
        """Return the generation of a provider, -1 if it is gone.

        :raises ServiceError: Placement can't be read.
        """
        answer = provider_records.fetch_inventories(self.placement.fetch, uuid)
        return answer[0] if answer else -1


def _list_groups(
    compute: rest.RestClient,
) -> Iterator[movable_servers.ServerGroup]:
    """Yield the server groups of all projects; their list has no links."""
    offset = 0
    while True:
        query = urllib.parse.urlencode(
            {"all_projects": "True", "limit": _PAGE, "offset": offset}
        )
        groups = compute.read(
            f"/os-server-groups?{query}",
            lambda body: [_parse_group(row) for row in body["server_groups"]],
        )
        yield from groups
        offset += len(groups)
        if not groups:
            return


def _parse_group(body: Any) -> movable_servers.ServerGroup:
    return movable_servers.ServerGroup(
        uuid=str(body["id"]),
        policy=str(body["policy"]),
        members=frozenset(map(str, body["members"])),
        most=int((body.get("rules") or {}).get(_MOST, 1)),
    )
