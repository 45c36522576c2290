# SPDX-License-Identifier: Apache-2.0
"""Scheduling request of an existing server, as Nova's API shows it.

Nova stores the zone and the scheduler hints of a server, and the fault of a
server that no host could serve. Aggregates are those of now.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.cli import command_manager
from placement_sync.client import nova_api, provider_records, rest
from placement_sync.fleet.explain import simulation

# 2.96 shows the requested zone, 2.100 the scheduler hints; Nova 32 has both.
_MICROVERSION = "2.100"
# Zone of hosts without one ([DEFAULT] default_availability_zone).
_DEFAULT_ZONE = "nova"
# AggregateMultiTenancyIsolation reads the keys with this prefix.
_TENANT_KEY = "filter_tenant_id"
ANTI_AFFINITY = "anti-affinity"
#: Why a host can't get a second server of a group.
SAME_GROUP = "anti-affinity: the host has a server of the group"
_GROUP, _SAME, _DIFFERENT = "group", "same_host", "different_host"
_HOST_HINTS = frozenset({_GROUP, _SAME, _DIFFERENT})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """Request for a server that exists.

    ``zone`` is the requested availability zone, empty for none; ``hints``
    are the scheduler hints. ``fault`` is the message of its last fault with
    the time, empty without one.
    """

    server: nova_api.Server
    zone: str = ""
    hints: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fault: str = ""

    @property
    def simulated(self) -> simulation.SimulatedRequest:
        """Return the request for its flavor.

        :raises UsageError: Nova does not show the extra specs.
        """
        flavor = self.server.flavor
        if flavor is None:
            raise command_manager.UsageError(
                f"Nova does not show the flavor of server {self.server.uuid};"
                " use credentials to which it shows extra specs"
            )
        root_gb = 0 if self.server.is_volume_backed else flavor.root_gb
        return simulation.SimulatedRequest(
            specs=flavor.extra_specs,
            needs={
                "VCPU": flavor.vcpus,
                "MEMORY_MB": flavor.memory_mb,
                "DISK_GB": root_gb + flavor.other_gb,
            },
        )

    @property
    def group(self) -> str:
        """Return the id of its server group, empty without one."""
        return _parse_group_id(self.hints) if _GROUP in self.hints else ""

    def describe(self) -> str:
        """Return the lines above the verdicts."""
        server = self.server
        zone = f", zone {self.zone}" if self.zone else ""
        hints = "".join(
            f", {name}="
            + (",".join(map(str, value)) if isinstance(value, list) else value)
            for name, value in sorted(self.hints.items())
        )
        return f"Server {server.name} ({server.uuid}), {server.status}" + (
            f"{zone}{hints}\n"
            + (f"Fault of {self.fault}\n" if self.fault else "")
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Host aggregate of Nova; ``zone`` is empty if it has none."""

    name: str
    zone: str
    hosts: frozenset[str]
    metadata: Mapping[str, str]

    @property
    def tenants(self) -> frozenset[str]:
        """Return the projects that it is restricted to, empty for all."""
        return frozenset(
            project.strip()
            for key, value in self.metadata.items()
            if key.startswith(_TENANT_KEY)
            for project in value.split(",")
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostGroups:
    """Hosts by the properties that a request may ask for.

    ``services`` are the names of compute services by the uuid of their
    node. ``placed`` are the hosts of servers that hints name, by hint;
    ``policy`` is that of the server's group, empty without one.
    """

    services: Mapping[str, str]
    aggregates: Sequence[Aggregate] = ()
    placed: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    policy: str = ""


def find_request(
    compute: rest.RestClient, name_or_uuid: str
) -> ServerRequest | None:
    """Return the request of a server, None if there is no such server.

    :raises MalformedError: several servers have the name.
    :raises ServiceError: Nova can't be read.
    """
    try:
        server = nova_api.find_single_server(compute, name_or_uuid)
    except nova_api.SeveralServersError:
        raise
    except errors.MalformedError:
        return None
    path = f"/servers/{provider_records.check_uuid(server.uuid)}"
    response = compute.get(path, _MICROVERSION)
    return provider_records.parse_answer(
        "GET", path, response.body, lambda body: _parse(server, body["server"])
    )


def _parse(server: nova_api.Server, body: Any) -> ServerRequest:
    fault = body.get("fault") or {}
    return ServerRequest(
        server=server,
        zone=body.get("pinned_availability_zone") or "",
        hints=dict(body.get("scheduler_hints") or {}),
        fault=f"{fault['created']}: {fault['message']}" if fault else "",
    )


def read_host_groups(
    compute: rest.RestClient,
    request: ServerRequest,
    former: HostGroups | None = None,
) -> HostGroups:
    """Return the hosts, aggregates and server groups of a request.

    :param former: those of another request: hosts and aggregates are the same.
    :raises ServiceError: Nova can't be read, or refuses.
    """
    hints = request.hints
    policy, members = "", frozenset[str]()
    if request.group:
        group = provider_records.quote_name(request.group)
        path = f"/os-server-groups/{group}"
        policy, members = compute.find(path, _parse_group) or ("", members)
    return HostGroups(
        services=former.services
        if former
        else dict(nova_api.list_hypervisors(compute)),
        aggregates=former.aggregates if former else read_aggregates(compute),
        placed={
            name: _find_hosts(compute, servers - {request.server.uuid})
            for name, servers in (
                (_GROUP, members),
                (_SAME, _list_uuids(hints.get(_SAME))),
                (_DIFFERENT, _list_uuids(hints.get(_DIFFERENT))),
            )
        },
        policy=policy,
    )


def read_aggregates(compute: rest.RestClient) -> list[Aggregate]:
    """Return the host aggregates.

    :raises ServiceError: Nova can't be read, or refuses.
    """
    return compute.read(
        "/os-aggregates",
        lambda body: [_parse_aggregate(row) for row in body["aggregates"]],
    )


def _parse_group_id(hints: Mapping[str, Any]) -> str:
    value = hints[_GROUP]
    return str(value[0] if isinstance(value, list) else value)


def _list_uuids(value: Any) -> frozenset[str]:
    values = value if isinstance(value, list) else [value]
    return frozenset(str(each) for each in values if each)


def _parse_group(body: Any) -> tuple[str, frozenset[str]]:
    group = body["server_group"]
    return str(group["policy"]), frozenset(map(str, group["members"]))


def _parse_aggregate(body: Any) -> Aggregate:
    return Aggregate(
        name=str(body["name"]),
        zone=body.get("availability_zone") or "",
        hosts=frozenset(map(str, body["hosts"])),
        metadata=dict(body.get("metadata") or {}),
    )


def _find_hosts(
    compute: rest.RestClient, uuids: Iterable[str]
) -> frozenset[str]:
    """Return the hosts of servers that exist and have one."""
    servers = (
        nova_api.find_server(compute, uuid)
        for uuid in sorted(uuids)
        if nova_api.is_uuid(uuid)
    )
    return frozenset(each.host for each in servers if each and each.host)


def explain_exclusions(
    request: ServerRequest, groups: HostGroups
) -> dict[str, str]:
    """Return why hosts can't get a server, by the uuid of their node.

    Hosts that can are left out.
    """
    reasons = {
        uuid: _explain_host(request, groups, host)
        for uuid, host in groups.services.items()
    }
    return {uuid: reason for uuid, reason in reasons.items() if reason}


def _explain_host(
    request: ServerRequest, groups: HostGroups, host: str
) -> str:
    aggregates = [a for a in groups.aggregates if host in a.hosts]
    zones = {a.zone for a in aggregates if a.zone} or {_DEFAULT_ZONE}
    if request.zone and request.zone not in zones:
        return (
            f"the host is in zone {', '.join(sorted(zones))}, the server was"
            f" requested in {request.zone}"
        )
    for aggregate in aggregates:
        if aggregate.tenants and (
            request.server.project not in aggregate.tenants
        ):
            return f"aggregate {aggregate.name} is of other projects"
    return _explain_hints(request, groups, host)


def _explain_hints(
    request: ServerRequest, groups: HostGroups, host: str
) -> str:
    placed = groups.placed
    if host in placed.get(_DIFFERENT, ()):
        return "hint different_host: the host has such a server"
    if _SAME in request.hints and host not in placed.get(_SAME, ()):
        return "hint same_host: the host has no such server"
    members = placed.get(_GROUP, frozenset())
    if groups.policy == ANTI_AFFINITY and host in members:
        return SAME_GROUP
    if groups.policy == "affinity" and members and host not in members:
        return "affinity: the servers of the group are on another host"
    return ""


def list_notes(request: ServerRequest) -> list[str]:
    """Return the limits of the simulation of this request."""
    others = sorted(request.hints.keys() - _HOST_HINTS)
    notes = ["aggregates and free resources are those of now"]
    if others:
        notes.append(f"hints that are not replayed: {', '.join(others)}")
    return notes
