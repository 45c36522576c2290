# SPDX-License-Identifier: Apache-2.0
"""A network service without networks, as a WSGI application.

Nova asks the network service for the ports of each server it shows, stops or
deletes, also when the server was created without a network.  The lab has
none, so every list is empty.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

_COLLECTIONS = frozenset(
    {
        "extensions",
        "floatingips",
        "networks",
        "ports",
        "quotas",
        "security-group-rules",
        "security-groups",
        "subnets",
    }
)
_PREFIX = "/v2.0/"


def application(
    environ: dict[str, Any],
    start_response: Callable[[str, list[tuple[str, str]]], object],
) -> Iterable[bytes]:
    """Answer one request: versions, an empty list, or 404."""
    path = str(environ["PATH_INFO"])
    name = path.removeprefix(_PREFIX).removesuffix(".json")
    status = "200 OK"
    body: dict[str, Any]
    if path in ("", "/"):
        body = {"versions": [_version(str(environ["HTTP_HOST"]))]}
    elif (
        environ["REQUEST_METHOD"] == "GET"
        and path.startswith(_PREFIX)
        and name in _COLLECTIONS
    ):
        body = {name.replace("-", "_"): []}
    else:
        status = "404 Not Found"
        body = {
            "NeutronError": {
                "type": "NotFound",
                "message": "the lab has no networks",
                "detail": "",
            }
        }
    data = json.dumps(body).encode()
    start_response(
        status,
        [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
        ],
    )
    return [data]


def _version(host: str) -> dict[str, Any]:
    """Return the one entry of the version list."""
    href = f"http://{host}{_PREFIX}"
    return {
        "id": "v2.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": href}],
    }
