# SPDX-License-Identifier: Apache-2.0
"""What Nova's API tells of servers, their moves, and hypervisors.

Nothing here takes silence for an answer: that Nova does not have something
counts only where Nova has shown that it would say so.
"""

import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib import parse

from nova_accel import errors
from placement_sync import api, facts

# Nova's own limit of a page ([api] max_limit).
PAGE = 1000
_ABSENT = 404


class UnaskedError(errors.AcceleratorError):
    """Nobody can be asked, or what was said does not count.

    :param reason: why.
    """


def read_host(door: api.Door, node: str) -> str:
    """Return the name of a compute node's service.

    That Nova shows it proves that these credentials see other projects'
    things, and that the cell which has the node's servers answers.

    :param node: the node's uuid.
    :raises UnaskedError: Nova has no such node.
    :raises ServiceError: Nova can't be asked.
    """
    body = door.get(f"/os-hypervisors/{node}").body
    if body is None:
        raise UnaskedError(f"Nova has no compute node {node}")
    return str(body["hypervisor"]["service"]["host"])


def read_servers(
    door: api.Door,
    host: str,
    holders: Collection[str],
    moves: Iterable[facts.Migration] | None,
    only: Collection[str] | None = None,
) -> tuple[dict[str, facts.Server | None], str]:
    """Return servers by uuid, and why some are not known.

    Those that Nova has on the host, and of the rest of ``holders`` each
    one, None for what Nova surely does not have.

    :param host: as ``read_host`` tells.
    :param moves: those known; a move is not asked for as a server.
    :param only: ask one by one for no others than these.
    :raises ServiceError: Nova can't be asked.
    """
    query = {"all_tenants": 1, "host": host}
    found: dict[str, facts.Server | None] = {
        each["id"]: _server(each)
        for each in pages(door, "/servers/detail", "servers", query)
    }
    left = set(holders) - found.keys() - {m.uuid for m in moves or ()}
    reason = ""
    for uuid in sorted(left if only is None else left & set(only)):
        try:
            found[uuid] = _read_server(door, uuid)
        except (errors.ServiceError, UnaskedError) as error:
            reason = f"of {uuid} nothing is known: {error}"
    return found, reason


def _read_server(door: api.Door, uuid: str) -> facts.Server | None:
    """Return a server; None if Nova surely has none of that uuid.

    For a user who is no admin, Nova hides others' servers behind a 404
    (nova/db/main/api.py, _build_instance_get). Such a user may not list
    them either, or gets all of them by any filter: only an empty list
    proves that there is none.
    """
    body = door.get(f"/servers/{uuid}").body
    if body is not None:
        return _server(body["server"])
    listed = door.get(f"/servers?all_tenants=1&uuid={uuid}").body
    if listed["servers"]:
        raise UnaskedError("Nova both has it and does not; see its policy")
    return None


def _server(body: Any) -> facts.Server:
    return facts.Server(
        uuid=body["id"],
        node=body.get("OS-EXT-SRV-ATTR:hypervisor_hostname") or "",
        status=body.get("status") or "",
    )


def read_moves(door: api.Door, host: str) -> tuple[facts.Migration, ...]:
    """Return the moves from and to a host, those that are over too.

    :raises ServiceError: Nova can't be asked.
    """
    return tuple(
        facts.Migration(
            uuid=each["uuid"],
            server=each["instance_uuid"],
            status=each["status"],
            kind=each.get("migration_type") or "",
        )
        for each in pages(
            door, "/os-migrations", "migrations", {"host": host}
        )
    )


def find_lost(door: api.Door, roots: Collection[str]) -> frozenset[str]:
    """Return which of some compute nodes Nova surely does not have.

    :param roots: their uuids.
    :raises UnaskedError: a compute service has no hypervisor: it may be
        new, or in a cell that does not answer, and one of those nodes its.
    :raises ServiceError: Nova can't be asked.
    """
    if not roots:
        return frozenset()
    listed = list(pages(door, "/os-hypervisors/detail", "hypervisors"))
    lost = set(roots) - {str(each["id"]) for each in listed}
    if not lost:
        return frozenset()
    known = {each["service"]["host"] for each in listed}
    answer = door.get("/os-services?binary=nova-compute").body
    for each in answer["services"]:
        if each["host"] not in known:
            raise UnaskedError(
                f"nova-compute of {each['host']} has no hypervisor: its cell"
                " does not answer, or it is new and waits for nova-manage"
                " cell_v2 discover_hosts"
            )
    return frozenset(
        uuid
        for uuid in lost
        if door.get(f"/os-hypervisors/{uuid}").status == _ABSENT
    )


def pages(
    door: api.Door,
    path: str,
    name: str,
    query: Mapping[str, object] = types.MappingProxyType({}),
) -> Iterator[Any]:
    """Yield all of a list that comes in pages.

    :raises ServiceError: Nova can't be asked.
    """
    asked = {**query, "limit": PAGE}
    while True:
        body = door.get(f"{path}?{parse.urlencode(asked)}").body
        yield from body[name]
        if not body.get(f"{name}_links") or not body[name]:
            return
        last = body[name][-1]
        asked["marker"] = last.get("uuid") or last["id"]
