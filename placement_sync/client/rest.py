# SPDX-License-Identifier: Apache-2.0
"""REST client of Placement and Nova, on openstacksdk.

Whose credentials, which endpoint and how certificates are checked is what
nova.conf or clouds.yaml say, read by keystoneauth and openstacksdk. A token
that has expired is replaced by keystoneauth, once per request; nothing else
is tried again here: whoever asks looks again first, and plans anew.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading, session, token_endpoint
from openstack import config, connection, proxy
from openstack import exceptions as sdk

from nova_accel import errors
from placement_sync.client import (
    deadlines,
    http_errors,
    provider_records,
    sdk_errors,
)

# Seconds. Linux sends a SYN again after 1, 2 and 4 of them: 10 allow for
# three lost ones. A minute for an answer is what the load balancers before
# Placement allow it as a rule (HAProxy's "timeout server 1m"): who waits
# longer waits for nobody.
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
NAME = "nova-accel"
_BAD_REQUEST, _ABSENT = 400, 404
# Of keystoneauth's adapters; see register_adapter_conf_options there.
_ADAPTER = (
    "service_type",
    "service_name",
    "region_name",
    "endpoint_override",
)
# Nova's default for each service it talks to (nova/conf/utils.py).
_INTERFACES = ("internal", "public")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that is asked.

    ``name`` is openstacksdk's word for it and its type in Keystone's
    catalogue, ``group`` the group of its options in nova.conf.
    """

    name: str
    group: str
    microversion: str


# 1.39 is the newest of Placement 16, and came in release 7 (Yoga): the
# releases 14 to 16, beside Nova 32 to 34, have the same. What is needed of
# it: inventories reserved whole (1.26), other parents (1.37), and codes in
# errors (1.23).
PLACEMENT = Service(name="placement", group="placement", microversion="1.39")
# Nova 32 to 34 have it. Hypervisors with the uuid that Placement knows
# them by (2.53), flavors' extra specs in servers (2.61), migrations with
# the servers' uuids and owners (2.80), flavors' extra specs checked when
# they are written (2.86); from 2.88 hypervisors say less.
COMPUTE = Service(name="compute", group="nova", microversion="2.86")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks, as Keystone says; ids, and the names of roles.

    ``catalog`` is Keystone's catalogue of services, as it gives it.
    """

    token: str = dataclasses.field(repr=False)
    user: str
    project: str
    roles: tuple[str, ...]
    catalog: tuple[Mapping[str, Any], ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """An HTTP status and the decoded body, None where there is none.

    ``modified`` is the Last-Modified header as it came, empty without one.
    """

    status: int
    body: Any = None
    modified: str = ""


class RestClient:
    """A service's REST API; threads may share it.

    ``reads`` and ``writes`` count the requests so far, refused ones too;
    Keystone's are not among them.

    Each method takes a path with its query and raises ServiceError for
    whatever is not a success; ``get`` answers without a body for what does
    not exist.
    """

    def __init__(
        self,
        connect: Callable[[], connection.Connection],
        service: Service = PLACEMENT,
        timeout: tuple[float, float] = (CONNECT_SECONDS, ANSWER_SECONDS),
    ) -> None:
        """Connect when first asked for something.

        :param timeout: seconds for connecting and for each whole answer.
        """
        self._connect = connect
        self._service = service
        self.timeout = timeout
        self._lock = threading.Lock()
        # An adapter doesn't keep its connection.
        self._connection: connection.Connection | None = None
        self._adapter: proxy.Proxy | None = None
        self.reads = 0
        self.writes = 0

    def get(self, path: str) -> Response:
        """Return what is there; without a body if there is nothing."""
        return self._ask("GET", path, None)

    def read(
        self, path: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T:
        """Return a GET's answer, parsed.

        :param parse: takes the body, None where nothing exists.
        :raises ServiceError: also for an answer that can't be parsed.
        """
        return provider_records.parsed("GET", path, self.get(path).body, parse)

    def read_with_trait(
        self, path: str, trait: str, parse: Callable[[Any], provider_records.T]
    ) -> provider_records.T | None:
        """Return the answer to a query that requires a trait, parsed.

        None if Placement does not know the trait: it refuses the query
        then with HTTP 400, without a code of its own. So do Placement for
        any malformed query and proxies for other reasons, hence the
        trait itself is looked up before the refusal is believed.

        :raises ServiceError: as ``read``.
        """
        try:
            return self.read(path, parse)
        except errors.ServiceError as error:
            if error.status != _BAD_REQUEST:
                raise
            found = self.get(f"/traits/{provider_records.quoted(trait)}")
            if found.status != _ABSENT:
                raise
        return None

    def put(
        self, path: str, body: Any = None, microversion: str = ""
    ) -> Response:
        """Replace what is there.

        :param microversion: another than the service's usual one.
        """
        return self._ask("PUT", path, body, microversion)

    def post(self, path: str, body: Any = None) -> Response:
        """Add something."""
        return self._ask("POST", path, body)

    def delete(self, path: str) -> Response:
        """Delete what is there."""
        return self._ask("DELETE", path, None)

    def identity(self) -> Identity | None:
        """Return who asks; None where Keystone is not asked.

        :raises ServiceError: Keystone refuses, or can't be asked.
        """
        try:
            session = self._open().session
            auth: Any = session.auth
            if not hasattr(auth, "get_access"):
                return None
            found = auth.get_access(session)
        except sdk_errors.REFUSED as error:
            raise sdk_errors.build_error("POST", "/auth", error) from None
        return Identity(
            token=found.auth_token,
            user=found.user_id or "",
            project=found.project_id or "",
            roles=tuple(found.role_names),
            catalog=tuple(found.service_catalog.catalog),
        )

    def _ask(
        self, method: str, path: str, body: Any, microversion: str = ""
    ) -> Response:
        with self._lock:
            self.reads += method == "GET"
            self.writes += method != "GET"
        try:
            response = self._open().request(
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
        except sdk_errors.REFUSED as error:
            # What it was raised from may hold credentials.
            raise sdk_errors.build_error(method, path, error) from None
        content = http_errors.decode(response.text)
        said = response.headers.get("Content-Length")
        http_errors.check(
            method, path, response.status_code, content, is_empty=said == "0"
        )
        return Response(
            response.status_code,
            content if response.ok and response.text else None,
            response.headers.get("Last-Modified", ""),
        )

    def _open(self) -> proxy.Proxy:
        """Return openstacksdk's adapter of the service.

        It asks nobody for the service's versions first: Nova doesn't
        either, and the links in that answer lead astray behind some
        proxies.
        """
        with self._lock:
            if self._adapter is None:
                self._connection = self._connect()
                deadlines.mount(self._connection.session.session)
                found = self._connection.config.get_session_client(
                    self._service.name
                )
                # Of which openstacksdk learns here whose it is.
                found.session = self._connection.session
                found.version = found.min_version = found.max_version = None
                self._adapter = found
            return self._adapter


def from_conf(conf: Any, service: Service = PLACEMENT) -> RestClient:
    """Return a service as nova.conf tells, in the way Nova itself reads it.

    :param conf: an ``oslo_config.cfg.ConfigOpts``, parsed. The options are
        registered in it where Nova has not done so.
    :raises ConfigurationError: credentials are missing or malformed.
    """
    _register(conf, service.group)
    return _from_group(conf, service.group, service)


def compute_door(
    conf: Any = None, cloud: str = "", region: str = ""
) -> RestClient:
    """Return Nova's API, for the audit.

    Of nova.conf, what its ``[nova]`` group says, as ``[placement]`` does;
    without ``auth_type`` there, the credentials are those of
    ``[placement]``, and so are region and interfaces that it doesn't name.

    :param conf: see ``from_conf``; None for a cloud of clouds.yaml.
    :raises ConfigurationError: credentials are missing or malformed.
    """
    if conf is None:
        return from_cloud(cloud, region, COMPUTE)
    for group in (COMPUTE.group, PLACEMENT.group):
        _register(conf, group)
    own = conf[COMPUTE.group]
    group = COMPUTE.group
    if not own.auth_section and not own.auth_type:
        group = PLACEMENT.group
    return _from_group(conf, group, COMPUTE)


def from_cloud(
    name: str = "", region: str = "", service: Service = PLACEMENT
) -> RestClient:
    """Return a service of a cloud of clouds.yaml.

    :param name: empty for the one of ``OS_CLOUD``, or of the ``OS_``
        variables in the environment.
    :raises ConfigurationError: there is no such cloud, or its entry is
        malformed.
    """
    try:
        found = config.OpenStackConfig(app_name=NAME).get_one(
            cloud=name or None, region_name=region or None
        )
    except (ksa.ClientException, sdk.SDKException) as error:
        raise errors.ConfigurationError(
            "cloud",
            name or "(none)",
            f"{http_errors.tidy(str(error))}; name a cloud of clouds.yaml, or"
            " set OS_CLOUD",
            "clouds.yaml",
        ) from None
    seconds = float(found.config.get("api_timeout") or ANSWER_SECONDS)
    found.config["api_timeout"] = seconds
    return RestClient(
        lambda: connection.Connection(config=found),
        service,
        (min(CONNECT_SECONDS, seconds), seconds),
    )


def from_endpoint(
    url: str,
    token: str = "admin",  # noqa: S107
    service: Service = PLACEMENT,
) -> RestClient:
    """Return a service without Keystone, at this address.

    :param token: what an embedded Placement, with ``auth_strategy =
        noauth2``, takes for the user's name.
    """
    auth = token_endpoint.Token(url, token)
    return _from_session(
        session.Session(auth=auth, timeout=ANSWER_SECONDS),
        {f"{service.name}_endpoint_override": url},
        service,
    )


def _register(conf: Any, group: str) -> None:
    """Make the options of credentials and endpoints known."""
    if group in conf and "auth_section" in conf[group]:
        return
    loading.register_session_conf_options(conf, group)
    loading.register_auth_conf_options(conf, group)
    loading.register_adapter_conf_options(
        conf, group, include_deprecated=False
    )


def _from_group(conf: Any, group: str, service: Service) -> RestClient:
    """Return a service by the credentials of a group.

    Where it is, its own group says; what that doesn't say of regions and
    interfaces is as for the service whose credentials these are.
    """
    found = _load_session(conf, group)
    own = conf[service.group]
    options = {key: own[key] for key in _ADAPTER}
    options["region_name"] = own.region_name or conf[group].region_name
    options["interface"] = list(
        own.valid_interfaces or conf[group].valid_interfaces or _INTERFACES
    )
    return _from_session(
        found,
        {f"{service.name}_{k}": v for k, v in options.items() if v},
        service,
    )


def _load_session(conf: Any, group: str) -> session.Session:
    """Return keystoneauth's session by the options of a group."""
    option = f"[{group}] auth_type"
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
        if auth is None:
            raise errors.ConfigurationError(
                option, "", "write how to log in, for example: password"
            )
        found = loading.load_session_from_conf_options(conf, group, auth=auth)
    except (ksa.ClientException, ValueError) as error:
        raise errors.ConfigurationError(
            option,
            str(conf[group].get("auth_type") or ""),
            f"{http_errors.tidy(str(error))}; see keystoneauth's options",
        ) from None
    if not found.timeout:
        found.timeout = ANSWER_SECONDS
    return found


def _from_session(
    found: session.Session, options: Mapping[str, Any], service: Service
) -> RestClient:
    found.app_name = NAME
    seconds = found.timeout or ANSWER_SECONDS
    return RestClient(
        lambda: connection.Connection(session=found, **options),
        service,
        (min(CONNECT_SECONDS, seconds), seconds),
    )
