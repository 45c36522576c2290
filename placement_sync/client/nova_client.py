# SPDX-License-Identifier: Apache-2.0
"""Client of Placement that sends its requests by Nova's report client."""

from collections.abc import Callable
from typing import Any

from nova_accel import errors
from placement_sync.client import http_errors, service_client

# The microversion of Nova's own queries in releases 31 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). Allocations have
# their consumer's generation since 1.28. From 1.29 the summaries include
# every provider of a tree, full ones too; 1.36 allows groups without
# resources.
MICROVERSION = "1.36"


BuildError = Callable[[str, str, Exception], errors.ServiceError]


class NovaClient(service_client.ServiceClient):
    """Client of Placement, by the options of Nova's ``[placement]``."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        global_request_id: str | None = None,
        build_error: BuildError | None = None,
    ) -> None:
        """Send nothing yet.

        :param open_client: returns ``nova.scheduler.client.report``'s client.
        :param global_request_id: id of the API request, for Placement's log.
        :param build_error: describes an exception instead of a response;
            takes method, path and exception.
        """
        super().__init__()
        self._open_client = open_client
        self._global_request_id = global_request_id
        self._build_error = build_error or _build_error

    def _send(
        self, method: str, path: str, body: Any, microversion: str
    ) -> Any:
        """Send a request; return its ``requests.Response``.

        Any exception in between becomes ServiceError, which every caller
        handles: it must not fail a scheduling request.
        """
        content = (body,) if method in ("PUT", "POST") else ()
        try:
            return getattr(self._open_client(), method.lower())(
                path,
                *content,
                version=microversion or MICROVERSION,
                global_request_id=self._global_request_id,
            )
        except Exception as error:
            # The exception's cause may contain credentials.
            raise self._build_error(method, path, error) from None


def _build_error(
    method: str, path: str, error: Exception
) -> errors.ServiceError:
    reason = http_errors.shorten(repr(error))
    return errors.ServiceError(
        method, path, None, f"{reason}; see [placement] in nova.conf"
    )
