# SPDX-License-Identifier: Apache-2.0
"""Clients of commands: clouds.yaml, identities, and parallel reads.

nova-compute's client is by nova.conf (``rest.from_conf``).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import session, token_endpoint
from openstack import config, connection
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
        cloud = config.OpenStackConfig(app_name=rest.NAME).get_one(
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
        lambda: connection.Connection(config=cloud),
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
        lambda: connected,
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
    return rest.from_session(
        session.Session(auth=auth, timeout=rest.ANSWER_SECONDS),
        {f"{service.name}_endpoint_override": url},
        service,
    )


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
