# SPDX-License-Identifier: Apache-2.0
"""Getter for Placement that uses Nova's report client."""

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
        # Any exception in between (Keystone, catalog, HTTP) becomes
        # ServiceError, which every caller handles: it must not fail a
        # scheduling request.
        try:
            response = open_client().get(
                path,
                version=MICROVERSION,
                global_request_id=global_request_id,
            )
            status, text = response.status_code, response.text
        except Exception as error:
            raise errors.ServiceError(
                "GET",
                path,
                None,
                f"{http_errors.shorten(repr(error))}; see [placement] in"
                " nova.conf",
            ) from error
        content = http_errors.decode(text)
        http_errors.check_response("GET", path, status, content)
        return None if status == http.HTTPStatus.NOT_FOUND else content

    return get
