# SPDX-License-Identifier: Apache-2.0
"""Reader of a fleet from Placement and Nova.

Requests to Placement: those of ``cloud.read``, three for any number of
hosts, and one for each selected device with allocated units, eight at the
same time. A device that the query leaves out costs none. One listing of
Nova names all servers, and Keystone is asked for each project of them.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

from nova_accel import errors
from placement_sync.client import (
    cloud_client,
    nova_api,
    provider_records,
    rest,
)
from placement_sync.fleet import projects
from placement_sync.fleet.devices import (
    fleet_query,
    fleet_state,
    host_reports,
)
from placement_sync.fleet.flavors import cloud, offered_devices

_ALL_PROJECTS: Mapping[str, object] = {"all_tenants": 1}


def read(
    placement: rest.RestClient,
    select: cloud.Selection = tuple,
    limit: int | None = None,
) -> fleet_state.Fleet:
    """Return the selected devices and their holdings, without servers.

    :param select: returns the devices to include, of all devices.
    :param limit: most devices with holdings for which these are read; with
        more of them none are read.
    :raises ServiceError: Placement can't be read.
    """
    offered = cloud.read(placement, select)
    used = [
        device.uuid
        for device in offered.devices
        if any(capacity.used for capacity in device.capacities.values())
    ]
    if limit is not None and len(used) > limit:
        return fleet_state.Fleet(cloud=offered, has_holdings=False)
    holdings = cloud_client.find_each(
        placement, used, provider_records.list_allocations
    )
    return fleet_state.Fleet(
        cloud=offered, holdings=tuple(itertools.chain(*holdings))
    )


def read_cloud(
    placement: rest.RestClient, compute: rest.RestClient
) -> tuple[offered_devices.Cloud, str]:
    """Return all devices with the reports of their hosts, and the gap.

    :raises ServiceError: Placement can't be read.
    """
    reports, gap = host_reports.read(compute)
    query = fleet_query.FleetQuery(reports=reports)
    return cloud.read(placement, query.select), gap


def add_servers(
    fleet: fleet_state.Fleet, compute: rest.RestClient
) -> fleet_state.Fleet:
    """Return a fleet with the servers among its consumers.

    One listing names all of them. Servers that can't be read are a gap, no
    error: the holdings are right without their names.
    """
    if not fleet.holdings:
        return fleet
    try:
        consumers = {holding.consumer for holding in fleet.holdings}
        listed = nova_api.list_servers(compute, _ALL_PROJECTS)
        servers = {s.uuid: s for s in listed if s.uuid in consumers}
    except errors.ServiceError as error:
        gap = f"names and projects of servers ({error})"
        return dataclasses.replace(fleet, gaps=(*fleet.gaps, gap))
    return dataclasses.replace(fleet, servers=servers)


def read_project_names(
    servers: Iterable[nova_api.Server], identity: rest.RestClient
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the names of the servers' projects by id, and the gaps.

    Names that can't be read are a gap, no error: the ids say as much.

    :param identity: client of Keystone.
    """
    ids = {server.project for server in servers}
    if not ids:
        return {}, ()
    try:
        return projects.read_names(identity, ids), ()
    except errors.ServiceError as error:
        return {}, (f"names of projects ({error})",)


def find_holders(
    placement: rest.RestClient, consumers: Iterable[str]
) -> frozenset[str]:
    """Return the uuids of the providers that consumers hold units of.

    One request for each consumer.

    :param consumers: uuids of servers.
    :raises ServiceError: Placement can't be read.
    """
    answers = cloud_client.find_each(
        placement, consumers, provider_records.fetch_consumer
    )
    return frozenset(
        provider for allocations, *_ in answers for provider in allocations
    )
