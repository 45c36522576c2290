# SPDX-License-Identifier: Apache-2.0
"""Fake of Nova's API over HTTP, after its API reference.

It serves the paths that commands read: servers, their volumes, migrations,
hypervisors, services, flavors and aggregates. A page has two entries,
so that a client that reads only the first page fails.
"""

import contextlib
import dataclasses
import datetime
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib import parse

PAGE = 2
ROOT_DEVICE = "/dev/vda"


@dataclasses.dataclass
class Nova:
    """Nova's records, and the faults of its API.

    Paths of ``broken`` answer with status 500, paths of ``refused`` with
    403, and with ``is_user`` each request for all projects. Servers are of
    ``project``, that of the user, unless a test changes their ``tenant_id``;
    others are listed for all projects only. ``down`` are the times of the last
    reports of services that are down, by host. ``volumes`` are
    the device names of the volumes that servers have attached. ``hidden``
    servers belong to other projects: a user who is no admin can't see them.
    ``access`` are the projects of private flavors, by id. ``before`` is called
    with each path first, and ``act`` with the server and the body of an
    action; it returns status and body. ``failures`` are the reasons why the
    last actions of servers failed.
    """

    servers: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    migrations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    hypervisors: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    flavors: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    services: list[str] = dataclasses.field(default_factory=list)
    down: dict[str, str | None] = dataclasses.field(default_factory=dict)
    volumes: dict[str, list[str | None]] = dataclasses.field(
        default_factory=dict
    )
    hidden: set[str] = dataclasses.field(default_factory=set)
    broken: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    aggregates: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    groups: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    access: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    is_user: bool = False
    project: str = "p"
    before: Callable[[str], object] = str
    act: Callable[[str, dict[str, Any]], tuple[int, Any]] | None = None
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    url: str = ""

    def add_host(self, uuid: str, node: str) -> None:
        """Add a compute node and its service."""
        host = node.partition(".")[0]
        self.services.append(host)
        self.hypervisors.append(
            {
                "id": uuid,
                "hypervisor_hostname": node,
                "service": {"host": host},
                "state": "up",
            }
        )

    def add_server(
        self, uuid: str, node: str, name: str = "", **specs: str
    ) -> None:
        """Add a server on a node, "" for a server that is not scheduled.

        :param specs: extra specs of its flavor, in place of the usual one.
        """
        self.servers[uuid] = {
            "id": uuid,
            "name": name or f"vm-{uuid[:8]}",
            "status": "ACTIVE",
            "OS-EXT-STS:task_state": None,
            "OS-EXT-SRV-ATTR:host": node.partition(".")[0] or None,
            "OS-EXT-SRV-ATTR:hypervisor_hostname": node or None,
            "OS-EXT-SRV-ATTR:root_device_name": ROOT_DEVICE,
            "tenant_id": self.project,
            "user_id": "u",
            "image": {"id": "image"},
            "flavor": {
                "vcpus": 4,
                "ram": 2048,
                "disk": 20,
                "ephemeral": 10,
                "swap": 1025,
                "original_name": "gpu.small",
                "extra_specs": specs or {"resources_A:VGPU": "1"},
            },
        }

    def add_flavor(self, name: str, **specs: str) -> None:
        """Add a flavor whose id is its name."""
        self.flavors[name] = {
            "id": name,
            "name": name,
            "vcpus": 4,
            "ram": 2048,
            "disk": 20,
            "extra_specs": specs,
            "os-flavor-access:is_public": name not in self.access,
        }

    def add_move(self, uuid: str, server: str, status: str, host: str) -> None:
        """Add a migration from a host."""
        self.migrations.append(
            {
                "id": len(self.migrations) + 1,
                "uuid": uuid,
                "instance_uuid": server,
                "status": status,
                "migration_type": "live-migration",
                "source_compute": host,
                "dest_compute": "elsewhere",
            }
        )

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return an HTTP status and a body."""
        self.before(path)
        if path.startswith(self.broken or ("none",)):
            return 500, {"computeFault": {"code": 500, "message": "broken"}}
        if path.startswith(self.refused or ("none",)) or (
            self.is_user and "all_tenants" in query
        ):
            return 403, {"forbidden": {"code": 403, "message": "not you"}}
        _, name, *rest = path.split("/")
        if rest not in ([], ["detail"]):
            return self._part(name, *rest)
        if name in ("servers", "os-hypervisors", "os-migrations", "flavors"):
            return 200, self._page(name, query)
        bodies: dict[str, Any] = {
            "os-server-groups": {
                "server_groups": [
                    {"id": uuid, **group}
                    for uuid, group in self.groups.items()
                ][int(query.get("offset", 0)) :][:PAGE]
            },
            "os-aggregates": {"aggregates": self.aggregates},
            "os-services": {
                "services": list(map(self._service, self.services))
            },
        }
        if name in bodies:
            return 200, bodies[name]
        return 200, {"version": self._version()}

    def _service(self, host: str) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        return {
            "host": host,
            "state": "down" if host in self.down else "up",
            "updated_at": self.down.get(host, now.isoformat()),
        }

    def _part(
        self, name: str, uuid: str, part: str = "", request: str = ""
    ) -> tuple[int, Any]:
        """Return a server, its volumes, a flavor, or a hypervisor."""
        if part == "os-instance-actions":
            return 200, self._list_actions(uuid, request)
        if part == "os-volume_attachments":
            devices = self.volumes.get(uuid, ())
            return 200, {"volumeAttachments": [{"device": d} for d in devices]}
        if part == "os-flavor-access":
            rows = [{"tenant_id": each} for each in self.access[uuid]]
            return 200, {"flavor_access": rows}
        return show(name, self._find(name, uuid))

    def _list_actions(self, uuid: str, request: str) -> dict[str, Any]:
        """Return the actions of a server, or the events of one."""
        reason = self.failures.get(uuid)
        if request:
            event = {"result": "Error", "details": reason}
            return {"instanceAction": {"events": [event]}}
        requests = [{"request_id": "req-1"}] if reason else []
        return {"instanceActions": requests}

    def _find(self, name: str, uuid: str) -> dict[str, Any] | None:
        """Return a record, None if it can't be seen."""
        if name == "flavors":
            return self.flavors.get(uuid)
        if name == "servers":
            return None if uuid in self.hidden else self.servers.get(uuid)
        if name == "os-server-groups":
            return self.groups.get(uuid)
        return {each["id"]: each for each in self.hypervisors}.get(uuid)

    def _listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        return [
            each
            for uuid, each in sorted(self.servers.items())
            if ("all_tenants" in query or each["tenant_id"] == self.project)
            and query.get("uuid", uuid) == uuid
            and query.get("name", each["name"]) in each["name"]
            and query.get("host", each["OS-EXT-SRV-ATTR:host"])
            == each["OS-EXT-SRV-ATTR:host"]
        ]

    def _moves(self, query: dict[str, str]) -> list[dict[str, Any]]:
        return [
            move
            for move in self.migrations
            if query["host"] in (move["source_compute"], move["dest_compute"])
        ]

    def _page(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        name = path.removeprefix("os-")
        records = self.hypervisors
        if name == "servers":
            records = self._listed(query)
        elif name == "flavors":
            records = list(self.flavors.values())
        elif name == "migrations":
            records = self._moves(query)
        markers = [str(each.get("uuid") or each["id"]) for each in records]
        first = markers.index(query["marker"]) + 1 if "marker" in query else 0
        last = first + min(PAGE, int(query.get("limit", PAGE)))
        body: dict[str, Any] = {name: records[first:last]}
        if last < len(records):
            body[f"{name}_links"] = [{"rel": "next", "href": "..."}]
        return body

    def _version(self) -> dict[str, Any]:
        return {
            "id": "v2.1",
            "status": "CURRENT",
            "version": "2.96",
            "min_version": "2.1",
            "links": [{"rel": "self", "href": self.url + "/"}],
        }


def show(path: str, record: dict[str, Any] | None) -> tuple[int, Any]:
    if record is None:
        return 404, {"itemNotFound": {"code": 404, "message": "none such"}}
    name = path.removeprefix("os-").removesuffix("s").replace("-", "_")
    return 200, {name: record}


@contextlib.contextmanager
def serve() -> Iterator[Nova]:
    """Run a Nova without servers and hosts."""
    nova = Nova()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = parse.urlsplit(self.path)
            self._send(
                *nova.answer(url.path, dict(parse.parse_qsl(url.query)))
            )

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            assert nova.act is not None, "no actions are expected"
            self._send(*nova.act(self.path.split("/")[2], body))

        def _send(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print no requests."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    nova.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield nova
    finally:
        server.shutdown()
        server.server_close()
