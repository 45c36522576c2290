# SPDX-License-Identifier: Apache-2.0
"""Getter for Placement that uses Nova's report client.

The only door to Placement of what the scheduler loads. It logs in with
[placement] of the nova.conf that the scheduler has anyway.
"""

import http
from typing import Any

from nova.scheduler.client import report

from filters.placement import queries
from placement_sync.client import http_errors


def placement_getter(global_request_id: str | None = None) -> queries.Get:
    """Return a getter over Nova's own Placement client.

    :param global_request_id: the request's id, for Placement's log.
    """

    def get(path: str) -> Any:
        # A seam: whatever breaks in between (Keystone, catalog, HTTP,
        # JSON) must not break scheduling, and every caller takes
        # FactsError for "unknown".
        try:
            answer = report.report_client_singleton().get(
                path,
                version=queries.MICROVERSION,
                global_request_id=global_request_id,
            )
            if answer.status_code == http.HTTPStatus.OK:
                return answer.json()
        except Exception as error:
            raise queries.QueryError(
                path, http_errors.tidy(repr(error))
            ) from error
        raise queries.QueryError(
            path,
            f"HTTP {answer.status_code}: {http_errors.tidy(answer.text)}",
        )

    return get
