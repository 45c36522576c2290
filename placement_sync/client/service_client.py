# SPDX-License-Identifier: Apache-2.0
"""Client of a service's REST API, whatever sends its requests.

There are no retries: callers read again and make a new plan.
"""

import abc
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from placement_sync.client import http_errors, provider_records


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """HTTP status and decoded body, None for an empty or absent one.

    ``modified`` is the Last-Modified header, empty without one.
    """

    status: int
    body: Any = None
    modified: str = ""


class ServiceClient(abc.ABC):
    """Client of a service's REST API. Thread-safe.

    ``reads`` and ``writes`` count the requests so far, refused requests
    included, requests to Keystone excluded.

    Each method takes a path with its query and raises ServiceError for
    any response that is not a success; ``get`` returns a response without
    a body for an object that does not exist. A microversion replaces the
    service's usual one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reads = 0
        self.writes = 0

    def get(self, path: str, microversion: str = "") -> Response:
        """Return the response, without a body if the object is absent."""
        return self._request("GET", path, None, microversion)

    def fetch(self, path: str) -> Any:
        """Return the decoded body, None for an absent object: a ``Get``."""
        return self.get(path).body

    def read(
        self, path: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T:
        """Return the parsed response to a GET, as provider_records.read."""
        return provider_records.read(self.fetch, path, parse)

    def put(
        self, path: str, body: Any = None, microversion: str = ""
    ) -> Response:
        return self._request("PUT", path, body, microversion)

    def post(
        self, path: str, body: Any = None, microversion: str = ""
    ) -> Response:
        return self._request("POST", path, body, microversion)

    def delete(self, path: str) -> Response:
        return self._request("DELETE", path, None, "")

    def _request(
        self, method: str, path: str, body: Any, microversion: str
    ) -> Response:
        with self._lock:
            self.reads += method == "GET"
            self.writes += method != "GET"
        response = self._send(method, path, body, microversion)
        content = http_errors.decode(response.text)
        http_errors.check_response(
            method,
            path,
            response.status_code,
            content,
            is_empty=response.headers.get("Content-Length") == "0",
        )
        return Response(
            response.status_code,
            content if response.ok and response.text else None,
            response.headers.get("Last-Modified", ""),
        )

    @abc.abstractmethod
    def _send(
        self, method: str, path: str, body: Any, microversion: str
    ) -> Any:
        """Send a request; return its ``requests.Response``.

        :raises ServiceError: there is no response.
        """
