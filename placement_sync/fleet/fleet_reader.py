# SPDX-License-Identifier: Apache-2.0
"""Reader of a fleet from Placement and Nova.

Requests to Placement: those of ``cloud.read``, three for any number of
hosts, and one for each selected device with allocated units, eight at the
same time. A device that the query leaves out costs none. One listing of
Nova names all servers.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel import errors
from placement_sync.client import nova_api, provider_records, rest
from placement_sync.flavors import cloud, offered_devices
from placement_sync.fleet import fleet_state


def read(
    placement: rest.RestClient,
    compute: rest.RestClient | None,
    select: cloud.Selection = tuple,
    no_compute_reason: str = "",
) -> fleet_state.Fleet:
    """Return the selected devices, their holders, and the holders' servers.

    Servers that can't be read are a gap, no error.

    :param compute: client of Nova's API; None without credentials, for
        ``no_compute_reason``.
    :param select: returns the devices to include, of all devices.
    :raises ServiceError: Placement can't be read.
    """
    offered = cloud.read(placement, select)
    fleet = fleet_state.Fleet(
        cloud=offered, holdings=_read_holdings(placement, offered.devices)
    )
    if not fleet.holdings:
        return fleet
    if compute is None:
        return _add_gap(fleet, no_compute_reason)
    try:
        servers = _read_servers(compute, fleet.holdings)
    except errors.ServiceError as error:
        return _add_gap(fleet, str(error))
    return dataclasses.replace(fleet, servers=servers)


def _read_holdings(
    placement: rest.RestClient,
    devices: Iterable[offered_devices.OfferedDevice],
) -> tuple[fleet_state.Holding, ...]:
    used = [
        device.uuid
        for device in devices
        if any(capacity.used for capacity in device.capacities.values())
    ]
    answers = placement.find_each(
        (provider_records.provider_path(u, "allocations") for u in used),
        provider_records.parse_allocations,
    )
    return tuple(
        fleet_state.Holding(provider=uuid, consumer=consumer, amounts=amounts)
        for uuid, answer in zip(used, answers, strict=True)
        if answer is not None
        for consumer, amounts in sorted(answer[1].items())
    )


def _read_servers(
    compute: rest.RestClient, holdings: Iterable[fleet_state.Holding]
) -> Mapping[str, nova_api.Server]:
    """Return the servers among the consumers, by uuid, in one listing."""
    consumers = {holding.consumer for holding in holdings}
    return {
        server.uuid: server
        for server in nova_api.list_servers(compute, {"all_tenants": 1})
        if server.uuid in consumers
    }


def _add_gap(fleet: fleet_state.Fleet, reason: str) -> fleet_state.Fleet:
    gap = f"names and projects of servers: {reason}"
    return dataclasses.replace(fleet, gaps=(*fleet.gaps, gap))
