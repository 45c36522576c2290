# SPDX-License-Identifier: Apache-2.0
"""Reader of servers, migrations and hypervisors from Nova's API.

Nothing here takes silence for an answer: that Nova does not have something
counts only where Nova has shown that it would say so.
"""

import dataclasses
import types
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import errors
from placement_sync.client import nova_types, provider_records, rest

# Nova's own limit of a page ([api] max_limit).
PAGE = 1000
_ABSENT = 404
_MB_PER_GB = 1024


class NoAnswerError(errors.AcceleratorError):
    """Nobody can be asked, or what was said does not count.

    :param reason: why.
    """


def read_host(door: rest.RestClient, node: str) -> str:
    """Return the name of a compute node's service.

    That Nova shows it proves that these credentials see other projects'
    things, and that the cell which has the node's servers answers.

    :param node: the node's uuid.
    :raises UnaskedError: Nova has no such node.
    :raises ServiceError: Nova can't be asked.
    """
    found = door.read(f"/os-hypervisors/{node}", _parse_service_host)
    if found is None:
        raise NoAnswerError(f"Nova has no compute node {node}")
    return found


def _parse_service_host(body: Any) -> str | None:
    return None if body is None else str(body["hypervisor"]["service"]["host"])


def read_servers(
    door: rest.RestClient,
    host: str,
    holders: Collection[str],
    moves: Iterable[nova_types.Migration] | None,
    only: Collection[str] | None = None,
    unallocated: Collection[str] = (),
) -> tuple[dict[str, nova_types.Server | None], str]:
    """Return servers by uuid, and why some are not known.

    Those that Nova has on the host, and of the rest of ``holders`` each
    one, None for what Nova surely does not have.

    :param host: as ``read_host`` tells.
    :param moves: those known; a move is not asked for as a server.
    :param only: ask one by one for no others than these.
    :param unallocated: servers of the host without an allocation of the
        compute node; of them it is asked where the root disk is.
    :raises ServiceError: Nova can't be asked.
    """
    query = {"all_tenants": 1, "host": host}
    found: dict[str, nova_types.Server | None] = {
        server.uuid: server
        for server in pages(door, "/servers/detail", "servers", _server, query)
    }
    left = set(holders) - found.keys() - {m.uuid for m in moves or ()}
    reason = ""
    for uuid in sorted(left if only is None else left & set(only)):
        try:
            found[uuid] = _read_server(door, uuid)
        except (errors.ServiceError, NoAnswerError) as error:
            reason = f"of {uuid} nothing is known: {error}"
    for uuid in sorted(set(unallocated)):
        server = found.get(uuid)
        if server is not None and server.is_volume_backed is None:
            try:
                found[uuid] = _with_root_disk(door, server)
            except errors.ServiceError as error:
                reason = f"of {uuid} the volumes are not known: {error}"
    return found, reason


def _with_root_disk(
    door: rest.RestClient, server: nova_types.Server
) -> nova_types.Server:
    """Return a server with an image, and whether its root is a volume.

    The image may have been copied to a volume when the server was made.
    """
    devices = door.read(
        f"/servers/{server.uuid}/os-volume_attachments",
        lambda body: [each["device"] for each in body["volumeAttachments"]],
    )
    if devices and not (server.root_device and all(devices)):
        return server
    return dataclasses.replace(
        server, is_volume_backed=server.root_device in devices
    )


def _read_server(door: rest.RestClient, uuid: str) -> nova_types.Server | None:
    """Return a server; None if Nova surely has none of that uuid.

    For a user who is no admin, Nova hides others' servers behind a 404
    (nova/db/main/api.py, _build_instance_get). Such a user may not list
    them either, or gets all of them by any filter: only an empty list
    proves that there is none.
    """
    found = door.read(
        f"/servers/{uuid}",
        lambda body: None if body is None else _server(body["server"]),
    )
    if found is None and door.read(
        f"/servers?all_tenants=1&uuid={uuid}",
        lambda body: bool(list(body["servers"])),
    ):
        raise NoAnswerError("Nova both has it and does not; see its policy")
    return found


def _server(body: Any) -> nova_types.Server:
    return nova_types.Server(
        uuid=str(body["id"]),
        node=body.get("OS-EXT-SRV-ATTR:hypervisor_hostname") or "",
        status=body.get("status") or "",
        task=body.get("OS-EXT-STS:task_state") or "",
        project=body.get("tenant_id") or "",
        user=body.get("user_id") or "",
        flavor=_flavor(body.get("flavor") or {}),
        root_device=body.get("OS-EXT-SRV-ATTR:root_device_name") or "",
        is_volume_backed=True if body.get("image") == "" else None,
    )


def _flavor(body: Any) -> nova_types.ServerFlavor | None:
    """Return an embedded flavor; None without extra specs.

    Nova leaves them out for users whom its policy does not show them.
    """
    if "extra_specs" not in body:
        return None
    swap_gb = -(-int(body["swap"] or 0) // _MB_PER_GB)
    return nova_types.ServerFlavor(
        vcpus=int(body["vcpus"]),
        memory_mb=int(body["ram"]),
        root_gb=int(body["disk"]),
        other_gb=int(body["ephemeral"]) + swap_gb,
        extra_specs={
            str(key): str(value) for key, value in body["extra_specs"].items()
        },
    )


def read_moves(
    door: rest.RestClient, host: str
) -> tuple[nova_types.Migration, ...]:
    """Return the moves from and to a host, those that are over too.

    :raises ServiceError: Nova can't be asked.
    """
    return tuple(
        pages(door, "/os-migrations", "migrations", _migration, {"host": host})
    )


def _migration(body: Any) -> nova_types.Migration:
    return nova_types.Migration(
        uuid=str(body["uuid"]),
        server=str(body["instance_uuid"]),
        status=str(body["status"]),
        kind=body.get("migration_type") or "",
    )


def find_lost(door: rest.RestClient, roots: Collection[str]) -> frozenset[str]:
    """Return which of some compute nodes Nova surely does not have.

    :param roots: their uuids.
    :raises UnaskedError: a compute service has no hypervisor: it may be
        new, or in a cell that does not answer, and one of those nodes its.
    :raises ServiceError: Nova can't be asked.
    """
    if not roots:
        return frozenset()
    hosts = dict(
        pages(door, "/os-hypervisors/detail", "hypervisors", _hypervisor)
    )
    lost = set(roots) - hosts.keys()
    if not lost:
        return frozenset()
    for host in door.read(
        "/os-services?binary=nova-compute",
        lambda body: [str(each["host"]) for each in body["services"]],
    ):
        if host not in hosts.values():
            raise NoAnswerError(
                f"nova-compute of {host} has no hypervisor: its cell"
                " does not answer, or it is new and waits for nova-manage"
                " cell_v2 discover_hosts"
            )
    return frozenset(
        uuid
        for uuid in lost
        if door.get(f"/os-hypervisors/{uuid}").status == _ABSENT
    )


def _hypervisor(body: Any) -> tuple[str, str]:
    """Return a hypervisor's uuid and its service's host."""
    return str(body["id"]), str(body["service"]["host"])


def pages(
    door: rest.RestClient,
    path: str,
    name: str,
    parse: Callable[[Any], provider_records.T],
    query: Mapping[str, object] = types.MappingProxyType({}),
) -> Iterator[provider_records.T]:
    """Yield all of a list that comes in pages.

    :param parse: returns a value for each element of the list.
    :raises ServiceError: Nova can't be asked.
    """
    asked = {**query, "limit": PAGE}

    def parse_page(body: Any) -> tuple[list[provider_records.T], str]:
        listed = list(body[name])
        last = listed[-1] if listed and body.get(f"{name}_links") else {}
        marker = last.get("uuid") or last.get("id") or ""
        return [parse(each) for each in listed], str(marker)

    while True:
        found, marker = door.read(
            f"{path}?{urllib.parse.urlencode(asked)}", parse_page
        )
        yield from found
        if not marker or marker == asked.get("marker"):
            return
        asked["marker"] = marker
