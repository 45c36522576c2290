# SPDX-License-Identifier: Apache-2.0
"""REST client of commands for Placement and Nova, on openstacksdk.

keystoneauth replaces an expired token once per request.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from openstack import proxy

from placement_sync.client import (
    provider_records,
    sdk_errors,
    service_client,
)

# Seconds. Linux sends a SYN again after 1, 2 and 4 of them: 10 allow for
# three lost SYNs.
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = sdk_errors.ANSWER_SECONDS
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
# 34. Required: error codes (1.23), and ``reserved`` equal to ``total`` (1.26).
PLACEMENT = Service(name="placement", group="placement", microversion="1.39")
# Nova 31 to 34 have it. Required: hypervisors by the uuid of their resource
# provider (2.53), extra specs in servers (2.61), migrations with uuids and
# owners (2.80), validation of extra specs (2.86). From 2.88 on hypervisors
# have fewer fields.
COMPUTE = Service(name="compute", group="nova", microversion="2.86")
ACCELERATOR = Service(name="accelerator", group="cyborg", version="2")
IDENTITY = Service(name="identity", group="keystone", version="3")


class RestClient(service_client.ServiceClient):
    """Client of a service by openstacksdk; see ServiceClient."""

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
        super().__init__()
        self._open_adapter = open_adapter
        self._service = service
        self.timeout = timeout
        self.seconds: float | None = None
        #: Is entered for each request with the words "Placement: GET /x".
        self.announce: Callable[
            [str], contextlib.AbstractContextManager[object]
        ] = contextlib.nullcontext
        self._adapter: proxy.Proxy | None = None

    def limit(self, seconds: float) -> None:
        """Set the seconds of each answer, and of those of Keystone.

        It is called before the first request.
        """
        self.seconds = seconds
        self.timeout = (min(CONNECT_SECONDS, seconds), seconds)

    def find(
        self, path: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T | None:
        """Return the parsed response to a GET, as provider_records.find."""
        return provider_records.find(self.fetch, path, parse)

    def _send(
        self, method: str, path: str, body: Any, microversion: str
    ) -> Any:
        subject = f"{self._service.title}: {method} {path.partition('?')[0]}"
        try:
            with self.announce(subject):
                return self.open_adapter().request(
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

    def open_adapter(self) -> proxy.Proxy:
        """Return openstacksdk's adapter of the service."""
        with self._lock:
            if self._adapter is None:
                adapter = self._open_adapter()
                if self.seconds is not None:
                    adapter.session.timeout = self.seconds
                self._adapter = adapter
            return self._adapter
