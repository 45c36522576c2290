# SPDX-License-Identifier: Apache-2.0
"""REST client of Placement and Nova, on openstacksdk.

keystoneauth and openstacksdk read credentials, endpoints and TLS settings
from nova.conf or clouds.yaml. keystoneauth replaces an expired token once
per request. There are no other retries here: callers read again and make a
new plan.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading, session
from openstack import connection, proxy

from nova_accel import errors
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
NAME = "nova-accel"


# Options of keystoneauth's adapters; see register_adapter_conf_options.
_ADAPTER = (
    "service_type",
    "service_name",
    "region_name",
    "endpoint_override",
)
# Nova's default for each service that it uses (nova/conf/utils.py).
_INTERFACES = ("internal", "public")
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
        connect: Callable[[], connection.Connection],
        service: Service = PLACEMENT,
        timeout: tuple[float, float] = (CONNECT_SECONDS, ANSWER_SECONDS),
    ) -> None:
        """Connect at the first request.

        :param timeout: seconds for connecting, and for each read of a
            response.
        """
        self._connect = connect
        self._service = service
        self.timeout = timeout
        self.seconds: float | None = None
        #: Is entered for each request with the words "Placement: GET /x".
        self.announce: Callable[
            [str], contextlib.AbstractContextManager[object]
        ] = contextlib.nullcontext
        self._lock = threading.Lock()
        # The adapter has no reference to its connection.
        self._connection: connection.Connection | None = None
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
        """Return openstacksdk's adapter of the service.

        Version discovery of Placement and Nova is disabled, as in Nova:
        behind some proxies the links in the version document are wrong.
        """
        with self._lock:
            if self._adapter is None:
                self._connection = self._connect()
                adapter = self._connection.config.get_session_client(
                    self._service.name
                )
                # openstacksdk finds the connection by its session.
                adapter.session = self._connection.session
                if self.seconds is not None:
                    adapter.session.timeout = self.seconds
                adapter.version = None
                adapter.min_version = adapter.max_version = None
                if self._service.version:
                    adapter.min_version = self._service.version
                    adapter.max_version = f"{self._service.version}.latest"
                self._adapter = adapter
            return self._adapter


def from_conf(conf: Any, service: Service = PLACEMENT) -> RestClient:
    """Return a client by the groups of nova.conf, as Nova does.

    The service's own group has its endpoint. Without ``auth_type`` there, and
    for Keystone, the credentials are those of ``[placement]``, and so are
    region and interfaces that the own group does not set.

    :param conf: a parsed ``oslo_config.cfg.ConfigOpts``. Options that Nova
        has not registered in it are registered.
    :raises ConfigurationError: credentials are missing or malformed.
    """
    for group in (service.group, PLACEMENT.group):
        _register(conf, group)
    own = conf[service.group]
    has_own = service is not IDENTITY and (own.auth_section or own.auth_type)
    return _from_group(
        conf, service.group if has_own else PLACEMENT.group, service
    )


def _register(conf: Any, group: str) -> None:
    """Register the options of credentials and endpoints."""
    if group in conf and "auth_section" in conf[group]:
        return
    loading.register_session_conf_options(conf, group)
    loading.register_auth_conf_options(conf, group)
    loading.register_adapter_conf_options(
        conf, group, include_deprecated=False
    )


def _from_group(conf: Any, group: str, service: Service) -> RestClient:
    """Return a client with the credentials of another service's group.

    The endpoint comes from the service's own group, which inherits region
    and interfaces from ``group``.
    """
    auth_session = _load_session(conf, group)
    own = conf[service.group]
    options = {key: own[key] for key in _ADAPTER}
    options["region_name"] = own.region_name or conf[group].region_name
    options["interface"] = list(
        own.valid_interfaces or conf[group].valid_interfaces or _INTERFACES
    )
    return from_session(
        auth_session,
        {f"{service.name}_{k}": v for k, v in options.items() if v},
        service,
    )


def _load_session(conf: Any, group: str) -> session.Session:
    option = f"[{group}] auth_type"
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
        if auth is None:
            raise errors.ConfigurationError(
                option,
                "",
                "set an authentication type, such as password, or name"
                " credentials by --os-cloud",
            )
        auth_session = loading.load_session_from_conf_options(
            conf, group, auth=auth
        )
    except (ksa.ClientException, ValueError) as error:
        raise errors.ConfigurationError(
            option,
            str(conf[group].get("auth_type") or ""),
            http_errors.add_hint(
                http_errors.shorten(str(error)), "see keystoneauth's options"
            ),
        ) from None
    if not auth_session.timeout:
        auth_session.timeout = ANSWER_SECONDS
    return auth_session


def from_session(
    auth_session: session.Session,
    options: Mapping[str, Any],
    service: Service,
) -> RestClient:
    auth_session.app_name = NAME
    seconds = auth_session.timeout or ANSWER_SECONDS
    return RestClient(
        lambda: connection.Connection(session=auth_session, **options),
        service,
        (min(CONNECT_SECONDS, seconds), seconds),
    )
