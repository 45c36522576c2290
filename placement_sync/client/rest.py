# SPDX-License-Identifier: Apache-2.0
"""REST client of Placement and Nova, on openstacksdk.

Nova opens the adapter of nova-compute, ``cloud_client`` those of commands.
keystoneauth replaces an expired token once per request. There are no other
retries here: callers read again and make a new plan.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from openstack import proxy

from placement_sync.client import (
    http_errors,
    provider_records,
    sdk_errors,
)

# Seconds. Linux sends a SYN again after 1, 2 and 4 of them: 10 allow for
# three lost SYNs. A minute is the usual limit of load balancers in front
# of Placement (HAProxy's "timeout server 1m"): a longer wait is useless.
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
_TITLES = {
    "placement": "Placement",
    "compute": "Nova's API",
    "identity": "Keystone",
    "accelerator": "Cyborg",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An OpenStack service.

    ``name`` is its name in openstacksdk and its type in Keystone's catalog,
    ``group`` the group of its options in nova.conf. ``microversion`` is empty
    for a service without them. ``version`` is the major version to discover,
    because the catalog's address may lack it; empty for none.
    """

    name: str
    group: str
    microversion: str = ""
    version: str = ""

    @property
    def title(self) -> str:
        """Return its name for people."""
        return _TITLES.get(self.name, self.name)


# 1.39 is the newest of Placement 13 to 16, the releases beside Nova 31 to
# 34. Required: error codes (1.23), ``reserved`` equal to ``total`` (1.26),
# and a change of the parent (1.37).
PLACEMENT = Service(name="placement", group="placement", microversion="1.39")
# Nova 31 to 34 have it. Required: hypervisors by the uuid of their resource
# provider (2.53), extra specs in servers (2.61), migrations with uuids and
# owners (2.80), validation of extra specs (2.86). From 2.88 on hypervisors
# have fewer fields.
COMPUTE = Service(name="compute", group="nova", microversion="2.86")
ACCELERATOR = Service(name="accelerator", group="cyborg", version="2")
IDENTITY = Service(name="identity", group="keystone", version="3")


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """HTTP status and decoded body, None for an empty or absent one.

    ``modified`` is the Last-Modified header, empty without one.
    """

    status: int
    body: Any = None
    modified: str = ""


class RestClient:
    """Client of a service's REST API. Thread-safe.

    ``reads`` and ``writes`` count the requests so far, refused requests
    included, requests to Keystone excluded.

    Each method takes a path with its query and raises ServiceError for
    any response that is not a success; ``get`` returns a response without
    a body for an object that does not exist.
    """

    def __init__(
        self,
        open_adapter: Callable[[], proxy.Proxy],
        service: Service = PLACEMENT,
        timeout: tuple[float, float] = (CONNECT_SECONDS, ANSWER_SECONDS),
    ) -> None:
        """Connect at the first request.

        :param open_adapter: returns openstacksdk's adapter of the service.
        :param timeout: seconds for connecting, and for each read of a
            response.
        """
        self._open_adapter = open_adapter
        self._service = service
        self.timeout = timeout
        self.seconds: float | None = None
        #: Is entered for each request with the words "Placement: GET /x".
        self.announce: Callable[
            [str], contextlib.AbstractContextManager[object]
        ] = contextlib.nullcontext
        self._lock = threading.Lock()
        self._adapter: proxy.Proxy | None = None
        self.reads = 0
        self.writes = 0

    def limit(self, seconds: float) -> None:
        """Set the seconds of each answer, and of those of Keystone.

        It is called before the first request.
        """
        self.seconds = seconds
        self.timeout = (min(CONNECT_SECONDS, seconds), seconds)

    def get(self, path: str, microversion: str = "") -> Response:
        """Return the response, without a body if the object is absent.

        :param microversion: instead of the service's usual one.
        """
        return self._request("GET", path, None, microversion)

    def fetch(self, path: str) -> Any:
        """Return the decoded body, None for an absent object: a ``Get``."""
        return self.get(path).body

    def read(
        self, path: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T:
        """Return the parsed response to a GET, as provider_records.read."""
        return provider_records.read(self.fetch, path, parse)

    def find(
        self, path: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T | None:
        """Return the parsed response to a GET, as provider_records.find."""
        return provider_records.find(self.fetch, path, parse)

    def put(
        self, path: str, body: Any = None, microversion: str = ""
    ) -> Response:
        """Send a PUT.

        :param microversion: instead of the service's usual one.
        """
        return self._request("PUT", path, body, microversion)

    def post(
        self, path: str, body: Any = None, microversion: str = ""
    ) -> Response:
        """Send a POST.

        :param microversion: instead of the service's usual one.
        """
        return self._request("POST", path, body, microversion)

    def delete(self, path: str) -> Response:
        return self._request("DELETE", path, None)

    def _request(
        self, method: str, path: str, body: Any, microversion: str = ""
    ) -> Response:
        with self._lock:
            self.reads += method == "GET"
            self.writes += method != "GET"
        subject = f"{self._service.title}: {method} {path.partition('?')[0]}"
        try:
            with self.announce(subject):
                response = self.open_adapter().request(
                    path,
                    method,
                    json=body,
                    headers={"Accept": "application/json"},
                    microversion=microversion or self._service.microversion,
                    microversion_service_type=self._service.name,
                    connect_retries=0,
                    status_code_retries=0,
                    timeout=self.timeout,
                    skip_cache=True,
                )
        except sdk_errors.CLIENT_ERRORS as error:
            # The exception's cause may contain credentials.
            raise sdk_errors.build_error(method, path, error) from None
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

    def open_adapter(self) -> proxy.Proxy:
        """Return openstacksdk's adapter of the service."""
        with self._lock:
            if self._adapter is None:
                adapter = self._open_adapter()
                if self.seconds is not None:
                    adapter.session.timeout = self.seconds
                self._adapter = adapter
            return self._adapter
