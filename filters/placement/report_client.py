# SPDX-License-Identifier: Apache-2.0
"""Getter for Placement that uses Nova's report client.

The only client of Placement in nova-scheduler. It authenticates with
[placement] of the scheduler's nova.conf.
"""

import http
from typing import Any

from nova.scheduler.client import report

from filters.placement import queries
from placement_sync.client import http_errors


def placement_getter(global_request_id: str | None = None) -> queries.Get:
    """Return a getter that uses Nova's own Placement client.

    :param global_request_id: id of the API request, for Placement's log.
    """

    def get(path: str) -> Any:
        # Any exception in between (Keystone, catalog, HTTP, JSON) becomes
        # QueryError, which every caller handles: it must not fail a
        # scheduling request.
        try:
            response = report.report_client_singleton().get(
                path,
                version=queries.MICROVERSION,
                global_request_id=global_request_id,
            )
            if response.status_code == http.HTTPStatus.OK:
                return response.json()
        except Exception as error:
            raise queries.QueryError(
                path, http_errors.shorten(repr(error))
            ) from error
        code, _ = http_errors.parse_error(http_errors.decode(response.text))
        raise queries.QueryError(
            path,
            f"HTTP {response.status_code}:"
            f" {http_errors.shorten(response.text)}",
            status=response.status_code,
            code=code,
        )

    return get
