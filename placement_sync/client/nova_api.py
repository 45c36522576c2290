# SPDX-License-Identifier: Apache-2.0
"""Servers, migrations and hypervisors, read from Nova's API.

A 404 or an empty list counts only if these credentials could have seen the
object, and if its cell answers.
"""

import dataclasses
import datetime
import types
import urllib.parse
import uuid as uuids
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import errors
from placement_sync.client import provider_records, rest

# Statuses of migrations that are over (nova/db/main/api.py,
# migration_get_in_progress_by_host_and_node). A "finished" resize waits to
# be confirmed, and a "done" evacuation for its source host: both still have
# allocations.
_OVER = frozenset(
    {"confirmed", "reverted", "error", "failed", "completed", "cancelled"}
)
_FAILED = frozenset({"error", "failed", "cancelled"})
# Nova's own limit of a page ([api] max_limit).
PAGE = 1000
_ABSENT = 404
_SERVICES = "/os-services?binary=nova-compute"
_MB_PER_GB = 1024
# Characters of the details of failed events.
_MAX_FAILURE = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlavor:
    """Flavor that a server was created from.

    ``name`` is its name at that time. ``root_gb`` is the root disk,
    ``other_gb`` ephemeral and swap disks.
    """

    vcpus: int
    memory_mb: int
    root_gb: int
    other_gb: int
    extra_specs: Mapping[str, str]
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Server as Nova's API shows it.

    ``node`` is the name of its compute node, empty while it has none, and
    ``host`` that of its service; both are empty for users who may not see
    them. ``task`` is its task state, empty for none. ``flavor`` is None where
    Nova does not show the extra specs. ``is_volume_backed`` is None where
    the API does not show whether the root disk, at ``root_device``, is a
    volume.
    """

    uuid: str
    name: str = ""
    node: str = ""
    host: str = ""
    status: str = ""
    task: str = ""
    project: str = ""
    user: str = ""
    flavor: ServerFlavor | None = None
    root_device: str = ""
    is_volume_backed: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Migration of a server; its uuid is a consumer while it is active."""

    uuid: str
    server: str
    status: str
    kind: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether its allocations should be gone."""
        return self.status in _OVER

    @property
    def has_failed(self) -> bool:
        """Return whether its server stays on the source host."""
        return self.status in _FAILED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComputeService:
    """Service of a compute node. ``is_up`` is Nova's word for its state.

    ``reported`` is the time of its last report in ISO 8601 with the offset
    from UTC, empty if it never reported, or if that was not read.
    """

    host: str
    is_up: bool
    reported: str = ""


class NoAnswerError(errors.AcceleratorError):
    """A source can't be read, or its response proves nothing.

    :param reason: why.
    """


class SeveralServersError(errors.MalformedError):
    """Several servers have the name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "name of one server",
            name,
            "a uuid: several servers have that name",
        )


def read_service_host(client: rest.RestClient, node: str) -> str:
    """Return the host name of a compute node's service.

    If Nova shows it, these credentials see objects of other projects, and
    the cell of the node answers.

    :param node: uuid of the compute node.
    :raises NoAnswerError: Nova has no such node.
    :raises ServiceError: Nova can't be read.
    """
    return read_service(client, node).host


def read_service(client: rest.RestClient, node: str) -> ComputeService:
    """Return the service of a compute node; see ``read_service_host``."""
    service = client.read(f"/os-hypervisors/{node}", _parse_service)
    if service is None:
        raise NoAnswerError(
            f"Nova has no compute node {node}: see `openstack hypervisor list`"
        )
    return service


def list_services(client: rest.RestClient) -> Mapping[str, ComputeService]:
    """Return the services of all compute nodes, by the uuid of the node.

    Services of a cell that does not answer are left out.

    :raises ServiceError: Nova can't be read.
    """
    services = client.read(_SERVICES, _parse_services)
    return {
        uuid: services[host]
        for uuid, host in list_hypervisors(client)
        if host in services
    }


def find_service(client: rest.RestClient, host: str) -> ComputeService | None:
    """Return the service of a host by its name, None if Nova shows none.

    :raises ServiceError: Nova can't be read.
    """
    query = urllib.parse.urlencode({"host": host})
    return client.read(f"{_SERVICES}&{query}", _parse_services).get(host)


def _parse_services(body: Any) -> dict[str, ComputeService]:
    """Return services by host."""
    return {
        str(row["host"]): ComputeService(
            host=str(row["host"]),
            is_up=row["state"] == "up",
            reported=_parse_time(row["updated_at"] or ""),
        )
        for row in body["services"]
        if "state" in row
    }


def _parse_time(text: str) -> str:
    """Return a time of Nova, which is UTC without an offset, with one."""
    if not text:
        return ""
    time = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return time.isoformat(timespec="seconds")


def read_last_report(client: rest.RestClient | None, node: str) -> str:
    """Return when the service of a compute node last reported to Nova.

    Empty unless Nova calls the service up.

    :param client: None without credentials.
    :param node: uuid of the compute node.
    :raises NoAnswerError: Nova has no such node, or can't be asked.
    :raises ServiceError: Nova can't be read.
    """
    if client is None:
        raise NoAnswerError("there are no credentials for Nova's API")
    host = read_service_host(client, node)
    query = urllib.parse.urlencode({"binary": "nova-compute", "host": host})
    return client.read(f"/os-services?{query}", _parse_last_report)


def _parse_last_report(body: Any) -> str:
    return next(
        (
            str(service["updated_at"] or "")
            for service in body["services"]
            if service["state"] == "up"
        ),
        "",
    )


def _parse_service(body: Any) -> ComputeService | None:
    if body is None:
        return None
    hypervisor = body["hypervisor"]
    return ComputeService(
        host=str(hypervisor["service"]["host"]),
        is_up=hypervisor["state"] == "up",
    )


def read_servers(
    client: rest.RestClient,
    host: str,
    consumers: Collection[str],
    migrations: Iterable[Migration] | None,
    only: Collection[str] | None = None,
    unallocated: Collection[str] = (),
) -> tuple[dict[str, Server | None], str]:
    """Return servers by uuid, and why some could not be read.

    The servers of the host, and all of ``consumers`` elsewhere; the value
    is None for a consumer that is proved to be no server of Nova's.

    :param host: as ``read_service_host`` returns it.
    :param consumers: uuids of the consumers of allocations.
    :param migrations: their uuids are consumers, too, and are not read as
        servers.
    :param only: read no other consumers than these one by one.
    :param unallocated: servers of the host without an allocation from the
        compute node; their root disk is looked up.
    :raises ServiceError: Nova can't be read.
    """
    query = {"all_tenants": 1, "host": host}
    servers: dict[str, Server | None] = {
        server.uuid: server for server in list_servers(client, query)
    }
    unread = set(consumers) - servers.keys()
    unread -= {migration.uuid for migration in migrations or ()}
    reason = ""
    for uuid in sorted(unread if only is None else unread & set(only)):
        try:
            servers[uuid] = _read_server(client, uuid)
        except (errors.ServiceError, NoAnswerError) as error:
            reason = f"server {uuid} can't be read: {error}"
    for uuid in sorted(set(unallocated)):
        server = servers.get(uuid)
        if server is not None and server.is_volume_backed is None:
            try:
                servers[uuid] = _add_root_disk(client, server)
            except errors.ServiceError as error:
                reason = f"volumes of server {uuid} can't be read: {error}"
    return servers, reason


def list_servers(
    client: rest.RestClient, query: Mapping[str, object]
) -> Iterator[Server]:
    """Yield the servers that a query selects.

    :param query: filters of Nova's API, such as ``all_tenants``.
    :raises ServiceError: Nova can't be read.
    """
    return read_pages(
        client, "/servers/detail", "servers", _parse_server, query
    )


def find_single_server(client: rest.RestClient, name_or_uuid: str) -> Server:
    """Return the server of a uuid, or of a name in the user's own project.

    Users choose names: one may be that of another project's server, or the
    uuid of a deleted server. So a name never selects a server of another
    project, and a uuid is never taken for a name.

    :raises MalformedError: there is none, or several have the name.
    :raises ServiceError: Nova can't be read.
    """
    if is_uuid(name_or_uuid):
        server = find_server(client, name_or_uuid)
        if server is None:
            raise errors.MalformedError(
                "server of this cloud",
                name_or_uuid,
                "the uuid of a server that Nova has and shows to you",
            )
        return server
    # Nova takes the name for a regular expression.
    listed = list_servers(client, {"name": name_or_uuid})
    servers = [server for server in listed if server.name == name_or_uuid]
    if not servers:
        raise errors.MalformedError(
            "server of your own project",
            name_or_uuid,
            "its name; name a server of another project by its uuid",
        )
    if len(servers) > 1:
        raise SeveralServersError(name_or_uuid)
    return servers[0]


def find_server(client: rest.RestClient, uuid: str) -> Server | None:
    """Return the server of a uuid, None if Nova shows none.

    :raises ServiceError: Nova can't be read.
    """
    return client.find(
        f"/servers/{provider_records.check_uuid(uuid)}",
        lambda body: _parse_server(body["server"]),
    )


def request_action(
    client: rest.RestClient, uuid: str, action: Mapping[str, object]
) -> None:
    """Request an action of a server, such as ``{"migrate": None}``.

    :raises ServiceError: Nova refuses.
    """
    path = f"/servers/{provider_records.check_uuid(uuid)}/action"
    client.post(path, action)


def read_failure(client: rest.RestClient, uuid: str) -> str:
    """Return why the last action of a server failed, empty if not known.

    :raises ServiceError: Nova can't be read.
    """
    path = f"/servers/{provider_records.check_uuid(uuid)}/os-instance-actions"
    requests = client.find(
        path, lambda body: [a["request_id"] for a in body["instanceActions"]]
    )
    if not requests:
        return ""
    # The last action is the first of the list.
    name = provider_records.quote_name(str(requests[0]))
    details = client.find(f"{path}/{name}", _parse_failures)
    return "; ".join(details or ())[:_MAX_FAILURE]


def _parse_failures(body: Any) -> list[str]:
    """Return the details of failed events, each once."""
    return list(
        dict.fromkeys(
            " ".join(str(event["details"]).split())
            for event in body["instanceAction"]["events"]
            if event["result"] == "Error" and event.get("details")
        )
    )


def is_uuid(text: str) -> bool:
    """Return whether a text is a uuid in any of its spellings."""
    try:
        uuids.UUID(text)
    except ValueError:
        return False
    return True


def _add_root_disk(client: rest.RestClient, server: Server) -> Server:
    """Return a server with ``is_volume_backed`` set, where Nova shows it.

    The image may have been copied to a volume when the server was created.
    """
    devices = client.read(
        f"/servers/{server.uuid}/os-volume_attachments",
        lambda body: [row["device"] for row in body["volumeAttachments"]],
    )
    if devices and not (server.root_device and all(devices)):
        return server
    return dataclasses.replace(
        server, is_volume_backed=server.root_device in devices
    )


def _read_server(client: rest.RestClient, uuid: str) -> Server | None:
    """Return a server; None if Nova has none of that uuid.

    Without the admin role, Nova answers 404 for servers of other projects
    (nova/db/main/api.py, _build_instance_get), and either refuses to list
    them or ignores the filter: only an empty list proves that there is no
    such server.
    """
    server = client.read(
        f"/servers/{uuid}",
        lambda body: None if body is None else _parse_server(body["server"]),
    )
    if server is None and client.read(
        f"/servers?all_tenants=1&uuid={uuid}",
        lambda body: bool(list(body["servers"])),
    ):
        raise NoAnswerError(
            "Nova lists it and answers 404 for it; check Nova's policy"
        )
    return server


def _parse_server(body: Any) -> Server:
    return Server(
        uuid=str(body["id"]),
        name=body.get("name") or "",
        node=body.get("OS-EXT-SRV-ATTR:hypervisor_hostname") or "",
        host=body.get("OS-EXT-SRV-ATTR:host") or "",
        status=body.get("status") or "",
        task=body.get("OS-EXT-STS:task_state") or "",
        project=body.get("tenant_id") or "",
        user=body.get("user_id") or "",
        flavor=_parse_flavor(body.get("flavor") or {}),
        root_device=body.get("OS-EXT-SRV-ATTR:root_device_name") or "",
        is_volume_backed=True if body.get("image") == "" else None,
    )


def _parse_flavor(body: Any) -> ServerFlavor | None:
    """Return an embedded flavor; None without extra specs.

    Nova omits them if its policy does not allow this user to see them.
    """
    if "extra_specs" not in body:
        return None
    swap_gb = -(-int(body["swap"] or 0) // _MB_PER_GB)
    return ServerFlavor(
        vcpus=int(body["vcpus"]),
        memory_mb=int(body["ram"]),
        root_gb=int(body["disk"]),
        other_gb=int(body["ephemeral"]) + swap_gb,
        extra_specs={
            str(key): str(value) for key, value in body["extra_specs"].items()
        },
        name=body.get("original_name") or "",
    )


def read_migrations(
    client: rest.RestClient, host: str
) -> tuple[Migration, ...]:
    """Return the migrations from and to a host, finished ones included.

    :raises ServiceError: Nova can't be read.
    """
    return tuple(
        read_pages(
            client,
            "/os-migrations",
            "migrations",
            _parse_migration,
            {"host": host},
        )
    )


def _parse_migration(body: Any) -> Migration:
    return Migration(
        uuid=str(body["uuid"]),
        server=str(body["instance_uuid"]),
        status=str(body["status"]),
        kind=body.get("migration_type") or "",
    )


def find_removed_nodes(
    client: rest.RestClient, roots: Collection[str]
) -> frozenset[str]:
    """Return those of some compute nodes that Nova does not have any more.

    :param roots: uuids of the compute nodes.
    :raises NoAnswerError: a compute service has no hypervisor. It is new,
        or its cell does not answer, and one of the nodes may be its.
    :raises ServiceError: Nova can't be read.
    """
    if not roots:
        return frozenset()
    hosts = dict(list_hypervisors(client))
    unlisted = set(roots) - hosts.keys()
    if not unlisted:
        return frozenset()
    for host in client.read(
        _SERVICES,
        lambda body: [str(row["host"]) for row in body["services"]],
    ):
        if host not in hosts.values():
            raise NoAnswerError(
                f"nova-compute of {host} has no hypervisor: its cell"
                " does not answer, or it is new and waits for nova-manage"
                " cell_v2 discover_hosts"
            )
    return frozenset(
        uuid
        for uuid in unlisted
        if client.get(f"/os-hypervisors/{uuid}").status == _ABSENT
    )


def list_hypervisors(
    client: rest.RestClient,
) -> Iterator[tuple[str, str]]:
    """Yield the uuid and the service's host of each compute node.

    :raises ServiceError: Nova can't be read.
    """
    return read_pages(
        client, "/os-hypervisors/detail", "hypervisors", _parse_hypervisor
    )


def _parse_hypervisor(body: Any) -> tuple[str, str]:
    """Return a hypervisor's uuid and its service's host."""
    return str(body["id"]), str(body["service"]["host"])


def read_pages(
    client: rest.RestClient,
    path: str,
    name: str,
    parse: Callable[[Any], provider_records.T],
    query: Mapping[str, object] = types.MappingProxyType({}),
) -> Iterator[provider_records.T]:
    """Yield the parsed elements of a paginated list.

    :param name: key of the list in the response.
    :param parse: returns the value of one element.
    :raises ServiceError: Nova can't be read.
    """
    parameters = {**query, "limit": PAGE}

    def parse_page(body: Any) -> tuple[list[provider_records.T], str]:
        rows = list(body[name])
        last = rows[-1] if rows and body.get(f"{name}_links") else {}
        marker = last.get("uuid") or last.get("id") or ""
        return [parse(row) for row in rows], str(marker)

    while True:
        page, marker = client.read(
            f"{path}?{urllib.parse.urlencode(parameters)}", parse_page
        )
        yield from page
        if not marker or marker == parameters.get("marker"):
            return
        parameters["marker"] = marker
