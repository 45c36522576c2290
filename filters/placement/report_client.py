# SPDX-License-Identifier: Apache-2.0
"""Getter for Placement that uses Nova's report client.

The only client of Placement in nova-scheduler. It authenticates with
[placement] of the scheduler's nova.conf.
"""

import http
from typing import Any

from nova.scheduler.client import report

from nova_accel import errors
from placement_sync.client import http_errors
from placement_sync.client.provider_records import Get

# The microversion of Nova's own queries in releases 31 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). From 1.29 the
# summaries include every provider of a tree, full ones too; 1.36 allows
# groups without resources.
MICROVERSION = "1.36"


def placement_getter(global_request_id: str | None = None) -> Get:
    """Return a getter that uses Nova's own Placement client.

    :param global_request_id: id of the API request, for Placement's log.
    """

    def get(path: str) -> Any:
        # Any exception in between (Keystone, catalog, HTTP) becomes
        # ServiceError, which every caller handles: it must not fail a
        # scheduling request.
        try:
            response = report.report_client_singleton().get(
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
