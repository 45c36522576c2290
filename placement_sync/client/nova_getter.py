# SPDX-License-Identifier: Apache-2.0
"""Requests to Placement by Nova's report client."""

import http
from collections.abc import Callable
from typing import Any

from nova_accel import errors
from placement_sync.client import http_errors
from placement_sync.client.provider_records import Get

# The microversion of Nova's own queries in releases 31 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). Allocations have
# their consumer's generation since 1.28. From 1.29 the summaries include
# every provider of a tree, full ones too; 1.36 allows groups without
# resources.
MICROVERSION = "1.36"


def build(
    open_client: Callable[[], Any], global_request_id: str | None = None
) -> Get:
    """Return a getter that uses Nova's own Placement client.

    :param open_client: returns ``nova.scheduler.client.report``'s client.
    :param global_request_id: id of the API request, for Placement's log.
    """

    def get(path: str) -> Any:
        status, content = _request(
            "GET", path, lambda: open_client().get, global_request_id
        )
        return None if status == http.HTTPStatus.NOT_FOUND else content

    return get


def put(
    open_client: Callable[[], Any],
    path: str,
    body: Any,
    global_request_id: str | None = None,
) -> None:
    """Send a PUT through Nova's own Placement client.

    :param open_client: see ``build``.
    :raises ServiceError: Placement refuses it, or can't be reached.
    """

    def open_put() -> Callable[..., Any]:
        send = open_client().put
        return lambda place, **options: send(place, body, **options)

    _request("PUT", path, open_put, global_request_id)


def _request(
    method: str,
    path: str,
    open_method: Callable[[], Callable[..., Any]],
    global_request_id: str | None,
) -> tuple[int, Any]:
    """Return status and decoded body of a response.

    Any exception in between (Keystone, catalog, HTTP) becomes ServiceError,
    which every caller handles: it must not fail a scheduling request.
    """
    try:
        response = open_method()(
            path, version=MICROVERSION, global_request_id=global_request_id
        )
        status, text = response.status_code, response.text
    except Exception as error:
        raise errors.ServiceError(
            method,
            path,
            None,
            f"{http_errors.shorten(repr(error))}; see [placement] in"
            " nova.conf",
        ) from error
    content = http_errors.decode(text)
    http_errors.check_response(method, path, status, content)
    return status, content
