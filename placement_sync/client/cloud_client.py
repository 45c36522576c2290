# SPDX-License-Identifier: Apache-2.0
"""Clients of commands: nova.conf, clouds.yaml, and parallel reads.

keystoneauth and openstacksdk read credentials, endpoints and TLS settings.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading, session, token_endpoint
from openstack import config, connection, proxy
from openstack import exceptions as sdk

from nova_accel import errors
from placement_sync import parallel
from placement_sync.client import (
    http_errors,
    provider_records,
    rest,
    sdk_errors,
)

_Key = TypeVar("_Key")

_NAME = "nova-accel"
# Options of keystoneauth's adapters; see register_adapter_conf_options.
_ADAPTER = (
    "service_type",
    "service_name",
    "region_name",
    "endpoint_override",
)
# Nova's default for each service that it uses (nova/conf/utils.py).
_INTERFACES = ("internal", "public")

# Concurrent GETs of ``find_each``: more of them make a Placement with the
# usual number of workers slower, not faster.
_MAX_THREADS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """User and project of a token: ids, and the names of the roles.

    ``catalog`` is Keystone's service catalog in the form of version 3;
    ``user_name`` is the name of the user, empty if Keystone does not say.
    """

    token: str = dataclasses.field(repr=False)
    user: str
    project: str
    roles: tuple[str, ...]
    catalog: tuple[Mapping[str, Any], ...] = dataclasses.field(repr=False)
    user_name: str = ""


def from_conf(
    conf: Any, service: rest.Service = rest.PLACEMENT
) -> rest.RestClient:
    """Return a client by the groups of nova.conf, as Nova does.

    The service's own group has its endpoint. Without ``auth_type`` there, and
    for Keystone, the credentials are those of ``[placement]``, and so are
    region and interfaces that the own group does not set.

    :param conf: a parsed ``oslo_config.cfg.ConfigOpts``. Options that Nova
        has not registered in it are registered.
    :raises ConfigurationError: credentials are missing or malformed.
    """
    for group in (service.group, rest.PLACEMENT.group):
        _register(conf, group)
    own = conf[service.group]
    has_own = service is not rest.IDENTITY and (
        own.auth_section or own.auth_type
    )
    return _from_group(
        conf, service.group if has_own else rest.PLACEMENT.group, service
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


def _from_group(
    conf: Any, group: str, service: rest.Service
) -> rest.RestClient:
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
        auth_session.timeout = rest.ANSWER_SECONDS
    return auth_session


def from_session(
    auth_session: session.Session,
    options: Mapping[str, Any],
    service: rest.Service,
) -> rest.RestClient:
    auth_session.app_name = _NAME
    seconds = auth_session.timeout or rest.ANSWER_SECONDS
    return rest.RestClient(
        _opener(
            lambda: connection.Connection(session=auth_session, **options),
            service,
        ),
        service,
        (min(rest.CONNECT_SECONDS, seconds), seconds),
    )


def from_cloud(
    name: str = "", region: str = "", service: rest.Service = rest.PLACEMENT
) -> rest.RestClient:
    """Return a client by an entry of clouds.yaml.

    :param name: empty for the cloud of ``OS_CLOUD``, or of the ``OS_``
        variables in the environment.
    :raises ConfigurationError: there is no such cloud, or its entry is
        malformed.
    """
    try:
        cloud = config.OpenStackConfig(app_name=_NAME).get_one(
            cloud=name or None, region_name=region or None
        )
    except (ksa.ClientException, sdk.SDKException) as error:
        raise errors.ConfigurationError(
            "cloud",
            name or "(none)",
            http_errors.add_hint(
                http_errors.shorten(str(error)),
                "name a cloud of clouds.yaml with --os-cloud or OS_CLOUD",
            ),
            "clouds.yaml",
        ) from None
    seconds = float(cloud.config.get("api_timeout") or rest.ANSWER_SECONDS)
    cloud.config["api_timeout"] = seconds
    return rest.RestClient(
        _opener(lambda: connection.Connection(config=cloud), service),
        service,
        (min(rest.CONNECT_SECONDS, seconds), seconds),
    )


def from_connection(
    connected: connection.Connection, service: rest.Service = rest.PLACEMENT
) -> rest.RestClient:
    """Return a client by a connection of openstacksdk."""
    seconds = float(
        connected.config.config.get("api_timeout") or rest.ANSWER_SECONDS
    )
    return rest.RestClient(
        _opener(lambda: connected, service),
        service,
        (min(rest.CONNECT_SECONDS, seconds), seconds),
    )


def from_endpoint(
    url: str,
    token: str = "admin",  # noqa: S107
    service: rest.Service = rest.PLACEMENT,
) -> rest.RestClient:
    """Return a client of a service without Keystone.

    :param token: a Placement with ``auth_strategy = noauth2`` uses it as
        the user's name.
    """
    auth = token_endpoint.Token(url, token)
    return from_session(
        session.Session(auth=auth, timeout=rest.ANSWER_SECONDS),
        {f"{service.name}_endpoint_override": url},
        service,
    )


def _opener(
    connect: Callable[[], connection.Connection], service: rest.Service
) -> Callable[[], proxy.Proxy]:
    """Return a function that opens the adapter of a service.

    Version discovery of Placement and Nova is disabled, as in Nova: behind
    some proxies the links in the version document are wrong.
    """
    # An adapter has no reference to its connection.
    opened: list[connection.Connection] = []

    def open_adapter() -> proxy.Proxy:
        connected = connect()
        opened.append(connected)
        adapter = connected.config.get_session_client(service.name)
        # openstacksdk finds the connection by its session.
        adapter.session = connected.session
        adapter.version = None
        adapter.min_version = adapter.max_version = None
        if service.version:
            adapter.min_version = service.version
            adapter.max_version = f"{service.version}.latest"
        return adapter

    return open_adapter


def read_identity(client: rest.RestClient) -> Identity | None:
    """Return user and project of the token; None without Keystone.

    :raises ServiceError: Keystone refuses, or does not answer.
    """
    try:
        session = client.open_adapter().session
        auth: Any = session.auth
        if not hasattr(auth, "get_access"):
            return None
        access = auth.get_access(session)
    except sdk_errors.CLIENT_ERRORS as error:
        raise sdk_errors.build_error("POST", "/auth", error) from None
    return Identity(
        token=access.auth_token,
        user=access.user_id or "",
        project=access.project_id or "",
        roles=tuple(access.role_names),
        catalog=tuple(access.service_catalog.catalog),
        user_name=access.username or "",
    )


def find_each(
    client: rest.RestClient,
    keys: Iterable[_Key],
    query: Callable[[provider_records.Get, _Key], provider_records.T],
) -> list[provider_records.T]:
    """Return the results of a query for several keys, in their order.

    Up to eight requests run at the same time.

    :param query: for example ``provider_records.fetch_traits``.
    :raises ServiceError: one of them failed.
    """
    return parallel.run(
        lambda key: query(client.fetch, key), keys, _MAX_THREADS
    )
